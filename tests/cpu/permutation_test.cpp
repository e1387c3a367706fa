// SPDX-License-Identifier: Apache-2.0
// Permutation by hand: plans, copies with and without strides, sums and their gradients.
#include <gtest/gtest.h>

#include <limits>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

using Values = std::vector<double>;

struct Plan {
  Plan(Index tokens, Index top_k, Index experts, Index rows)
      : counts(DROPLESS_I64, {experts}),
        offsets(DROPLESS_I64, {experts + 1}),
        row_map(DROPLESS_I64, {tokens, top_k}),
        source(DROPLESS_I64, {rows}),
        demand(DROPLESS_I64, {1}) {
    source.fill(-7);
  }
  Array counts, offsets, row_map, source, demand;
};

Plan make_plan(const Array& ids, Index experts, Index rows, Index capacity = -1) {
  Plan plan(ids.get()->shape[0], ids.get()->shape[1], experts, rows);
  auto args = make_args<dropless_permute_plan_args>();
  args.num_experts = experts, args.row_capacity = capacity, args.ids = ids.get();
  args.tokens_per_expert = plan.counts.get(), args.offsets = plan.offsets.get();
  args.row_map = plan.row_map.get(), args.source = plan.source.get();
  args.demand = plan.demand.get();
  const Outcome outcome = perform(implementation().permute_plan, args);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return plan;
}

const Array& example() {
  static const Array ids = Array(DROPLESS_I32, {3, 2}).set({2, 0, 0, -1, 2, 1});
  return ids;
}

TEST(Permutation, PlanByHand) {
  const Plan plan = make_plan(example(), 3, 7);
  EXPECT_EQ(plan.counts.values(), (Values{2, 1, 2}));
  EXPECT_EQ(plan.offsets.values(), (Values{0, 2, 3, 5}));
  EXPECT_EQ(plan.row_map.values(), (Values{3, 0, 1, -1, 4, 2}));
  EXPECT_EQ(plan.source.values(), (Values{1, 2, 5, 0, 4, -7, -7}));
  EXPECT_EQ(plan.demand.at(0), 5);
}

TEST(Permutation, CapacityCutsTheLastRows) {
  const Plan plan = make_plan(example(), 3, 4, 4);
  EXPECT_EQ(plan.counts.values(), (Values{2, 1, 1}));
  EXPECT_EQ(plan.offsets.values(), (Values{0, 2, 3, 4}));
  EXPECT_EQ(plan.row_map.values(), (Values{3, 0, 1, -1, -1, 2}));
  EXPECT_EQ(plan.demand.at(0), 5);
}

TEST(Permutation, ManyTokensGiveABijectionInOrder) {
  const Index tokens = 5000, top_k = 3, experts = 17;
  const Array ids = random_ids(tokens, top_k, experts, 5);
  const Plan plan = make_plan(ids, experts, tokens * top_k);
  Index row = 0;
  for (Index e = 0; e < experts; ++e) {
    Index before = -1;
    for (; row < plan.offsets.at(e + 1); ++row) {
      const Index pair = static_cast<Index>(plan.source.at(row));
      ASSERT_GT(pair, before);
      ASSERT_EQ(ids.at(pair), e);
      ASSERT_EQ(plan.row_map.at(pair), row);
      before = pair;
    }
  }
  EXPECT_EQ(row, tokens * top_k);
}

// A zone of three rows, the last one padding; rows with gaps; weights and scales that travel.
TEST(Permutation, RowsAndTheirCompanionsMove) {
  const Array x = Array(DROPLESS_BF16, {2, 3}, 5).set({1, 2, 3, 4, 5, 6});
  const Array offsets = Array(DROPLESS_I64, {2}).set({0, 3});
  const Array row_map = Array(DROPLESS_I64, {2, 1}).set({1, 0});
  const Array source = Array(DROPLESS_I64, {4}).set({1, 0, -1, -9});
  const Array weights = Array(DROPLESS_FP32, {2, 1}).set({0.5, 0.25});
  const Array scales = Array(DROPLESS_U8, {2, 2}).set({1, 2, 3, 4});
  const Array rows = Array(DROPLESS_BF16, {4, 3}, 2).fill(9);
  const Array row_weights = Array(DROPLESS_FP32, {4}).fill(9);
  const Array row_scales = Array(DROPLESS_U8, {4, 2}).fill(9);
  auto args = make_args<dropless_permute_args>();
  args.offsets = offsets.get(), args.row_map = row_map.get(), args.source = source.get();
  args.x = x.get(), args.weights = weights.get(), args.scales = scales.get();
  args.rows = rows.get(), args.row_weights = row_weights.get();
  args.row_scales = row_scales.get();
  ASSERT_EQ(perform(implementation().permute_forward, args).status, DROPLESS_OK);
  EXPECT_EQ(rows.values(), (Values{4, 5, 6, 1, 2, 3, 0, 0, 0, 9, 9, 9}));
  EXPECT_EQ(row_weights.values(), (Values{0.25, 0.5, 0, 9}));
  EXPECT_EQ(row_scales.values(), (Values{3, 4, 1, 2, 0, 0, 9, 9}));
}

TEST(Permutation, UnpermuteAndItsGradients) {
  const Plan plan = make_plan(example(), 3, 5);
  const Array rows = Array(DROPLESS_FP32, {5, 1}).set({1, 2, 3, 4, 5});
  const Array weights = Array(DROPLESS_FP32, {3, 2}).set({0.5, 2, 1, 100, 0, 3});
  const Array y(DROPLESS_FP32, {3, 1});
  auto forward = make_args<dropless_unpermute_args>();
  forward.row_map = plan.row_map.get(), forward.rows = rows.get();
  forward.weights = weights.get(), forward.y = y.get();
  ASSERT_EQ(perform(implementation().unpermute_forward, forward).status, DROPLESS_OK);
  EXPECT_EQ(y.values(), (Values{0.5 * 4 + 2 * 1, 2, 3 * 3}));

  const Array d_y = Array(DROPLESS_FP32, {3, 1}).set({1, 10, 100});
  const Array d_rows(DROPLESS_FP32, {5, 1}), d_weights(DROPLESS_FP32, {3, 2});
  auto backward = make_args<dropless_unpermute_backward_args>();
  backward.offsets = plan.offsets.get(), backward.row_map = plan.row_map.get();
  backward.source = plan.source.get(), backward.rows = rows.get();
  backward.weights = weights.get(), backward.d_y = d_y.get();
  backward.d_rows = d_rows.get(), backward.d_weights = d_weights.get();
  ASSERT_EQ(perform(implementation().unpermute_backward, backward).status, DROPLESS_OK);
  EXPECT_EQ(d_rows.values(), (Values{2, 10, 300, 0.5, 0}));
  EXPECT_EQ(d_weights.values(), (Values{4, 1, 20, 0, 500, 300}));
}

}  // namespace
}  // namespace dropless::cpu::testing
