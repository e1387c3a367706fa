// SPDX-License-Identifier: Apache-2.0
// What faults of the exchange share: what is known about each rank's handle and about its group.
// Ranks are threads of one process, as the reference has them.
//
//     Exchanges exchanges(planted);
//     exchanges.settings([](dropless_exchange_settings& s) { s.placement = nullptr; });
//     exchanges.after<&Table::exchange_plan>([](auto& a, Seat& seat) {
//       store(a.demand, seat.received().demand);
//     });
//
// A call that one rank leaves out ends for the others by the reference's own time-out or refusal.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "reference/exchange.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

void add_exchange_plans(std::vector<Fault>& faults);
void add_exchange_overflows(std::vector<Fault>& faults);
void add_exchange_rows(std::vector<Fault>& faults);
void add_exchange_sums(std::vector<Fault>& faults);
void add_exchange_handles(std::vector<Fault>& faults);
void add_exchange_later(std::vector<Fault>& faults);

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// What the ranks of one handle know of each other.
struct Group {
  std::mutex mutex;
  std::map<Index, std::map<Index, std::vector<Index>>> ids;  // of a plan's number, of a rank
  std::map<Index, std::map<Index, std::chrono::steady_clock::time_point>> arrivals;
};

// One rank's handle. Used by its own thread only.
struct Seat {
  Index rank = 0, ranks = 1, experts = 1, top_k = 1;
  Index slots = 1;        // L
  Index token_bytes = 0;  // row_bytes + scale_bytes
  Index every = 1;        // steps between checks for an overflow
  reference::ExchangeSettings settings;
  dropless_profile profile;  // the declared one
  std::shared_ptr<Group> group;

  Index plans = 0, calls = 0;  // made so far
  bool planned = false;        // there is a plan in force
  std::vector<Index> ids;      // of this rank in it
  // What a fault keeps from one call to the next.
  std::vector<double> values;
  std::vector<Index> numbers;
  std::vector<std::unique_ptr<Copy>> copies;
  Index mark = -1;

  [[nodiscard]] Index tokens() const { return static_cast<Index>(ids.size()) / top_k; }
  // The right plan of all ranks for the ids of the last call of exchange_plan; every rank must have
  // made it.
  const reference::ExchangePlan& plan();
  // False before the first plan, and after one that overflowed and is not dropped.
  bool delivers() { return planned && plan().delivers(); }
  const reference::ReceivedRows& received() { return plan().received[at(rank)]; }
  // Source rank and token of each row in use, -1 for padding [rows, 2].
  std::vector<Index> sources() { return reference::dispatch_sources(plan(), rank); }
  // Remembers that this rank begins a call now; its number.
  Index arrive();
  // By how many seconds the other rank began the call after this one. Both must have begun it.
  [[nodiscard]] double wait_for(Index call, Index other) const;
  // By how many seconds this rank was the last of all; 0 or less when it wasn't.
  [[nodiscard]] double lateness(Index call) const;

  // For Exchanges.
  void begin_plan(const dropless_tensor* asked);
  void end_plan(dropless_status status);

 private:
  Index number_ = -1, number_in_force_ = -1;  // of plans
  std::optional<reference::ExchangePlan> plan_;
};

class Seats {
 public:
  using Change = std::function<void(dropless_exchange_settings&)>;
  explicit Seats(const dropless_profile& profile) : profile_(profile) {}
  dropless_status open(const Next<&Table::exchange_open>& next, dropless_exchange_open_args& args,
                       const Change& change);
  // Null for a handle that nobody opened here.
  std::shared_ptr<Seat> find(const dropless_exchange* exchange);
  void forget(const dropless_exchange* exchange);

 private:
  const dropless_profile& profile_;
  std::mutex mutex_;
  std::map<const dropless_exchange*, std::shared_ptr<Seat>> seats_;
};

// The operations of the exchange, each with the seat of the handle that it is called on. One
// wrapper per operation whatever the fault: its body is a std::function.
class Exchanges {
 public:
  template <auto entry>
  using Args = typename Operation<entry>::Args;
  template <auto entry>
  using Body = std::function<dropless_status(const Next<entry>&, Args<entry>&, Seat&)>;
  template <auto entry>
  using Edit = std::function<void(Args<entry>&, Seat&)>;

  explicit Exchanges(Planted& planted);

  // What every handle is opened with instead; the seats know the settings of the caller.
  void settings(const Seats::Change& change);
  // Whoever waits in vain gives up after a second, so that a hunt does not take long.
  void impatient();

  // fault(next, args, seat) instead of the operation.
  template <auto entry>
  void around(Body<entry> fault);
  // The operation and, when it succeeded, fault(args, seat); of a dispatch, a combine or a backward
  // pass only where the plan in force delivers.
  template <auto entry>
  void after(Edit<entry> fault) {
    around<entry>([fault](const auto& next, auto& args, Seat& seat) {
      const dropless_status status = next(args);
      const bool moves = !std::is_same_v<Args<entry>, dropless_exchange_plan_args>;
      if (status == DROPLESS_OK && (!moves || seat.delivers())) fault(args, seat);
      return status;
    });
  }

 private:
  Planted& planted_;
  std::shared_ptr<Seats> seats_;
};

// Instantiated in exchanges.cpp for every operation on an open exchange.
extern template void Exchanges::around<&Table::exchange_plan>(Body<&Table::exchange_plan>);
extern template void Exchanges::around<&Table::exchange_dispatch>(Body<&Table::exchange_dispatch>);
extern template void Exchanges::around<&Table::exchange_combine>(Body<&Table::exchange_combine>);
extern template void Exchanges::around<&Table::exchange_dispatch_backward>(
    Body<&Table::exchange_dispatch_backward>);
extern template void Exchanges::around<&Table::exchange_combine_backward>(
    Body<&Table::exchange_combine_backward>);
extern template void Exchanges::around<&Table::exchange_close>(Body<&Table::exchange_close>);

// A one-element output; nothing when it is not asked for.
void store(const dropless_tensor* scalar, Index value);
Index stored(const dropless_tensor* scalar);

// Outputs of a dispatch that have one row per row: payload, scales, weights, ids, sources.
std::vector<const dropless_tensor*> row_outputs(const dropless_exchange_dispatch_args& args);
// Elements of one row of a tensor [N] or [N, columns].
Index row_width(const TensorView& tensor);
void copy_row(const TensorView& from, Index source, const TensorView& to, Index target);
void clear_row(const TensorView& to, Index row);
// Row r becomes what row order[r] was, in all outputs of a dispatch.
void reorder_rows(const dropless_exchange_dispatch_args& args, const std::vector<Index>& order);

}  // namespace dropless::faults
