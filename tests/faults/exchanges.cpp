// SPDX-License-Identifier: Apache-2.0
// Seats, groups and rows of the exchange.
#include "tests/faults/exchanges.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace dropless::faults {
namespace {

// Groups on their way from rank 0 to the others.
class Lobby {
 public:
  std::uint64_t put(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock(mutex_);
    groups_[++last_] = group;
    return last_;
  }
  std::shared_ptr<Group> take(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(number);
    return found == groups_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Group>> groups_;
  std::uint64_t last_ = 0;
};

Lobby& lobby() {
  static Lobby one;
  return one;
}

bool can_gather(const dropless_exchange_settings& settings) {
  return settings.all_gather != nullptr && settings.ranks >= 1 && settings.rank >= 0 &&
         settings.rank < settings.ranks && settings.ranks <= 4096;
}

// Collective. Null when a rank is missing. `mine` keeps the group of rank 0 alive until all have
// it: the reference's own gathering comes after this one.
std::shared_ptr<Group> join(const dropless_exchange_settings& settings) {
  const bool first = settings.rank == 0;
  std::shared_ptr<Group> group = first ? std::make_shared<Group>() : nullptr;
  const std::uint64_t mine = first ? lobby().put(group) : 0;
  std::vector<std::uint64_t> all(at(settings.ranks));
  if (settings.all_gather(settings.all_gather_context, &mine, all.data(), sizeof mine) != 0) {
    return nullptr;
  }
  return first ? group : lobby().take(all[0]);
}

reference::ExchangeSettings as_reference(const dropless_exchange_settings& from) {
  reference::ExchangeSettings settings;
  settings.ranks = from.ranks, settings.num_experts = from.num_experts;
  settings.top_k = from.top_k, settings.max_tokens = from.max_tokens;
  settings.row_bytes = from.row_bytes, settings.scale_bytes = from.scale_bytes;
  settings.ragged_buffer_factor = from.ragged_buffer_factor;
  settings.overflow_check_every = from.overflow_check_every;
  settings.node_of_rank = integers_of(from.node_of_rank);
  settings.placement = integers_of(from.placement);
  return settings;
}

}  // namespace

const reference::ExchangePlan& Seat::plan() {
  if (plan_) return *plan_;
  std::vector<std::vector<Index>> all;
  {
    const std::lock_guard lock(group->mutex);
    const auto& asked = group->ids.at(number_);
    for (Index one = 0; one < ranks; ++one) all.push_back(asked.at(one));
  }
  const std::vector<reference::Indices> views(all.begin(), all.end());
  plan_ = reference::exchange_plan(profile, settings, views,
                                   reference::exchange_capacity(profile, settings));
  return *plan_;
}

Index Seat::arrive() {
  const std::lock_guard lock(group->mutex);
  group->arrivals[calls][rank] = std::chrono::steady_clock::now();
  return calls++;
}

double Seat::wait_for(Index call, Index other) const {
  const std::lock_guard lock(group->mutex);
  const auto& times = group->arrivals.at(call);
  if (!times.contains(other)) return 0;
  return std::chrono::duration<double>(times.at(other) - times.at(rank)).count();
}

double Seat::lateness(Index call) const {
  double least = 1e9;
  for (Index other = 0; other < ranks; ++other) {
    if (other != rank) least = std::min(least, -wait_for(call, other));
  }
  return ranks == 1 ? 0 : least;
}

void Seat::begin_plan(const dropless_tensor* asked) {
  number_ = plans++;
  plan_.reset();
  const std::lock_guard lock(group->mutex);
  group->ids[number_][rank] = integers_of(asked);
}

void Seat::end_plan(dropless_status status) {
  if (status == DROPLESS_INVALID_ARGUMENT) {  // the old plan stays in force
    number_ = number_in_force_;
    plan_.reset();
    return;
  }
  number_in_force_ = number_;
  planned = status == DROPLESS_OK;
  const std::lock_guard lock(group->mutex);
  ids = group->ids[number_][rank];
}

dropless_status Seats::open(const Next<&Table::exchange_open>& next,
                            dropless_exchange_open_args& args, const Change& change) {
  if (args.settings == nullptr || args.settings->struct_size < sizeof *args.settings) {
    return next(args);
  }
  dropless_exchange_settings settings = *args.settings;
  if (!can_gather(settings)) return next(args);
  const std::shared_ptr<Group> group = join(settings);
  const reference::ExchangeSettings asked = as_reference(settings);
  if (change) change(settings);
  args.settings = &settings;
  const dropless_status status = next(args);
  if (status != DROPLESS_OK || group == nullptr) return status;
  Index slots = 0;
  try {
    slots = reference::exchange_topology(asked).slots;
  } catch (const reference::Refused&) {
    return status;  // what should have been refused has no right plan
  }
  const auto seat = std::make_shared<Seat>();
  seat->rank = settings.rank, seat->ranks = settings.ranks;
  seat->experts = settings.num_experts, seat->top_k = settings.top_k;
  seat->slots = slots;
  seat->token_bytes = settings.row_bytes + settings.scale_bytes;
  seat->every = std::max<Index>(asked.overflow_check_every, 1);
  seat->settings = asked, seat->profile = profile_, seat->group = group;
  const std::lock_guard lock(mutex_);
  seats_[args.exchange] = seat;
  return status;
}

std::shared_ptr<Seat> Seats::find(const dropless_exchange* exchange) {
  const std::lock_guard lock(mutex_);
  const auto found = seats_.find(exchange);
  return found == seats_.end() ? nullptr : found->second;
}

void Seats::forget(const dropless_exchange* exchange) {
  const std::lock_guard lock(mutex_);
  seats_.erase(exchange);
}

template <auto entry>
void Exchanges::around(Body<entry> fault) {
  constexpr bool plans = std::is_same_v<Args<entry>, dropless_exchange_plan_args>;
  constexpr bool closes = std::is_same_v<Args<entry>, dropless_exchange_close_args>;
  planted_.around<entry>([seats = seats_, fault](const auto& next, auto& args) {
    const std::shared_ptr<Seat> seat = seats->find(args.exchange);
    if (seat == nullptr) return next(args);
    if constexpr (plans) seat->begin_plan(args.ids);
    // Before it is closed: its address may be another rank's next handle.
    if constexpr (closes) seats->forget(args.exchange);
    const dropless_status status = fault(next, args, *seat);
    if constexpr (plans) seat->end_plan(status);
    return status;
  });
}

template void Exchanges::around<&Table::exchange_plan>(Body<&Table::exchange_plan>);
template void Exchanges::around<&Table::exchange_dispatch>(Body<&Table::exchange_dispatch>);
template void Exchanges::around<&Table::exchange_combine>(Body<&Table::exchange_combine>);
template void Exchanges::around<&Table::exchange_dispatch_backward>(
    Body<&Table::exchange_dispatch_backward>);
template void Exchanges::around<&Table::exchange_combine_backward>(
    Body<&Table::exchange_combine_backward>);
template void Exchanges::around<&Table::exchange_close>(Body<&Table::exchange_close>);

Exchanges::Exchanges(Planted& planted)
    : planted_(planted), seats_(std::make_shared<Seats>(*planted.table().profile)) {
  settings({});
  around<&Table::exchange_plan>([](const auto& next, auto& args, Seat&) { return next(args); });
  around<&Table::exchange_close>([](const auto& next, auto& args, Seat&) { return next(args); });
}

void Exchanges::settings(const Seats::Change& change) {
  planted_.around<&Table::exchange_open>([seats = seats_, change](const auto& next, auto& args) {
    return seats->open(next, args, change);
  });
}
void Exchanges::impatient() {
  settings(
      [](dropless_exchange_settings& s) { s.timeout_seconds = std::min(s.timeout_seconds, 1.0); });
}

void store(const dropless_tensor* scalar, Index value) {
  if (has_elements(scalar)) view(scalar).store_integer_flat(value, 0);
}

Index stored(const dropless_tensor* scalar) {
  return has_elements(scalar) ? view(scalar).load_integer_flat(0) : 0;
}

std::vector<const dropless_tensor*> row_outputs(const dropless_exchange_dispatch_args& args) {
  std::vector<const dropless_tensor*> outputs;
  for (const dropless_tensor* one :
       {args.rows, args.row_scales, args.row_weights, args.row_ids, args.row_source}) {
    if (has_elements(one)) outputs.push_back(one);
  }
  return outputs;
}

Index row_width(const TensorView& tensor) {
  return tensor.shape(0) == 0 ? 0 : tensor.size() / tensor.shape(0);
}

void copy_row(const TensorView& from, Index source, const TensorView& to, Index target) {
  const Index width = row_width(from);
  for (Index i = 0; i < width; ++i) {
    to.store_integer_flat(from.load_integer_flat(source * width + i), target * width + i);
  }
}

void clear_row(const TensorView& to, Index row) {
  const Index width = row_width(to);
  for (Index i = row * width; i < (row + 1) * width; ++i) to.store_integer_flat(0, i);
}

void reorder_rows(const dropless_exchange_dispatch_args& args, const std::vector<Index>& order) {
  for (const dropless_tensor* one : row_outputs(args)) {
    const Copy old(one);
    for (std::size_t row = 0; row < order.size(); ++row) {
      copy_row(old.elements(), order[row], view(one), static_cast<Index>(row));
    }
  }
}

}  // namespace dropless::faults
