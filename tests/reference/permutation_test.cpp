// SPDX-License-Identifier: Apache-2.0
// The reference permutation against hand-made plans, its own definition, and finite differences.
#include "reference/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "tests/reference/random_data.h"

namespace dropless::reference {
namespace {

using test::RandomData;

dropless_profile profile_with(int alignment, int empty_expert = DROPLESS_EMPTY_EXPERT_NONE) {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  profile.alignment = alignment;
  profile.empty_expert = empty_expert;
  return profile;
}

using List = std::vector<Index>;

// Tokens 0: experts 2,0; 1: 0,-1; 2: 2,3; 3: 3,0. Expert 1 is empty.
const List kIds = {2, 0, 0, -1, 2, 3, 3, 0};

TEST(Permutation, PlanByHand) {
  const PermutePlan plan = permute_plan(profile_with(0), 4, 2, 4, kIds);
  EXPECT_EQ(plan.tokens_per_expert, (List{3, 0, 2, 2}));
  EXPECT_EQ(plan.offsets, (List{0, 3, 3, 5, 7}));
  EXPECT_EQ(plan.source, (List{1, 2, 7, 0, 4, 5, 6}));
  EXPECT_EQ(plan.row_map, (List{3, 0, 1, -1, 4, 5, 6, 2}));
  EXPECT_EQ(plan.demand, 7);
}

TEST(Permutation, AlignedPlanByHand) {
  const PermutePlan none = permute_plan(profile_with(16), 4, 2, 4, kIds);
  EXPECT_EQ(none.tokens_per_expert, (List{3, 0, 2, 2}));
  EXPECT_EQ(none.offsets, (List{0, 16, 16, 32, 48}));
  EXPECT_EQ(none.row_map, (List{16, 0, 1, -1, 17, 32, 33, 2}));
  EXPECT_EQ(std::count(none.source.begin(), none.source.end(), -1), 48 - 7);

  const PermutePlan block =
      permute_plan(profile_with(16, DROPLESS_EMPTY_EXPERT_ONE_BLOCK), 4, 2, 4, kIds);
  EXPECT_EQ(block.offsets, (List{0, 16, 32, 48, 64}));
  EXPECT_EQ(block.row_map, (List{32, 0, 1, -1, 33, 48, 49, 2}));
}

TEST(Permutation, CapacityByHand) {
  // Without a limit: zones 0..3, 3..3, 3..5, 5..7. Rows 4, 5 and 6 do not survive.
  const PermutePlan plan = permute_plan(profile_with(1), 4, 2, 4, kIds, 4);
  EXPECT_EQ(plan.tokens_per_expert, (List{3, 0, 1, 0}));
  EXPECT_EQ(plan.offsets, (List{0, 3, 3, 4, 4}));
  EXPECT_EQ(plan.source, (List{1, 2, 7, 0}));
  EXPECT_EQ(plan.row_map, (List{3, 0, 1, -1, -1, -1, -1, 2}));
  EXPECT_EQ(plan.demand, 7);

  const PermutePlan aligned = permute_plan(profile_with(16), 4, 2, 4, kIds, 16);
  EXPECT_EQ(aligned.tokens_per_expert, (List{3, 0, 0, 0}));
  EXPECT_EQ(aligned.offsets, (List{0, 16, 16, 16, 16}));
  EXPECT_EQ(aligned.demand, 48);

  const PermutePlan zero = permute_plan(profile_with(1), 4, 2, 4, kIds, 0);
  EXPECT_EQ(zero.offsets, (List{0, 0, 0, 0, 0}));
  EXPECT_EQ(zero.row_map, List(8, -1));
  EXPECT_EQ(zero.demand, 7);
}

class PlanProperties : public testing::TestWithParam<std::tuple<int, int, double>> {};

// The definition itself, read the other way round: sort the pairs and count.
TEST_P(PlanProperties, FollowTheDefinition) {
  const auto [alignment, empty_expert, missing] = GetParam();
  RandomData random(17);
  constexpr Index kTokens = 90, kTopK = 3, kExperts = 11;
  List ids = random.ids(kTokens, kTopK, kExperts - 1, missing);  // the last expert stays empty
  const PermutePlan full =
      permute_plan(profile_with(alignment, empty_expert), kTokens, kTopK, kExperts, ids);
  std::vector<std::tuple<Index, Index, Index>> sorted;
  for (Index p = 0; p < kTokens * kTopK; ++p) {
    if (ids[p] >= 0) sorted.emplace_back(ids[p], p / kTopK, p % kTopK);
  }
  std::sort(sorted.begin(), sorted.end());
  List real;
  for (const Index s : full.source) {
    if (s >= 0) real.push_back(s);
  }
  ASSERT_EQ(real.size(), sorted.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    const auto [expert, token, slot] = sorted[i];
    EXPECT_EQ(real[i], token * kTopK + slot);
    const Index row = full.row_map[real[i]];
    EXPECT_EQ(full.source[row], real[i]);
    EXPECT_GE(row, full.offsets[expert]);
    EXPECT_LT(row, full.offsets[expert] + full.tokens_per_expert[expert]);
  }
  for (Index e = 0; e < kExperts; ++e) {
    const Index zone = full.offsets[e + 1] - full.offsets[e];
    EXPECT_EQ(zone % alignment, 0);
    EXPECT_EQ(full.tokens_per_expert[e], std::count(ids.begin(), ids.end(), e));
    if (full.tokens_per_expert[e] > 0) {
      EXPECT_LT(zone - full.tokens_per_expert[e], alignment);
    } else {
      EXPECT_EQ(zone, empty_expert == DROPLESS_EMPTY_EXPERT_ONE_BLOCK ? alignment : 0);
    }
  }
  // Every capacity keeps exactly the rows below it.
  for (Index capacity = 0; capacity <= full.demand + alignment; capacity += alignment) {
    const PermutePlan cut = permute_plan(profile_with(alignment, empty_expert), kTokens, kTopK,
                                         kExperts, ids, capacity);
    const Index rows = std::min(capacity, full.demand);
    EXPECT_EQ(cut.rows(), rows);
    EXPECT_EQ(cut.demand, full.demand);
    EXPECT_EQ(cut.source, List(full.source.begin(), full.source.begin() + rows));
    Index kept = 0;
    for (Index e = 0; e < kExperts; ++e) {
      for (Index r = cut.offsets[e]; r < cut.offsets[e + 1]; ++r) {
        const bool is_real = r < cut.offsets[e] + cut.tokens_per_expert[e];
        EXPECT_EQ(cut.source[r] >= 0, is_real);
        kept += is_real;
      }
    }
    for (std::size_t p = 0; p < ids.size(); ++p) {
      EXPECT_EQ(cut.row_map[p], full.row_map[p] < rows ? full.row_map[p] : -1);
      kept -= cut.row_map[p] >= 0;
    }
    EXPECT_EQ(kept, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, PlanProperties,
                         testing::Combine(testing::Values(1, 16, 32, 128, 256),
                                          testing::Values(DROPLESS_EMPTY_EXPERT_NONE,
                                                          DROPLESS_EMPTY_EXPERT_ONE_BLOCK),
                                          testing::Values(0.0, 0.4, 1.0)));

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Refused& refused) {
    return refused.what();
  }
  return "";
}

TEST(Permutation, RefusalsNameValueAndPosition) {
  const auto plan = [](const List& ids, Index capacity = -1, int alignment = 16) {
    return refusal([&] { permute_plan(profile_with(alignment), 2, 2, 4, ids, capacity); });
  };
  EXPECT_EQ(plan({0, 1, 2, 3}), "");
  EXPECT_EQ(plan({-1, -1, -1, -1}), "");  // -1 may repeat
  EXPECT_EQ(plan({0, 1, 4, 3}), "id 4 at token 1, slot 0 is outside -1 .. 3");
  EXPECT_EQ(plan({0, -2, 2, 3}), "id -2 at token 0, slot 1 is outside -1 .. 3");
  EXPECT_EQ(plan({0, 1, 3, 3}), "id 3 at token 1, slot 1 repeats in its token");
  EXPECT_NE(plan({0, 1, 2}), "");
  EXPECT_EQ(plan({0, 1, 2, 3}, 32), "");
  EXPECT_NE(plan({0, 1, 2, 3}, 33), "");
  EXPECT_NE(plan({0, 1, 2, 3}, -16), "");
  EXPECT_EQ(plan({0, 1, 2, 3}, 33, 1), "");
}

TEST(Permutation, NothingToPermute) {
  const PermutePlan plan = permute_plan(profile_with(16), 0, 2, 3, {});
  EXPECT_EQ(plan.offsets, (List{0, 0, 0, 0}));
  EXPECT_EQ(plan.tokens_per_expert, (List{0, 0, 0}));
  EXPECT_TRUE(permute(plan, {}, 8).empty());
  EXPECT_TRUE(unpermute(plan, 4, {}, {}).value.empty());
  const PermutePlan blocks =
      permute_plan(profile_with(16, DROPLESS_EMPTY_EXPERT_ONE_BLOCK), 0, 2, 3, {});
  EXPECT_EQ(blocks.offsets, (List{0, 16, 32, 48}));
  const PermutePlan unrouted = permute_plan(profile_with(1), 2, 1, 3, List{-1, -1});
  EXPECT_EQ(unpermute(unrouted, 2, {}, std::vector<double>{5, 5}).value, Doubles(4, 0.0));
}

TEST(Permutation, BytesTravelUnchangedAndPaddingIsZero) {
  const PermutePlan plan = permute_plan(profile_with(16), 4, 2, 4, kIds);
  std::vector<std::byte> x;
  for (int i = 0; i < 4 * 3; ++i) x.push_back(static_cast<std::byte>(0xF0 + i));
  std::vector<std::byte> weights;
  for (int i = 0; i < 8; ++i) weights.push_back(static_cast<std::byte>(i == 2 ? 0 : 0xA0 + i));
  const std::vector<std::byte> rows = permute(plan, x, 3);
  const std::vector<std::byte> row_weights = permute_slots(plan, weights, 1);
  ASSERT_EQ(rows.size(), 48u * 3);
  ASSERT_EQ(row_weights.size(), 48u);
  for (std::size_t row = 0; row < 48; ++row) {
    const Index pair = plan.source[row];
    for (std::size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(rows[row * 3 + b], pair < 0 ? std::byte{0} : x[pair / 2 * 3 + b]);
    }
    EXPECT_EQ(row_weights[row], pair < 0 ? std::byte{0} : weights[pair]);
  }
}

TEST(Permutation, UnpermuteByHand) {
  const PermutePlan plan = permute_plan(profile_with(1), 4, 2, 4, kIds);
  const Doubles rows = {1, 2, 3, 4, 5, 6, -7};
  const Doubles weights = {0.5, 2, 1, 99, 0, 1, 3, -1};
  // Token 0: rows 3 and 0; 1: row 1; 2: rows 4 and 5; 3: rows 6 and 2.
  EXPECT_EQ(unpermute(plan, 1, rows, weights).value, (Doubles{0.5 * 4 + 2 * 1, 2, 6, -21 - 3}));
  EXPECT_EQ(unpermute(plan, 1, rows, weights).gauge, (Doubles{4, 2, 6, 24}));
  EXPECT_EQ(unpermute(plan, 1, rows, {}).value, (Doubles{5, 2, 11, -4}));
  EXPECT_EQ(permute_backward(plan, 1, rows).value, (Doubles{5, 2, 11, -4}));
  EXPECT_EQ(permute_weights_backward(plan, rows), (Doubles{4, 1, 2, 0, 5, 6, -7, 3}));
}

TEST(Permutation, BackwardIsTheDerivative) {
  RandomData random(5);
  constexpr Index kTokens = 7, kTopK = 3, kExperts = 5, kHidden = 4;
  const List ids = random.ids(kTokens, kTopK, kExperts, 0.2);
  const PermutePlan plan = permute_plan(profile_with(16), kTokens, kTopK, kExperts, ids);
  Doubles rows = random.uniforms(plan.rows() * kHidden, -1, 1);
  Doubles weights = random.uniforms(kTokens * kTopK, -1, 1);
  const Doubles d_y = random.uniforms(kTokens * kHidden, -1, 1);
  for (const bool weighted : {true, false}) {
    const Doubles used = weighted ? weights : Doubles();
    const UnpermuteGradient gradient = unpermute_backward(plan, kHidden, rows, used, d_y);
    const auto loss = [&] {
      return test::inner_product(
          unpermute(plan, kHidden, rows, weighted ? weights : Doubles()).value, d_y);
    };
    test::expect_gradient(loss, rows, gradient.d_rows.value, "d_rows");
    if (weighted) {
      test::expect_gradient(loss, weights, gradient.d_weights.value, "d_weights");
    } else {
      EXPECT_TRUE(gradient.d_weights.value.empty());
    }
    for (Index row = 0; row < plan.rows(); ++row) {
      if (plan.source[row] >= 0) continue;
      for (Index h = 0; h < kHidden; ++h) {
        EXPECT_EQ(gradient.d_rows.value[row * kHidden + h], 0);
      }
    }
  }
}

TEST(Permutation, NanInPaddingAndZeroWeights) {
  const PermutePlan plan = permute_plan(profile_with(16), 4, 2, 4, kIds);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Doubles rows(48, nan);
  for (std::size_t row = 0; row < 48; ++row) {
    if (plan.source[row] >= 0) rows[row] = 1;
  }
  const Doubles weights(8, 1.0);
  EXPECT_EQ(unpermute(plan, 1, rows, weights).value, (Doubles{2, 1, 2, 2}));
  const UnpermuteGradient gradient =
      unpermute_backward(plan, 1, rows, weights, Doubles{1, 1, 1, 1});
  EXPECT_EQ(gradient.d_weights.value, (Doubles{1, 1, 1, 0, 1, 1, 1, 1}));
  // A real row that holds NaN is not erased by a weight of zero (GENERAL-2).
  rows[0] = nan;
  EXPECT_TRUE(std::isnan(unpermute(plan, 1, rows, Doubles(8, 0.0)).value[0]));
}

}  // namespace
}  // namespace dropless::reference
