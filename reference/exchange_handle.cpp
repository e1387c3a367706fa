// SPDX-License-Identifier: Apache-2.0
// The plan in force and the overflow check of every n-th step: EXCHANGE-10, 11, 12.
#include "reference/exchange_handle.h"

#include <algorithm>

#include "reference/exchange_capacity.h"

namespace dropless::reference {

OverflowWatch::Report OverflowWatch::look(Index step, bool last_step, Index demand, bool overflow) {
  if (step < 0) throw Refused("step " + std::to_string(step) + " is negative");
  if (overflow && first_overflow_step_ < 0) first_overflow_step_ = step;
  largest_demand_ = std::max(largest_demand_, demand);
  Report report;
  report.checked = last_step || (step + 1) % every_ == 0;
  report.demand = demand;
  if (!report.checked) return report;
  report.first_overflow_step = first_overflow_step_;
  if (first_overflow_step_ >= 0) {
    report.unseen_steps = step - first_overflow_step_;
    report.demand = largest_demand_;
  }
  first_overflow_step_ = -1;
  largest_demand_ = 0;
  return report;
}

ExchangeHandle::ExchangeHandle(const dropless_profile& profile, const ExchangeSettings& settings)
    : profile_(profile),
      settings_(settings),
      capacity_(exchange_capacity(profile, settings)),
      watch_(settings.overflow_check_every) {}

PlanOutcome ExchangeHandle::plan(RankIds ids, Index step, bool last_step) {
  ExchangePlan next = exchange_plan(profile_, settings_, ids, capacity_);
  PlanOutcome outcome;
  outcome.report = watch_.look(step, last_step, next.demand, next.overflow);
  plan_.reset();
  if (profile_.overflow_policy == DROPLESS_OVERFLOW_TRAP && next.overflow) {
    state_ = HandleState::trapped;
    return outcome;
  }
  // An overflow that only this check makes known ends in an error even if this step fits.
  if (profile_.overflow_policy == DROPLESS_OVERFLOW_ERROR &&
      outcome.report.first_overflow_step >= 0) {
    outcome.status = DROPLESS_OVERFLOW;
    state_ = HandleState::refused;
    return outcome;
  }
  state_ = next.delivers() ? HandleState::delivers : HandleState::silent;
  plan_ = std::move(next);
  return outcome;
}

const ExchangePlan& ExchangeHandle::plan_in_force() const {
  if (state_ == HandleState::unplanned) throw Refused("the handle has no plan yet");
  if (state_ != HandleState::delivers) throw ExchangeOverflow("the last plan overflowed");
  return *plan_;
}

}  // namespace dropless::reference
