// SPDX-License-Identifier: Apache-2.0
// One handle of an exchange, all ranks at once: which plan is in force, and when an overflow is
// seen (EXCHANGE-10, 11, 12).
//
//     ExchangeHandle handle(profile, settings);
//     const PlanOutcome outcome = handle.plan(ids_of_ranks, step);
//     if (handle.state() == HandleState::delivers) dispatch_rows(handle.plan_in_force(), ...);
#pragma once

#include <optional>

#include "reference/exchange_plan.h"

namespace dropless::reference {

// The check of every n-th step (EXCHANGE-11): after step i when (i + 1) % n == 0 or i is the last.
// Calls without a check remember the first overflow; the check reports it and forgets it.
class OverflowWatch {
 public:
  explicit OverflowWatch(Index every) : every_(every == 0 ? 1 : every) {}

  struct Report {
    bool checked = false;
    Index first_overflow_step = -1;  // since the last check; -1: none, or not looked for
    Index unseen_steps = 0;          // from the first overflow up to, without, the checked step
    Index demand = 0;  // of this call; with an overflow reported, the largest since the last check
  };
  Report look(Index step, bool last_step, Index demand, bool overflow);

 private:
  Index every_;
  Index first_overflow_step_ = -1;
  Index largest_demand_ = 0;
};

enum class HandleState {
  unplanned,  // dispatch and combine are refused
  delivers,
  silent,   // policy error, overflow not yet seen: they succeed and write nothing
  refused,  // policy error after DROPLESS_OVERFLOW: they are refused until the next plan
  trapped   // policy trap: the process of an implementation is gone
};

struct PlanOutcome {
  dropless_status status = DROPLESS_OK;
  OverflowWatch::Report report;
};

class ExchangeHandle {
 public:
  // Throws Refused as exchange_topology and exchange_capacity do.
  ExchangeHandle(const dropless_profile& profile, const ExchangeSettings& settings);

  // A new plan replaces the old one entirely. A refused one (throws Refused) leaves it in force.
  PlanOutcome plan(RankIds ids, Index step = 0, bool last_step = false);

  [[nodiscard]] HandleState state() const { return state_; }
  [[nodiscard]] Index capacity() const { return capacity_; }  // EXCHANGE-9, whatever the policy
  // Throws Refused unless the state is delivers, ExchangeOverflow when an overflow is the reason.
  [[nodiscard]] const ExchangePlan& plan_in_force() const;

 private:
  dropless_profile profile_;
  ExchangeSettings settings_;
  Index capacity_;
  OverflowWatch watch_;
  HandleState state_ = HandleState::unplanned;
  std::optional<ExchangePlan> plan_;
};

}  // namespace dropless::reference
