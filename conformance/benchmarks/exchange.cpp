// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine between ranks that are threads of one process, against memcpy by as many
// threads. Rows, summed over the R ranks with T tokens each:
//
//   P  distinct (token, other rank): what a plan reports as sent, and EXCHANGE-5 calls plan bytes
//   N  rows of the receive buffers: distinct (token, rank) flat, (token, expert) expert-major
//
// Against the plan bytes the peer copies 2 P rows: P for dispatch, P for combine. That leaves out
// what stays on a rank, and in expert-major all copies of a row but one: an implementation that
// copies as fast as memcpy then gets to 2 P / (N + R T) at best, about 0.6 for 8 of 256 experts on
// 4 ranks. Against the least traffic the peer copies N + R T rows: dispatch has to read every token
// and write every row, combine to read every row and write every token.
//
// Both sides use huge pages where the system gives them (see operands.h).
#include <fmt/format.h>

#include <barrier>
#include <optional>
#include <set>

#include "conformance/benchmarks/comparison.h"
#include "conformance/benchmarks/operands.h"

namespace dropless::conformance {
namespace {

constexpr int kRanks = 4;
constexpr Index kTokens = 4096, kTopK = 8, kExperts = 256, kHidden = 1024;
constexpr Index kRowBytes = 2 * kHidden;

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// body(rank) in one thread each; the first exception of any is thrown again.
template <class Body>
void on_all_ranks(const Body& body) {
  std::vector<std::exception_ptr> failures(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          failures[at(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Where the bytes of all ranks come together while the exchange is opened.
class Gathering {
 public:
  struct Place {
    Gathering* all;
    int rank;
  };
  static std::int32_t gather(void* context, const void* sent, void* received, std::size_t bytes) {
    const Place& place = *static_cast<Place*>(context);
    place.all->sent_[at(place.rank)] = sent;
    place.all->barrier_.arrive_and_wait();
    for (int r = 0; r < kRanks; ++r) {
      std::memcpy(static_cast<std::byte*>(received) + at(r) * bytes, place.all->sent_[at(r)],
                  bytes);
    }
    place.all->barrier_.arrive_and_wait();
    return 0;
  }

 private:
  std::barrier<> barrier_{kRanks};
  const void* sent_[kRanks] = {};
};

// What one rank keeps.
struct BenchRank {
  Gathering::Place place{};
  dropless_exchange* exchange = nullptr;
  std::shared_ptr<BenchTensor> ids, x, weights, rows, row_weights, row_ids, y, copy;
};

// The group: rows are counted at once; handles, plan and memory are made with the first call.
class BenchExchange {
 public:
  BenchExchange(const dropless_implementation& implementation, bool flat)
      : table_(implementation), flat_(flat), ranks_(kRanks) {
    Random random(Random::key_of("bench exchange"));
    for (int rank = 0; rank < kRanks; ++rank) {
      ids_.emplace_back();
      Index sent = 0, received = 0;
      for (Index t = 0; t < kTokens; ++t) {
        std::set<Index> experts, ranks;
        while (experts.size() < kTopK) experts.insert(random.below(kExperts));
        for (const Index e : experts) ids_.back().push_back(e), ranks.insert(e / local_experts);
        received += static_cast<Index>(flat ? ranks.size() : experts.size());
        sent += static_cast<Index>(ranks.size() - ranks.count(rank));
      }
      plan_rows_.push_back(2 * sent);
      least_rows_.push_back(received + kTokens);
    }
  }
  ~BenchExchange() {
    if (ranks_[0].exchange == nullptr) return;
    on_all_ranks([&](int rank) {
      auto args = make_args<dropless_exchange_close_args>();
      args.exchange = ranks_[at(rank)].exchange;
      auto call = make_args<dropless_call>();
      table_.exchange_close(table_.context, &call, &args);
    });
  }
  BenchExchange(const BenchExchange&) = delete;
  BenchExchange& operator=(const BenchExchange&) = delete;

  // Rows of each rank that the two peers copy.
  [[nodiscard]] const std::vector<Index>& plan_rows() const { return plan_rows_; }
  [[nodiscard]] const std::vector<Index>& least_rows() const { return least_rows_; }

  void run(bool dispatches, bool combines) {
    prepare();
    on_all_ranks([&](int rank) {
      if (dispatches) dispatch(ranks_[at(rank)]);
      if (combines) combine(ranks_[at(rank)]);
    });
  }
  void copy(const std::vector<Index>& rows) {
    prepare();
    on_all_ranks([&](int rank) {
      BenchRank& mine = ranks_[at(rank)];
      for (Index left = rows[at(rank)]; left > 0;) {
        const Index now = std::min(left, mine.copy->tensor()->shape[0]);
        std::memcpy(mine.copy->as<std::byte>(), mine.rows->as<std::byte>(), at(now * kRowBytes));
        left -= now;
      }
    });
  }

 private:
  static constexpr Index local_experts = kExperts / kRanks;

  void prepare() {
    if (ranks_[0].exchange != nullptr) return;
    Gathering gathering;
    on_all_ranks([&](int rank) {
      ranks_[at(rank)].place = {&gathering, rank};
      open(ranks_[at(rank)]);
    });
    on_all_ranks([&](int rank) { dispatch(ranks_[at(rank)]); });  // numbers for combine
  }

  void open(BenchRank& mine) {
    auto settings = make_args<dropless_exchange_settings>();
    settings.rank = mine.place.rank, settings.ranks = kRanks;
    settings.all_gather = Gathering::gather, settings.all_gather_context = &mine.place;
    settings.num_experts = kExperts, settings.top_k = kTopK, settings.max_tokens = kTokens;
    settings.row_bytes = kRowBytes;
    settings.ragged_buffer_factor = 1.25;
    settings.timeout_seconds = 60;
    auto capacity = make_args<dropless_exchange_capacity_args>();
    capacity.settings = &settings;
    call_operation(table_, 1, table_.exchange_capacity, capacity);
    auto opening = make_args<dropless_exchange_open_args>();
    opening.settings = &settings;
    call_operation(table_, 1, table_.exchange_open, opening);

    mine.ids = bench_tensor(DROPLESS_I64, {kTokens, kTopK});
    const std::vector<Index>& ids = ids_[at(settings.rank)];
    std::copy(ids.begin(), ids.end(), mine.ids->as<Index>());
    const auto numbers = [](Index n) { return bench_tensor(DROPLESS_I64, {n}); };
    const auto counts = numbers(local_experts), offsets = numbers(local_experts + 1);
    const auto sources = numbers(kRanks), total = numbers(1), demand = numbers(1);
    const auto sent = numbers(1);
    auto plan = make_args<dropless_exchange_plan_args>();
    plan.exchange = opening.exchange;
    plan.ids = mine.ids->tensor(), plan.tokens_per_local_expert = counts->tensor();
    plan.offsets = offsets->tensor(), plan.rows_per_source = sources->tensor();
    plan.total_rows = total->tensor(), plan.demand = demand->tensor();
    plan.sent_bytes = sent->tensor();
    call_operation(table_, 1, table_.exchange_plan, plan);
    if (2 * *sent->as<Index>() != plan_rows_[at(settings.rank)] * kRowBytes) {
      throw std::runtime_error("sent_bytes of the plan are not those of the ids");
    }

    const Index rows = capacity.capacity;
    mine.x = bench_tensor(DROPLESS_BF16, {kTokens, kHidden}, Pages::huge);
    mine.weights = bench_tensor(DROPLESS_FP32, {kTokens, kTopK});
    fill_normal(*mine.x, Random(at(settings.rank) + 1));
    fill_normal(*mine.weights, Random(at(settings.rank) + 11));
    mine.rows = bench_tensor(DROPLESS_BF16, {rows, kHidden}, Pages::huge);
    mine.copy = bench_tensor(DROPLESS_BF16, {rows, kHidden}, Pages::huge);
    mine.y = bench_tensor(DROPLESS_BF16, {kTokens, kHidden}, Pages::huge);
    mine.row_weights = bench_tensor(DROPLESS_FP32, flat_ ? Shape{rows, kTopK} : Shape{rows});
    mine.row_ids = bench_tensor(DROPLESS_I32, {rows, kTopK});
    mine.exchange = opening.exchange;
  }

  void dispatch(const BenchRank& mine) const {
    auto args = make_args<dropless_exchange_dispatch_args>();
    args.exchange = mine.exchange;
    args.x = mine.x->tensor(), args.weights = mine.weights->tensor();
    args.rows = mine.rows->tensor(), args.row_weights = mine.row_weights->tensor();
    if (flat_) args.row_ids = mine.row_ids->tensor();
    call_operation(table_, 1, table_.exchange_dispatch, args);
  }

  void combine(const BenchRank& mine) const {
    auto args = make_args<dropless_exchange_combine_args>();
    args.exchange = mine.exchange;
    args.rows = mine.rows->tensor(), args.y = mine.y->tensor();
    if (table_.profile->combine_weighting == DROPLESS_COMBINE_WEIGHTED) {
      args.row_weights = mine.row_weights->tensor();
    }
    call_operation(table_, 1, table_.exchange_combine, args);
  }

  const dropless_implementation& table_;
  bool flat_;
  std::vector<BenchRank> ranks_;
  std::vector<std::vector<Index>> ids_;
  std::vector<Index> plan_rows_, least_rows_;
};

}  // namespace

void add_exchange(std::vector<Comparison>& all, const dropless_implementation& implementation,
                  std::vector<std::string>& not_offered) {
  if (implementation.exchange_open == nullptr) {
    not_offered.emplace_back("exchange");
    return;
  }
  const int layout = implementation.profile->dispatch_layout;
  const bool flat = layout == DROPLESS_DISPATCH_FLAT || layout == DROPLESS_DISPATCH_UNORDERED_FLAT;
  const std::string name = flat ? "exchange.flat" : "exchange.expert_major";
  const auto group = std::make_shared<BenchExchange>(implementation, flat);
  const auto add = [&](const std::string& what, bool dispatches, bool combines,
                       const std::vector<Index>& rows, const std::string& peer, double target) {
    Comparison one;
    one.name = name + what;
    one.what = fmt::format("R={} as threads, T={} each, K={} E={} H={} bf16, random ids", kRanks,
                           kTokens, kTopK, kExperts, kHidden);
    one.peer_name = fmt::format("memcpy of {}, {} threads", peer, kRanks);
    Index sum = 0;
    for (const Index each : rows) sum += each;
    one.bytes = one.peer_bytes = static_cast<double>(sum * kRowBytes * 2);
    one.operation = [=] { group->run(dispatches, combines); };
    one.peer = [=] { group->copy(rows); };
    one.target_ratio = target;
    all.push_back(one);
  };
  std::vector<Index> one_way = group->plan_rows();
  for (Index& rows : one_way) rows /= 2;
  add(".dispatch", true, false, one_way, "the plan bytes", 0);
  add(".combine", false, true, one_way, "the plan bytes", 0);
  add(".both", true, true, group->plan_rows(), "the plan bytes", 0.5);
  add(".both_by_traffic", true, true, group->least_rows(), "the least traffic", 0);
}

}  // namespace dropless::conformance
