// SPDX-License-Identifier: Apache-2.0
// EXCHANGE-10 and 11 by hand: overflow at the capacity exactly and one above, under every policy.
#include <gtest/gtest.h>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

using Values = std::vector<Index>;
constexpr Index tokens = 6;  // of each of two ranks; experts 0, 1 on rank 0 and 2, 3 on rank 1

// Factor 1 and K = 1 make the capacity 6 rows. `to_first` tokens of each rank go to rank 0.
Array ids_with(Index to_first) {
  std::vector<double> ids;
  for (Index t = 0; t < tokens; ++t) {
    ids.push_back(t < to_first ? static_cast<double>(t % 2) : 2);
  }
  return Array(DROPLESS_I32, {tokens, 1}).set(ids);
}

// Runs body(rank) on two ranks with a factor of 1.
void two_ranks(dropless_profile profile, Index every, const std::function<void(Rank&)>& body) {
  const auto gathering = make_gathering(2);
  run_threads(2, [&](int r) {
    Rank rank(profile, r, 2, *gathering);
    rank.settings.num_experts = 4, rank.settings.top_k = 1, rank.settings.max_tokens = tokens;
    rank.settings.ragged_buffer_factor = 1;
    rank.settings.overflow_check_every = every;
    const Outcome opened = rank.open();
    ASSERT_EQ(opened.status, DROPLESS_OK) << opened.message;
    body(rank);
  });
}

dropless_profile with_policy(int policy, bool expert_major) {
  dropless_profile profile = default_profile();
  profile.overflow_policy = policy;
  profile.dispatch_layout = expert_major ? DROPLESS_DISPATCH_EXPERT_MAJOR : DROPLESS_DISPATCH_FLAT;
  return profile;
}

Array numbered(int rank) {
  Array x(DROPLESS_FP32, {tokens, 1});
  for (Index t = 0; t < tokens; ++t) {
    x.view().store_flat(100 * (rank + 1) + static_cast<double>(t), t);
  }
  return x;
}

TEST(Overflow, ErrorAtOneAboveAndNotAtTheCapacity) {
  for (const bool expert_major : {false, true}) {
    two_ranks(with_policy(DROPLESS_OVERFLOW_ERROR, expert_major), 0, [](Rank& rank) {
      const PlanResult exact = rank.plan(ids_with(3));
      EXPECT_EQ(exact.outcome.status, DROPLESS_OK);
      EXPECT_EQ(exact.demand, 6);
      EXPECT_EQ(exact.checked, 1);

      // 2 * 4 rows on rank 0; rank 1 hears of it too, and nothing else is written.
      const PlanResult over = rank.plan(ids_with(4));
      EXPECT_EQ(over.outcome.status, DROPLESS_OVERFLOW);
      EXPECT_NE(over.outcome.message.find("needs 8 rows, the capacity is 6"), std::string::npos);
      EXPECT_EQ(over.demand, 8);
      EXPECT_EQ(over.checked, 1);
      EXPECT_EQ(over.total, -77);
      EXPECT_EQ(over.pairs, (Values{-77, -77}));
      EXPECT_EQ(over.sent_bytes, -77);
      const Array rows = Array(DROPLESS_FP32, {12, 1}).fill(-5), y = numbered(9);
      const auto before = rows.bytes();
      EXPECT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OVERFLOW);
      EXPECT_EQ(rank.combine(rows, y).status, DROPLESS_OVERFLOW);
      EXPECT_EQ(rows.bytes(), before);
      EXPECT_EQ(y.bytes(), numbered(9).bytes());

      const PlanResult again = rank.plan(ids_with(3));
      EXPECT_EQ(again.outcome.status, DROPLESS_OK);
      EXPECT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OK);
    });
  }
}

// Flat: rows beyond the capacity. Tokens 0 to 3 of both ranks go to rank 0: 2 of the second's fit.
TEST(Overflow, DropInTheFlatLayout) {
  two_ranks(with_policy(DROPLESS_OVERFLOW_DROP, false), 0, [](Rank& rank) {
    const bool first = rank.rank() == 0;
    const PlanResult p = rank.plan(ids_with(4));
    EXPECT_EQ(p.outcome.status, DROPLESS_OK);
    EXPECT_EQ(p.demand, 8);
    EXPECT_EQ(p.total, first ? 6 : 4);
    EXPECT_EQ(p.rows_per_source, first ? (Values{4, 2}) : (Values{2, 2}));
    EXPECT_EQ(p.pairs, first ? (Values{3, 3}) : (Values{4, 0}));
    EXPECT_EQ(p.offsets, first ? (Values{0, 3, 6}) : (Values{0, 4, 4}));
    EXPECT_EQ(p.dropped, first ? 2 : 0);
    EXPECT_EQ(p.global_counts, (Values{4, 4, 4, 0}));
    const Array rows = Array(DROPLESS_FP32, {7, 1}).fill(-5);
    ASSERT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OK);
    EXPECT_EQ(rows.values(), first ? (std::vector<double>{100, 101, 102, 103, 200, 201, -5})
                                   : (std::vector<double>{104, 105, 204, 205, -5, -5, -5}));
    const Array y = Array(DROPLESS_FP32, {tokens, 1}).fill(-5);
    ASSERT_EQ(rank.combine(rows, y).status, DROPLESS_OK);
    EXPECT_EQ(y.values(), first ? (std::vector<double>{100, 101, 102, 103, 104, 105})
                                : (std::vector<double>{200, 201, 0, 0, 204, 205}));
    const Array d_row_weights = Array(DROPLESS_FP32, {7, 1}).fill(3);
    const Array d_x = Array(DROPLESS_FP32, {tokens, 1}).fill(-5);
    const Array d_weights = Array(DROPLESS_FP32, {tokens, 1}).fill(-5);
    ASSERT_EQ(rank.dispatch_backward(rows, d_x, &d_row_weights, &d_weights).status, DROPLESS_OK);
    EXPECT_EQ(d_x.values(), y.values());
    EXPECT_EQ(d_weights.values(), first ? (std::vector<double>{3, 3, 3, 3, 3, 3})
                                        : (std::vector<double>{3, 3, 0, 0, 3, 3}));
  });
}

// Experts in order: expert 0 takes its 6 rows (aligned to 16 at a capacity of 16 rows: all of it),
// expert 1 starves.
TEST(Overflow, DropStarvesLaterExperts) {
  dropless_profile profile = with_policy(DROPLESS_OVERFLOW_DROP, true);
  two_ranks(profile, 0, [](Rank& rank) {
    const bool first = rank.rank() == 0;
    const PlanResult p = rank.plan(ids_with(6));  // 3 of each rank to expert 0, 3 to expert 1
    EXPECT_EQ(p.demand, 12);
    EXPECT_EQ(p.total, first ? 6 : 0);
    EXPECT_EQ(p.pairs, first ? (Values{6, 0}) : (Values{0, 0}));
    EXPECT_EQ(p.dropped, first ? 6 : 0);
    EXPECT_EQ(p.sent_bytes, first ? 0 : 3 * ((1 << 20) + (1 << 10)));  // what still moves
    const Array rows = Array(DROPLESS_FP32, {6, 1}).fill(-5);
    ASSERT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OK);
    if (first) {
      EXPECT_EQ(rows.values(), (std::vector<double>{100, 102, 104, 200, 202, 204}));
    }
    const Array y = Array(DROPLESS_FP32, {tokens, 1}).fill(-5);
    ASSERT_EQ(rank.combine(rows, y).status, DROPLESS_OK);
    const double own = 100 * (rank.rank() + 1);
    EXPECT_EQ(y.values(), (std::vector<double>{own, 0, own + 2, 0, own + 4, 0}));
  });
  profile.alignment = 16;
  two_ranks(profile, 0, [](Rank& rank) {
    const PlanResult p = rank.plan(ids_with(6));  // capacity 2 * up(3) = 32 rows: all fit
    EXPECT_EQ(p.demand, 32);
    EXPECT_EQ(p.dropped, 0);
  });
}

TEST(Overflow, RetryGivesTheTrueRowCount) {
  two_ranks(with_policy(DROPLESS_OVERFLOW_RETRY, false), 0, [](Rank& rank) {
    const PlanResult p = rank.plan(ids_with(6));
    EXPECT_EQ(p.outcome.status, DROPLESS_OK);
    EXPECT_EQ(p.demand, 12);
    EXPECT_EQ(p.total, rank.rank() == 0 ? 12 : 0);
    EXPECT_EQ(p.first_overflow, -1);
    const Array rows(DROPLESS_FP32, {p.total, 1});
    EXPECT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OK);
  });
}

TEST(Overflow, TrapEndsTheProcess) {
  const auto gathering = make_gathering(2);
  const auto result = run_processes(2, [&](int r) -> std::string {
    Rank rank(with_policy(DROPLESS_OVERFLOW_TRAP, false), r, 2, *gathering);
    rank.settings.num_experts = 4, rank.settings.top_k = 1, rank.settings.max_tokens = tokens;
    rank.settings.ragged_buffer_factor = 1;
    if (const Outcome o = rank.open(); o.status != DROPLESS_OK) return o.message;
    if (rank.plan(ids_with(3)).outcome.status != DROPLESS_OK) return "no room for what fits";
    static_cast<void>(rank.plan(ids_with(4)));
    return "went on";
  });
  for (const std::string& each : result) EXPECT_EQ(each, "signal 4");  // an illegal instruction
}

// A check after every third step. On a step without one nothing is said and nothing moves.
TEST(Overflow, IsFoundByTheNextCheck) {
  two_ranks(with_policy(DROPLESS_OVERFLOW_ERROR, false), 3, [](Rank& rank) {
    const Array rows = Array(DROPLESS_FP32, {12, 1}).fill(-5);
    const PlanResult quiet = rank.plan(ids_with(3), 0);
    EXPECT_EQ(quiet.checked, 0);
    const PlanResult unseen = rank.plan(ids_with(5), 1);
    EXPECT_EQ(unseen.outcome.status, DROPLESS_OK);
    EXPECT_EQ(unseen.checked, 0);
    EXPECT_EQ(unseen.first_overflow, -1);
    EXPECT_EQ(rank.dispatch(numbered(rank.rank()), rows).status, DROPLESS_OK);
    const Array y = numbered(9);
    EXPECT_EQ(rank.combine(rows, y).status, DROPLESS_OK);
    EXPECT_EQ(rows.values(), std::vector<double>(12, -5));
    EXPECT_EQ(y.bytes(), numbered(9).bytes());
    // Step 2 fits, but step 1 did not: the check says so.
    const PlanResult found = rank.plan(ids_with(3), 2);
    EXPECT_EQ(found.outcome.status, DROPLESS_OVERFLOW);
    EXPECT_EQ(found.checked, 1);
    EXPECT_EQ(found.first_overflow, 1);
    EXPECT_EQ(found.unseen, 1);
    EXPECT_EQ(found.demand, 10);
    // The window begins anew; the last step is checked whatever the period.
    const PlanResult last = rank.plan(ids_with(4), 3, true);
    EXPECT_EQ(last.outcome.status, DROPLESS_OVERFLOW);
    EXPECT_EQ(last.first_overflow, 3);
    EXPECT_EQ(last.unseen, 0);
    EXPECT_EQ(rank.plan(ids_with(3), 4).outcome.status, DROPLESS_OK);
    const PlanResult clean = rank.plan(ids_with(3), 5);
    EXPECT_EQ(clean.checked, 1);
    EXPECT_EQ(clean.first_overflow, -1);
    EXPECT_EQ(clean.unseen, 0);
  });
}

}  // namespace
}  // namespace dropless::cpu::testing
