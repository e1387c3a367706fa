// SPDX-License-Identifier: Apache-2.0
// Routing by hand: scores, ties, groups, masks, weights.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Routed {
  std::vector<double> ids, weights, counts, scores;
};

struct Extras {
  const Array *bias = nullptr, *mask = nullptr, *given = nullptr, *scale = nullptr;
};

Routed route(const dropless_route_settings& settings, const Array& logits,
             const Extras& extras = {}) {
  const Index tokens = logits.get()->shape[0], k = settings.top_k, e = settings.num_experts;
  const Array ids(DROPLESS_I32, {tokens, k}), weights(DROPLESS_FP32, {tokens, k});
  const Array counts(DROPLESS_I64, {e}), scores(DROPLESS_FP32, {tokens, e});
  auto args = make_args<dropless_route_args>();
  args.settings = &settings;
  args.logits = logits.get();
  args.expert_bias = extras.bias == nullptr ? nullptr : extras.bias->get();
  args.token_mask = extras.mask == nullptr ? nullptr : extras.mask->get();
  args.given_ids = extras.given == nullptr ? nullptr : extras.given->get();
  args.expert_scale = extras.scale == nullptr ? nullptr : extras.scale->get();
  args.ids = ids.get(), args.weights = weights.get(), args.scores = scores.get();
  args.tokens_per_expert = counts.get();
  const Outcome outcome = perform(implementation().route_forward, args);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return {ids.values(), weights.values(), counts.values(), scores.values()};
}

void near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-6 * std::abs(expected[i])) << i;
  }
}

using Values = std::vector<double>;

TEST(Routing, SoftmaxSelectsInFallingOrder) {
  const Array logits = Array(DROPLESS_FP32, {1, 4})
                           .set({std::log(1.0), std::log(4.0), std::log(2.0), std::log(3.0)});
  const Routed r = route(route_settings(4, 2, DROPLESS_SCORE_SOFTMAX), logits);
  EXPECT_EQ(r.ids, (Values{1, 3}));
  near(r.weights, {0.4, 0.3});
  near(r.scores, {0.1, 0.4, 0.2, 0.3});
  EXPECT_EQ(r.counts, (Values{0, 1, 0, 1}));
}

TEST(Routing, SoftmaxOverTheSelectedAndRenormalised) {
  const Array logits = Array(DROPLESS_FP32, {1, 3}).set({std::log(1.0), std::log(3.0), -50});
  auto settings = route_settings(3, 2, DROPLESS_SCORE_SOFTMAX);
  settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  near(route(settings, logits).weights, {0.75, 0.25});
  settings.softmax_order = DROPLESS_SOFTMAX_BEFORE_TOP_K;
  settings.renormalize = 1;
  settings.scaling_factor = 2.5;
  near(route(settings, logits).weights, {0.75 * 2.5, 0.25 * 2.5});
}

TEST(Routing, TiesGoToTheLowestIndex) {
  const Array logits = Array(DROPLESS_BF16, {1, 6}).set({1, 2, 2, 0, 2, 1});
  for (const int score :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    EXPECT_EQ(route(route_settings(6, 4, score), logits).ids, (Values{1, 2, 4, 0})) << score;
  }
}

TEST(Routing, BiasSelectsAndLeavesTheWeights) {
  const Array logits = Array(DROPLESS_FP32, {1, 3}).set({0, 0, std::log(3.0)});
  const Array bias = Array(DROPLESS_FP32, {3}).set({0, 10, 0});
  const Routed r = route(route_settings(3, 2, DROPLESS_SCORE_SIGMOID), logits, {.bias = &bias});
  EXPECT_EQ(r.ids, (Values{1, 2}));
  near(r.weights, {0.5, 0.75});
}

// Scores are compared with at least the precision of fp32: bf16 would see a tie.
TEST(Routing, SmallDifferencesDecide) {
  const Array logits = Array(DROPLESS_FP32, {1, 2}).set({0.5, 0.5 + 0x1p-20});
  EXPECT_EQ(route(route_settings(2, 1, DROPLESS_SCORE_SIGMOID), logits).ids, (Values{1}));
}

TEST(Routing, GroupsByMaximumAndByTopSum) {
  // Groups {0,1} {2,3} {4,5}; the largest expert is in group 1, the largest pair in group 2.
  const Array logits = Array(DROPLESS_FP32, {1, 6}).set({-3, -3, 3, -9, 2, 2});
  auto settings = route_settings(6, 2, DROPLESS_SCORE_SIGMOID);
  settings.num_groups = 3, settings.kept_groups = 1;
  settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  EXPECT_EQ(route(settings, logits).ids, (Values{2, 3}));
  settings.group_score = DROPLESS_GROUP_SCORE_TOP_SUM;
  EXPECT_EQ(route(settings, logits).ids, (Values{4, 5}));
}

// A masked expert is never taken while another one is left, not even with negative biased scores,
// and its group counts as -Inf.
TEST(Routing, MaskedExperts) {
  const Array logits = Array(DROPLESS_FP32, {1, 4}).set({-infinity, 5, -20, -30});
  const Array bias = Array(DROPLESS_FP32, {4}).set({100, -50, -60, -70});
  auto settings = route_settings(4, 2, DROPLESS_SCORE_SIGMOID);
  EXPECT_EQ(route(settings, logits, {.bias = &bias}).ids, (Values{1, 2}));
  settings.num_groups = 2, settings.kept_groups = 1;
  EXPECT_EQ(route(settings, logits, {.bias = &bias}).ids, (Values{2, 3}));

  const Array one_left = Array(DROPLESS_FP32, {1, 3}).set({-infinity, -infinity, 1});
  auto renormalised = route_settings(3, 2, DROPLESS_SCORE_SOFTMAX);
  renormalised.renormalize = 1;
  const Routed r = route(renormalised, one_left);
  EXPECT_EQ(r.ids, (Values{2, 0}));
  EXPECT_EQ(r.weights, (Values{1, 0}));
}

TEST(Routing, NanRowsAndMaskedTokens) {
  const Array logits = Array(DROPLESS_FP32, {3, 2}).set({nan, 1, 1, 0, nan, nan});
  const Array mask = Array(DROPLESS_U8, {3}).set({1, 1, 0});
  const Routed r = route(route_settings(2, 1, DROPLESS_SCORE_SOFTMAX), logits, {.mask = &mask});
  EXPECT_TRUE(std::isnan(r.weights[0]));
  EXPECT_EQ(r.ids[1], 0);
  EXPECT_EQ(r.ids[2], -1);
  EXPECT_EQ(r.weights[2], 0);
  EXPECT_EQ(r.counts[0] + r.counts[1], 2);
}

TEST(Routing, GivenIdsAndExpertScale) {
  const Array logits = Array(DROPLESS_FP32, {1, 3}).set({0, std::log(3.0), 9});
  const Array given = Array(DROPLESS_I64, {1, 3}).set({1, -1, 0});
  const Array scale = Array(DROPLESS_FP32, {3}).set({2, 1, 1});
  auto settings = route_settings(3, 3, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  const Routed r = route(settings, logits, {.given = &given, .scale = &scale});
  EXPECT_EQ(r.ids, (Values{1, -1, 0}));
  near(r.weights, {0.6, 0, 0.8});
  EXPECT_EQ(r.counts, (Values{1, 1, 0}));
}

// d/dl of s_0 / (s_0 + s_1) for sigmoids at 0: s'(1/2, 1/2) = 1/4, weights 1/2.
TEST(Routing, BackwardByHand) {
  auto settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  const Array logits = Array(DROPLESS_FP32, {1, 2}).set({0, 0});
  const Array ids = Array(DROPLESS_I32, {1, 2}).set({1, 0});
  const Array d_weights = Array(DROPLESS_FP32, {1, 2}).set({1, 0});
  const Array d_logits(DROPLESS_FP32, {1, 2});
  auto args = make_args<dropless_route_backward_args>();
  args.settings = &settings, args.logits = logits.get(), args.ids = ids.get();
  args.d_weights = d_weights.get(), args.d_logits = d_logits.get();
  ASSERT_EQ(perform(implementation().route_backward, args).status, DROPLESS_OK);
  near(d_logits.values(), {-0.125, 0.125});
}

TEST(Routing, BiasUpdate) {
  const Array counts = Array(DROPLESS_I64, {2, 3}).set({3, 1, 0, 1, 1, 0});
  const Array bias = Array(DROPLESS_FP32, {3}).set({1, 1, 1});
  auto args = make_args<dropless_bias_update_args>();
  args.rate = 0.25, args.counts = counts.get(), args.expert_bias = bias.get();
  ASSERT_EQ(perform(implementation().bias_update, args).status, DROPLESS_OK);
  EXPECT_EQ(bias.values(), (Values{0.75, 1, 1.25}));
}

}  // namespace
}  // namespace dropless::cpu::testing
