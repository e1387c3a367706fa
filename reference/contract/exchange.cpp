// SPDX-License-Identifier: Apache-2.0
// The exchange behind the contract, for ranks that are threads of one process.
#include <memory>

#include "reference/checks.h"
#include "reference/contract/exchange_board.h"
#include "reference/contract/exchange_calls.h"
#include "reference/contract/operations.h"
#include "reference/contract/tensor.h"

namespace dropless::reference::contract {
namespace {

#define DROPLESS_END_OF(type, field) (offsetof(type, field) + sizeof(type::field))

dropless_exchange_settings declared_settings(const dropless_exchange_settings* settings) {
  return completed(settings, "exchange settings",
                   DROPLESS_END_OF(dropless_exchange_settings, overflow_check_every));
}

#undef DROPLESS_END_OF

ExchangeSettings settings_of(const dropless_exchange_settings& declared) {
  ExchangeSettings settings;
  settings.ranks = declared.ranks;
  settings.num_experts = declared.num_experts;
  settings.top_k = declared.top_k;
  settings.max_tokens = declared.max_tokens;
  settings.row_bytes = declared.row_bytes;
  settings.scale_bytes = declared.scale_bytes;
  settings.ragged_buffer_factor = declared.ragged_buffer_factor;
  settings.overflow_check_every = declared.overflow_check_every;
  if (declared.ranks < 1) throw Refused("ranks = " + std::to_string(declared.ranks));
  const auto nodes =
      optional_tensor(declared.node_of_rank, "node_of_rank", Element::id, {settings.ranks});
  const auto placement =
      optional_tensor(declared.placement, "placement", Element::id, {settings.ranks, kAny});
  if (placement && placement->shape(1) < 1) throw Refused("placement has no slots");
  settings.node_of_rank = read_integers(nodes);
  settings.placement = read_integers(placement);
  return settings;
}

}  // namespace

void exchange_capacity(const dropless_profile& profile, dropless_exchange_capacity_args* args) {
  const dropless_exchange_capacity_args a = completed(args, "arguments");
  const Index capacity =
      reference::exchange_capacity(profile, settings_of(declared_settings(a.settings)));
  if (!DROPLESS_HAS_FIELD(args, dropless_exchange_capacity_args, capacity)) {
    throw Refused("the arguments have no room for the capacity");
  }
  args->capacity = capacity;
}

void exchange_open(const dropless_profile& profile, dropless_exchange_open_args* args) {
  const dropless_exchange_open_args a = completed(args, "arguments");
  const dropless_exchange_settings declared = declared_settings(a.settings);
  const ExchangeSettings settings = settings_of(declared);
  if (declared.rank < 0 || declared.rank >= declared.ranks) {
    throw Refused("rank = " + std::to_string(declared.rank) + " is outside 0 .. " +
                  std::to_string(declared.ranks - 1));
  }
  if (declared.all_gather == nullptr) throw Refused("all_gather is null");
  if (!(declared.timeout_seconds > 0 && declared.timeout_seconds < 1e6)) {
    throw Refused("timeout_seconds = " + std::to_string(declared.timeout_seconds));
  }
  if (!DROPLESS_HAS_FIELD(args, dropless_exchange_open_args, exchange)) {
    throw Refused("the arguments have no room for the handle");
  }
  static_cast<void>(reference::exchange_capacity(profile, settings));  // refuses what it must
  if (profile.overflow_policy == DROPLESS_OVERFLOW_TRAP) {
    throw NotSupported("the reference does not end its process: no policy trap");
  }
  auto seat = std::make_unique<ExchangeSeat>();
  seat->rank = declared.rank;
  seat->board = join_board(profile, declared, settings);
  args->exchange = keep_seat(std::move(seat));
}

void exchange_close(const dropless_profile&, dropless_exchange_close_args* args) {
  const dropless_exchange_close_args a = completed(args, "arguments");
  const std::unique_ptr<ExchangeSeat> seat = take_seat(a.exchange);
  // After a time-out nobody is waited for, and a rank that is late here loses nothing.
  if (seat->board->broken()) return;
  try {
    seat->board->meet(seat->rank, {.call = ExchangeCall::close});
  } catch (const StatusError&) {
    seat->board->leave();
  }
}

void exchange_plan(const dropless_profile&, dropless_exchange_plan_args* args) {
  const dropless_exchange_plan_args a = completed(args, "arguments");
  const ExchangeSeat& seat = seat_of(a.exchange);
  const ExchangeSettings& settings = seat.board->settings();
  const Index slots = exchange_topology(settings).slots;
  const auto out = or_refuse(seat, [&] {
    const auto scalar = [](const dropless_tensor* one, const char* name) {
      return optional_tensor(one, name, Element::i64, {1});
    };
    struct Outputs {
      TensorView counts, offsets, rows_per_source, total_rows, demand;
      std::optional<TensorView> global_counts, sent_bytes, sent_node_bytes, first_overflow, unseen,
          dropped;
    };
    return Outputs{
        tensor(a.tokens_per_local_expert, "tokens_per_local_expert", Element::i64, {slots}),
        tensor(a.offsets, "offsets", Element::i64, {slots + 1}),
        tensor(a.rows_per_source, "rows_per_source", Element::i64, {settings.ranks}),
        tensor(a.total_rows, "total_rows", Element::i64, {1}),
        tensor(a.demand, "demand", Element::i64, {1}),
        optional_tensor(a.global_counts, "global_counts", Element::i64, {settings.num_experts}),
        scalar(a.sent_bytes, "sent_bytes"),
        scalar(a.sent_node_bytes, "sent_node_bytes"),
        scalar(a.first_overflow_step, "first_overflow_step"),
        scalar(a.unseen_steps, "unseen_steps"),
        scalar(a.dropped_pairs, "dropped_pairs")};
  });
  Deposit mine = or_refuse(seat, [&] {
    const TensorView ids = tensor(a.ids, "ids", Element::id, {kAny, settings.top_k});
    if (ids.shape(0) > settings.max_tokens) {
      throw Refused(std::to_string(ids.shape(0)) +
                    " tokens are more than max_tokens = " + std::to_string(settings.max_tokens));
    }
    Deposit deposit{.call = ExchangeCall::plan, .ids = read_integers(ids)};
    deposit.step = a.step, deposit.last_step = a.last_step != 0;
    return deposit;
  });
  const std::shared_ptr<const Round> round = seat.board->meet(seat.rank, std::move(mine));

  const PlanOutcome& outcome = round->outcome;
  if (DROPLESS_HAS_FIELD(args, dropless_exchange_plan_args, checked)) {
    args->checked = outcome.report.checked ? 1 : 0;
  }
  const auto write = [](const std::optional<TensorView>& view, Index value) {
    if (view) view->store_integer(value, 0);
  };
  // What a check found is told with the status, too (EXCHANGE-11b).
  out.demand.store_integer(outcome.report.demand, 0);
  write(out.first_overflow, outcome.report.first_overflow_step);
  write(out.unseen, outcome.report.unseen_steps);
  if (outcome.status == DROPLESS_OVERFLOW) {
    throw StatusError(DROPLESS_OVERFLOW, "the fullest rank would receive " +
                                             std::to_string(outcome.report.demand) +
                                             " rows, more than the capacity of " +
                                             std::to_string(seat.board->handle().capacity()));
  }
  if (seat.board->handle().state() != HandleState::delivers) return;
  const ExchangePlan& plan = seat.board->handle().plan_in_force();
  const ReceivedRows& received = plan.received[at(seat.rank)];
  write_integers(out.counts, received.tokens_per_local_expert);
  write_integers(out.offsets, received.offsets);
  write_integers(out.rows_per_source, received.rows_per_source);
  if (out.global_counts) write_integers(*out.global_counts, plan.global_counts);
  out.total_rows.store_integer(received.rows(), 0);
  write(out.sent_bytes, round->traffic.sent_bytes(seat.rank));
  write(out.sent_node_bytes, round->traffic.sent_node_bytes(seat.rank));
  write(out.dropped, received.dropped_pairs);
}

}  // namespace dropless::reference::contract
