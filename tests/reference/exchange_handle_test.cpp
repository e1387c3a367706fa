// SPDX-License-Identifier: Apache-2.0
// Policies from step to step: EXCHANGE-10, 11, 12.
#include "reference/exchange_handle.h"

#include <gtest/gtest.h>

#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::List;

using Report = OverflowWatch::Report;

void expect_report(const Report& report, bool checked, Index first, Index unseen, Index demand) {
  EXPECT_EQ(report.checked, checked);
  EXPECT_EQ(report.first_overflow_step, first);
  EXPECT_EQ(report.unseen_steps, unseen);
  EXPECT_EQ(report.demand, demand);
}

TEST(OverflowWatch, EveryStep) {
  for (const Index every : {0, 1}) {
    OverflowWatch watch(every);
    expect_report(watch.look(0, false, 5, false), true, -1, 0, 5);
    expect_report(watch.look(1, false, 9, true), true, 1, 0, 9);
    expect_report(watch.look(2, false, 4, false), true, -1, 0, 4);  // forgotten
  }
}

TEST(OverflowWatch, EveryFourthStep) {
  OverflowWatch watch(4);
  expect_report(watch.look(0, false, 5, false), false, -1, 0, 5);
  expect_report(watch.look(1, false, 9, true), false, -1, 0, 9);
  expect_report(watch.look(2, false, 8, true), false, -1, 0, 8);
  expect_report(watch.look(3, false, 3, false), true, 1, 2, 9);  // steps 1 and 2 went unseen
  // On the first step of a period, and on its last.
  expect_report(watch.look(4, false, 7, true), false, -1, 0, 7);
  expect_report(watch.look(5, false, 1, false), false, -1, 0, 1);
  expect_report(watch.look(6, false, 1, false), false, -1, 0, 1);
  expect_report(watch.look(7, false, 1, false), true, 4, 3, 7);
  for (Index step = 8; step < 11; ++step) watch.look(step, false, 2, false);
  expect_report(watch.look(11, false, 6, true), true, 11, 0, 6);
  // The last step of the run is checked, wherever it lies in its period.
  expect_report(watch.look(12, false, 6, true), false, -1, 0, 6);
  expect_report(watch.look(13, true, 2, false), true, 12, 1, 6);
  testing::expect_refused([&] { watch.look(-1, false, 0, false); }, "step -1");
}

TEST(OverflowWatch, PeriodLongerThanTheRun) {
  OverflowWatch watch(20);
  for (Index step = 0; step < 14; ++step) {
    EXPECT_FALSE(watch.look(step, false, 1, step == 3).checked);
  }
  expect_report(watch.look(14, true, 1, false), true, 3, 11, 1);
}

// Two ranks with one expert each, factor 1: two rows fit.
struct TwoRows {
  ExchangeSettings settings;
  std::vector<List> fits = {{0, 1}, {1, 0}}, too_many = {{1, 1}, {1}};

  explicit TwoRows(Index every = 0) : settings(exchange_settings(2, 2, 1, 2)) {
    settings.ragged_buffer_factor = 1;
    settings.overflow_check_every = every;
  }
  [[nodiscard]] ExchangeHandle open(int policy) const {
    return {exchange_profile(DROPLESS_DISPATCH_FLAT, 1, policy), settings};
  }
};

TEST(ExchangeHandle, ErrorRefusesUntilTheNextPlan) {
  const TwoRows two;
  ExchangeHandle handle = two.open(DROPLESS_OVERFLOW_ERROR);
  EXPECT_EQ(handle.capacity(), 2);
  EXPECT_EQ(handle.state(), HandleState::unplanned);
  testing::expect_refused([&] { (void)handle.plan_in_force(); }, "no plan yet");
  EXPECT_EQ(handle.plan(testing::views(two.fits)).status, DROPLESS_OK);
  EXPECT_EQ(handle.plan_in_force().demand, 2);
  const PlanOutcome outcome = handle.plan(testing::views(two.too_many));
  EXPECT_EQ(outcome.status, DROPLESS_OVERFLOW);
  EXPECT_EQ(outcome.report.demand, 3);
  EXPECT_EQ(handle.state(), HandleState::refused);
  EXPECT_THROW((void)handle.plan_in_force(), ExchangeOverflow);
  EXPECT_EQ(handle.plan(testing::views(two.fits)).status, DROPLESS_OK);
  EXPECT_EQ(handle.plan_in_force().received[0].rows_per_source, (List{1, 1}));
}

TEST(ExchangeHandle, ErrorIsSeenAtTheCheck) {
  const TwoRows two(3);
  ExchangeHandle handle = two.open(DROPLESS_OVERFLOW_ERROR);
  EXPECT_EQ(handle.plan(testing::views(two.too_many), 0).status, DROPLESS_OK);
  EXPECT_EQ(handle.state(), HandleState::silent);
  EXPECT_THROW((void)handle.plan_in_force(), ExchangeOverflow);
  EXPECT_EQ(handle.plan(testing::views(two.fits), 1).status, DROPLESS_OK);
  EXPECT_EQ(handle.state(), HandleState::delivers);
  const PlanOutcome outcome = handle.plan(testing::views(two.fits), 2);
  EXPECT_EQ(outcome.status, DROPLESS_OVERFLOW);  // although this step fits
  expect_report(outcome.report, true, 0, 2, 3);
  EXPECT_EQ(handle.state(), HandleState::refused);
  EXPECT_EQ(handle.plan(testing::views(two.fits), 2).status, DROPLESS_OK);  // the same step again
}

TEST(ExchangeHandle, OtherPolicies) {
  const TwoRows two(5);
  ExchangeHandle trap = two.open(DROPLESS_OVERFLOW_TRAP);
  trap.plan(testing::views(two.too_many), 0);  // a trap does not wait for the check
  EXPECT_EQ(trap.state(), HandleState::trapped);
  EXPECT_THROW((void)trap.plan_in_force(), ExchangeOverflow);

  ExchangeHandle drop = two.open(DROPLESS_OVERFLOW_DROP);
  EXPECT_EQ(drop.plan(testing::views(two.too_many), 0).status, DROPLESS_OK);
  EXPECT_EQ(drop.plan_in_force().received[1].rows(), 2);
  EXPECT_EQ(drop.plan_in_force().received[1].dropped_pairs, 1);
  const PlanOutcome reported = drop.plan(testing::views(two.fits), 4);
  EXPECT_EQ(reported.status, DROPLESS_OK);
  expect_report(reported.report, true, 0, 4, 3);

  ExchangeHandle retry = two.open(DROPLESS_OVERFLOW_RETRY);
  const PlanOutcome grown = retry.plan(testing::views(two.too_many), 4);
  expect_report(grown.report, true, -1, 0, 3);
  EXPECT_EQ(retry.plan_in_force().received[1].rows(), 3);
}

TEST(ExchangeHandle, ARefusedPlanLeavesTheOldOne) {
  const TwoRows two;
  ExchangeHandle handle = two.open(DROPLESS_OVERFLOW_ERROR);
  handle.plan(testing::views(two.fits));
  const std::vector<List> illegal = {{0, 2}, {}};
  testing::expect_refused([&] { handle.plan(testing::views(illegal)); }, "id 2 at rank 0");
  EXPECT_EQ(handle.plan_in_force().received[1].rows_per_source, (List{1, 1}));
  // A smaller one replaces it entirely.
  const std::vector<List> smaller = {{}, {1}};
  handle.plan(testing::views(smaller));
  EXPECT_EQ(handle.plan_in_force().received[0].rows(), 0);
  EXPECT_EQ(handle.plan_in_force().received[1].rows_per_source, (List{0, 1}));
  EXPECT_EQ(handle.plan_in_force().global_counts, (List{0, 1}));
}

}  // namespace
}  // namespace dropless::reference
