// SPDX-License-Identifier: Apache-2.0
// Scores and weights of the reference's routing against numbers worked out by hand.
#include <gtest/gtest.h>

#include "reference/scores.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

// Four experts with probabilities 0.1, 0.4, 0.2, 0.3.
const Doubles kSoftmaxLogits{std::log(1.0), std::log(4.0), std::log(2.0), std::log(3.0)};

TEST(Scores, SigmoidAtKnownPointsAndAtTheEnds) {
  EXPECT_DOUBLE_EQ(sigmoid(std::log(3.0)), 0.75);
  EXPECT_DOUBLE_EQ(sigmoid(-std::log(3.0)), 0.25);
  EXPECT_EQ(sigmoid(0), 0.5);
  EXPECT_EQ(sigmoid(kInf), 1);
  EXPECT_EQ(sigmoid(-kInf), 0);
  EXPECT_EQ(sigmoid(-750), 0);  // e^-750 is below the smallest double
  EXPECT_NEAR(sigmoid(-700) / std::exp(-700.0), 1, 1e-15);
  EXPECT_TRUE(std::isnan(sigmoid(kNaN)));
}

TEST(Scores, SoftplusFarFromZero) {
  EXPECT_DOUBLE_EQ(softplus(0), std::log(2.0));
  EXPECT_EQ(softplus(1000), 1000);
  EXPECT_EQ(softplus(kInf), kInf);
  EXPECT_EQ(softplus(-kInf), 0);
  EXPECT_NEAR(softplus(-50) / std::exp(-50.0), 1, 1e-15);
  EXPECT_DOUBLE_EQ(softplus(std::log(std::expm1(0.25))), 0.25);
}

TEST(Scores, SqrtSoftplusKeepsItsDigitsWhereTheExponentialUnderflows) {
  const int f = DROPLESS_SCORE_SQRT_SOFTPLUS;
  EXPECT_DOUBLE_EQ(pointwise_score(f, std::log(std::expm1(0.25))), 0.5);
  EXPECT_NEAR(pointwise_score(f, -1000) / std::exp(-500.0), 1, 1e-15);
  EXPECT_DOUBLE_EQ(pointwise_score(f, 1e4), 100);
  // No step where the asymptotic form takes over.
  EXPECT_NEAR(pointwise_score(f, -40) / pointwise_score(f, -40 - 0x1p-40), 1, 1e-12);
  EXPECT_NEAR(pointwise_slope(f, -40) / pointwise_slope(f, -40 - 0x1p-40), 1, 1e-12);
}

TEST(Scores, SoftmaxOfHugeLogits) {
  const Doubles p = softmax(Doubles{1e30, 1e30, -1e30, 0});
  EXPECT_EQ(p, (Doubles{0.5, 0.5, 0, 0}));
}

TEST(Scores, SoftmaxIsUndefinedExactlyWhereTheClauseSaysSo) {
  for (const Doubles& row : {Doubles{1, kNaN}, Doubles{kInf, 0}, Doubles{-kInf, -kInf}}) {
    EXPECT_TRUE(is_undefined_row(DROPLESS_SCORE_SOFTMAX, row));
    for (const double p : softmax(row)) EXPECT_TRUE(std::isnan(p));
  }
  EXPECT_EQ(softmax(Doubles{-kInf, 3}), (Doubles{0, 1}));
  EXPECT_FALSE(is_undefined_row(DROPLESS_SCORE_SIGMOID, Doubles{kInf, -kInf}));
  EXPECT_TRUE(is_undefined_row(DROPLESS_SCORE_SIGMOID, Doubles{0, kNaN}));
}

TEST(Routing, SoftmaxBeforeTopKGathersTheProbabilities) {
  const auto settings = route_settings(4, 2, DROPLESS_SCORE_SOFTMAX);
  const Routing r = route(settings, default_profile(), {1, kSoftmaxLogits, {}, {}, {}, {}});
  EXPECT_EQ(r.ids, (Ids{1, 3}));
  EXPECT_DOUBLE_EQ(r.weights[0], 0.4);
  EXPECT_DOUBLE_EQ(r.weights[1], 0.3);
  EXPECT_DOUBLE_EQ(r.weight_sum[0], 0.7);
  EXPECT_EQ(r.tokens_per_expert, (Ids{0, 1, 0, 1}));
  for (std::size_t e = 0; e < 4; ++e) {
    EXPECT_DOUBLE_EQ(r.scores[e], (Doubles{0.1, 0.4, 0.2, 0.3})[e]);
    EXPECT_EQ(r.selection[e], fp32(r.scores[e]));
  }
}

TEST(Routing, SoftmaxAfterTopKNormalisesOverTheSelectedButScoresStayOverAll) {
  auto settings = route_settings(4, 2, DROPLESS_SCORE_SOFTMAX);
  settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  const Routing r = route(settings, default_profile(), {1, kSoftmaxLogits, {}, {}, {}, {}});
  EXPECT_EQ(r.ids, (Ids{1, 3}));
  EXPECT_DOUBLE_EQ(r.weights[0], 4.0 / 7);
  EXPECT_DOUBLE_EQ(r.weights[1], 3.0 / 7);
  EXPECT_DOUBLE_EQ(r.scores[1], 0.4);
  EXPECT_EQ(r.selection, kSoftmaxLogits);
}

TEST(Routing, RenormalisationInBothFormsOfEps) {
  auto settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  settings.renormalize_eps = 0.25;
  const Doubles logits{logit_of(0.75), logit_of(0.5)};
  const Routing added = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
  EXPECT_DOUBLE_EQ(added.weights[0], 0.75 / 1.5);
  settings.eps_form = DROPLESS_EPS_MAXIMUM;
  const Routing below = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
  EXPECT_DOUBLE_EQ(below.weights[0], 0.75 / 1.25);
  settings.renormalize_eps = 2.5;
  const Routing above = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
  EXPECT_DOUBLE_EQ(above.weights[0], 0.75 / 2.5);
}

TEST(Routing, SingleExpertHasItsOwnSwitch) {
  auto settings = route_settings(2, 1, DROPLESS_SCORE_SIGMOID);
  const Doubles logits{logit_of(0.25), logit_of(0.75)};
  settings.renormalize = 1;
  EXPECT_DOUBLE_EQ(route(settings, default_profile(), {1, logits, {}, {}, {}, {}}).weights[0],
                   0.75);
  settings.renormalize_single = 1;
  EXPECT_DOUBLE_EQ(route(settings, default_profile(), {1, logits, {}, {}, {}, {}}).weights[0], 1);
}

TEST(Routing, FactorOnceThenExpertScale) {
  auto settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  settings.renormalize_eps = 0;
  settings.scaling_factor = 2.5;
  const Doubles logits{logit_of(0.75), logit_of(0.25)}, scale{3, 5};
  const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, scale});
  EXPECT_DOUBLE_EQ(r.weights[0], 0.75 * 2.5 * 3);
  EXPECT_DOUBLE_EQ(r.weights[1], 0.25 * 2.5 * 5);
}

TEST(Routing, BiasSelectsButDoesNotWeigh) {
  const auto settings = route_settings(3, 1, DROPLESS_SCORE_SIGMOID);
  const Doubles logits{logit_of(0.75), logit_of(0.5), logit_of(0.25)}, bias{0, 0, 1};
  const Routing r = route(settings, default_profile(), {1, logits, bias, {}, {}, {}});
  EXPECT_EQ(r.ids, Ids{2});
  EXPECT_DOUBLE_EQ(r.weights[0], 0.25);
  EXPECT_EQ(r.selection[2], 1 + fp32(0.25));
}

// ROUTING-2: fl32(score) + bias. Two scores 2^-40 apart are one fp32 value.
TEST(Routing, ScoresAreRoundedToFp32BeforeTheBias) {
  const auto settings = route_settings(2, 1, DROPLESS_SCORE_SIGMOID);
  const Doubles logits{0, 0x1p-38};
  const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
  EXPECT_LT(r.scores[0], r.scores[1]);
  EXPECT_EQ(r.selection[0], r.selection[1]);
  EXPECT_EQ(r.ids, Ids{0});
}

TEST(Routing, SubtractTakesTheWeightFromTheBiasedScore) {
  const auto settings = route_settings(2, 1, DROPLESS_SCORE_SIGMOID);
  auto profile = default_profile();
  profile.weight_source = DROPLESS_WEIGHT_SUBTRACT;
  // sigmoid(1) is no fp32 value, so the two sources differ by its rounding, and by no more.
  const Doubles logits{1, -1}, bias{8, 0};
  const double subtracted = route(settings, profile, {1, logits, bias, {}, {}, {}}).weights[0];
  EXPECT_NE(subtracted, sigmoid(1));
  EXPECT_EQ(subtracted, (fp32(sigmoid(1)) + 8) - 8);
  // Without a bias there is nothing to subtract.
  EXPECT_EQ(route(settings, profile, {1, logits, {}, {}, {}, {}}).weights[0], sigmoid(1));
}

TEST(Routing, MaskedExpertsAreNeverSelectedWhateverTheirBias) {
  for (const int f :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    const auto settings = route_settings(4, 2, f);
    const Doubles logits{-kInf, -5, -kInf, -6}, bias{100, 0, 100, -1000};
    const Routing r = route(settings, default_profile(), {1, logits, bias, {}, {}, {}});
    EXPECT_EQ(r.ids, (Ids{1, 3}));
    EXPECT_EQ(r.selection[0], -kInf);
  }
}

// Also where the bias makes the unmasked one's compared value -Inf as well.
TEST(Routing, AnUnmaskedExpertPrecedesMaskedOnes) {
  const auto settings = route_settings(3, 1, DROPLESS_SCORE_SIGMOID);
  const Doubles logits{-kInf, -kInf, 0}, bias{0, 0, -kInf};
  EXPECT_EQ(route(settings, default_profile(), {1, logits, bias, {}, {}, {}}).ids, Ids{2});
}

// Under "subtract" the compared value minus the bias of a masked pick would be -Inf.
TEST(Routing, MaskedPicksWeighZeroUnderSubtract) {
  const auto settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  auto profile = default_profile();
  profile.weight_source = DROPLESS_WEIGHT_SUBTRACT;
  const Doubles logits{-kInf, 0}, bias{1, 1};
  const Routing r = route(settings, profile, {1, logits, bias, {}, {}, {}});
  EXPECT_EQ(r.ids, (Ids{1, 0}));
  EXPECT_EQ(r.weights, (Doubles{0.5, 0}));
}

// All given picks masked: their own softmax is undefined, but the row is not.
TEST(Routing, MaskedPicksWeighZeroUnderSoftmaxOverTheSelected) {
  auto settings = route_settings(3, 2, DROPLESS_SCORE_SOFTMAX);
  settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  const Ids given{0, 1};
  const Doubles logits{-kInf, -kInf, 0};
  const Routing r = route(settings, default_profile(), {1, logits, {}, {}, given, {}});
  EXPECT_EQ(r.weights, (Doubles{0, 0}));
}

// ROUTING-8: without a finite logit softmax is undefined, which must show.
TEST(Routing, SoftmaxWithoutFiniteLogitsShowsNaN) {
  for (const int order : {DROPLESS_SOFTMAX_BEFORE_TOP_K, DROPLESS_SOFTMAX_AFTER_TOP_K}) {
    auto settings = route_settings(3, 2, DROPLESS_SCORE_SOFTMAX);
    settings.softmax_order = order;
    const Routing r = route(settings, default_profile(), {1, Doubles(3, -kInf), {}, {}, {}, {}});
    EXPECT_EQ(r.ids, (Ids{0, 1}));
    EXPECT_TRUE(std::isnan(r.weights[0]) || std::isnan(r.weights[1]));
  }
}

// One more expert than unmasked ones is asked for: distinct ids, and the masked pick weighs 0.
TEST(Routing, MaskedPicksWeighZero) {
  for (const int eps_form : {DROPLESS_EPS_ADDED, DROPLESS_EPS_MAXIMUM}) {
    auto settings = route_settings(3, 2, DROPLESS_SCORE_SIGMOID);
    settings.renormalize = 1;
    settings.eps_form = eps_form;
    settings.renormalize_eps = 0;
    const Doubles logits{-kInf, -kInf, 1};
    const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
    EXPECT_EQ(r.ids, (Ids{2, 0}));
    EXPECT_EQ(r.weights, (Doubles{1, 0}));
    const Doubles none{-kInf, -kInf, -kInf};
    const Routing all = route(settings, default_profile(), {1, none, {}, {}, {}, {}});
    EXPECT_EQ(all.ids, (Ids{0, 1}));
    EXPECT_EQ(all.weights, (Doubles{0, 0}));
  }
}

TEST(Routing, UndefinedRowsShowNaNAndLeaveOthersAlone) {
  for (const int f :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    for (const int order : {DROPLESS_SOFTMAX_BEFORE_TOP_K, DROPLESS_SOFTMAX_AFTER_TOP_K}) {
      auto settings = route_settings(4, 2, f);
      settings.softmax_order = order;
      std::vector<double> bad_values{kNaN};
      if (f == DROPLESS_SCORE_SOFTMAX) bad_values.push_back(kInf);
      for (const double bad : bad_values) {
        Doubles logits{3, 1, 2, 0, /**/ 1, 5, 4, bad, /**/ 0, 3, 1, 2};
        const Routing r = route(settings, default_profile(), {3, logits, {}, {}, {}, {}});
        logits[7] = 0;
        const Routing clean = route(settings, default_profile(), {3, logits, {}, {}, {}, {}});
        EXPECT_NE(r.ids[2], r.ids[3]);
        EXPECT_TRUE(std::isnan(r.weights[2]) || std::isnan(r.weights[3]));
        Index sum = 0;
        for (const Index count : r.tokens_per_expert) sum += count;
        EXPECT_EQ(sum, 6);
        for (const std::size_t i : {0, 1, 4, 5}) {
          EXPECT_EQ(r.ids[i], clean.ids[i]);
          EXPECT_EQ(r.weights[i], clean.weights[i]);
        }
      }
    }
  }
}

// The NaN lies in the group with the lowest scores; it must still reach the output.
TEST(Routing, NaNReachesTheOutputThroughGroups) {
  for (const int group_score : {DROPLESS_GROUP_SCORE_TOP_SUM, DROPLESS_GROUP_SCORE_MAX}) {
    auto settings = route_settings(6, 2, DROPLESS_SCORE_SIGMOID);
    settings.num_groups = 3;
    settings.kept_groups = 1;
    settings.group_score = group_score;
    const Doubles logits{5, 6, -9, kNaN, 7, 8};
    const Routing r = route(settings, default_profile(), {1, logits, {}, {}, {}, {}});
    EXPECT_EQ(r.ids, (Ids{3, 2}));
    EXPECT_TRUE(std::isnan(r.weights[0]));
  }
}

TEST(Routing, InfiniteLogitUnderSigmoidWeighsOne) {
  const auto settings = route_settings(3, 1, DROPLESS_SCORE_SIGMOID);
  const Routing r = route(settings, default_profile(), {1, Doubles{0, kInf, 30}, {}, {}, {}, {}});
  EXPECT_EQ(r.ids, Ids{1});
  EXPECT_EQ(r.weights[0], 1);
}

TEST(Routing, MaskedTokensAreRoutedNowhere) {
  const auto settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  const std::vector<std::uint8_t> mask{1, 0};
  const Doubles logits{0, 1, kNaN, 2};
  const Routing r = route(settings, default_profile(), {2, logits, {}, mask, {}, {}});
  EXPECT_EQ(r.ids, (Ids{1, 0, -1, -1}));
  EXPECT_EQ(r.weights[2], 0);
  EXPECT_EQ(r.weights[3], 0);
  EXPECT_EQ(r.weight_sum[1], 0);
  EXPECT_EQ(r.tokens_per_expert, (Ids{1, 1}));
}

TEST(Routing, GivenIdsKeepTheirOrderAndIgnoreBiasAndGroups) {
  auto settings = route_settings(4, 3, DROPLESS_SCORE_SIGMOID);
  settings.renormalize = 1;
  settings.renormalize_eps = 0;
  settings.num_groups = 2;
  settings.kept_groups = 2;
  settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  const Doubles logits{-1, 0, 0, 1}, bias{9, -9, 9, 9};
  const Ids given{3, -1, 0};
  auto profile = default_profile();
  profile.weight_source = DROPLESS_WEIGHT_SUBTRACT;
  profile.selection_order = DROPLESS_ORDER_ASCENDING_ID;
  const Routing r = route(settings, profile, {1, logits, bias, {}, given, {}});
  EXPECT_EQ(r.ids, given);
  // Exactly the quotients of the unbiased scores: nothing was added and subtracted again.
  const double sum = sigmoid(1) + sigmoid(-1);
  EXPECT_EQ(r.weights, (Doubles{sigmoid(1) / sum, 0, sigmoid(-1) / sum}));
  EXPECT_EQ(r.tokens_per_expert, (Ids{1, 0, 0, 1}));
  EXPECT_TRUE(r.group_scores.empty());
}

TEST(Routing, GivenIdsWithSoftmaxOverTheSelected) {
  auto settings = route_settings(4, 3, DROPLESS_SCORE_SOFTMAX);
  settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  const Ids given{0, -1, 2};
  const Routing r = route(settings, default_profile(), {1, kSoftmaxLogits, {}, {}, given, {}});
  EXPECT_DOUBLE_EQ(r.weights[0], 1.0 / 3);
  EXPECT_EQ(r.weights[1], 0);
  EXPECT_DOUBLE_EQ(r.weights[2], 2.0 / 3);
}

TEST(Routing, NoTokens) {
  const auto settings = route_settings(4, 2, DROPLESS_SCORE_SOFTMAX);
  const Routing r = route(settings, default_profile(), {});
  EXPECT_TRUE(r.ids.empty());
  EXPECT_EQ(r.tokens_per_expert, (Ids{0, 0, 0, 0}));
}

TEST(BiasUpdate, SignOfTheDeficit) {
  // Sums 6, 3, 0, 3 of a total of 12: mean 3.
  const std::vector<Index> counts{4, 1, 0, 3, 2, 2, 0, 0};
  const std::vector<float> bias{1, 2, 3, 4};
  EXPECT_EQ(bias_update(0.5, 4, counts, bias), (std::vector<float>{0.5F, 2, 3.5F, 4}));
}

TEST(BiasUpdate, MeanThatIsNoInteger) {
  // Total 4 over 3 experts: E * n = 3, 3, 6 against 4.
  EXPECT_EQ(bias_update(1, 3, std::vector<Index>{1, 1, 2}, std::vector<float>{0, 0, 0}),
            (std::vector<float>{1, 1, -1}));
}

TEST(BiasUpdate, RoundsOnceToFp32) {
  const float bias = 1.0F;
  const std::vector<float> up =
      bias_update(1e-3, 2, std::vector<Index>{0, 2}, std::vector<float>{bias, bias});
  EXPECT_EQ(up[0], static_cast<float>(1.0 + 1e-3));
  EXPECT_EQ(up[1], static_cast<float>(1.0 - 1e-3));
}

TEST(BiasUpdate, CountsWhoseProductWouldOverflow) {
  const Index huge = Index{1} << 61;
  EXPECT_EQ(bias_update(1, 2, std::vector<Index>{huge, huge + 1}, std::vector<float>{0, 0}),
            (std::vector<float>{1, -1}));
  EXPECT_EQ(bias_update(1, 2, std::vector<Index>{huge, huge}, std::vector<float>{0, 0}),
            (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace dropless::reference::testing
