// SPDX-License-Identifier: Apache-2.0
// Balance loss of the reference (ROUTING-14): hand-computed values, invariances, gradients,
// refusals.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "reference/losses.h"
#include "tests/reference/finite_difference.h"
#include "tests/reference/refusal.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

struct Problem {
  dropless_route_settings settings{};
  dropless_profile profile = default_profile();
  double coeff = 1;
  int scope = DROPLESS_SCOPE_MICRO_BATCH;
  Index tokens = 0;
  Doubles logits;
  Ids ids, boundaries, accumulated;
  Index accumulated_tokens = 0;
  std::vector<std::uint8_t> mask;

  [[nodiscard]] BalanceInput input(const Doubles& at_logits) const {
    return {tokens, at_logits, ids, mask, boundaries, accumulated, accumulated_tokens};
  }
  double value() const { return value(logits); }
  double value(const Doubles& at_logits) const {
    return balance_loss(settings, profile, coeff, scope, input(at_logits)).value;
  }
  Gauged gradient(double d_loss = 1) const {
    return balance_loss_backward(settings, profile, coeff, scope, input(logits), d_loss);
  }
};

// Three tokens, two experts, top 1: p = (3/4, 1/4), (3/5, 2/5), (1/10, 9/10), all sent to expert 0
// except the last.
Problem three_tokens() {
  Problem p;
  p.settings = route_settings(2, 1, DROPLESS_SCORE_SOFTMAX);
  p.tokens = 3;
  p.logits = {std::log(3.0), 0, std::log(3.0), std::log(2.0), 0, std::log(9.0)};
  p.ids = {0, 0, 1};
  return p;
}

TEST(BalanceLoss, MicroBatchByHand) {
  Problem p = three_tokens();
  p.coeff = 0.5;
  // f = 2/3, 1/3; P = 1.45/3, 1.55/3; E/K = 2.
  EXPECT_DOUBLE_EQ(p.value(), 0.5 * 2 * (2 * 1.45 + 1.55) / 9);
}

TEST(BalanceLoss, FactorK) {
  Problem p = three_tokens();
  p.settings.top_k = 2;
  p.ids = {0, 1, 0, -1, 1, -1};  // n = 2, 2
  const double expected = 1 * (2.0 / 3 * 1.45 / 3 + 2.0 / 3 * 1.55 / 3);
  EXPECT_DOUBLE_EQ(p.value(), expected);
  p.profile.balance_factor = DROPLESS_BALANCE_FACTOR_TOP_K;
  EXPECT_DOUBLE_EQ(p.value(), 2 * expected);
}

TEST(BalanceLoss, MaskedTokensLeaveEverySum) {
  Problem p = three_tokens();
  p.mask = {1, 0, 1};
  p.logits[2] = kNaN;
  // f = 1/2, 1/2; P = 0.85/2, 1.15/2.
  EXPECT_DOUBLE_EQ(p.value(), 2 * (0.5 * 0.425 + 0.5 * 0.575));
  for (const std::size_t i : {2, 3}) EXPECT_EQ(p.gradient().value[i], 0);
}

// ROUTING-14: T counts unmasked tokens, whatever their ids.
TEST(BalanceLoss, UnroutedTokensStayInTheMean) {
  Problem p = three_tokens();
  p.ids = {0, -1, 1};
  EXPECT_DOUBLE_EQ(p.value(), 2 * (1.0 / 3 * 1.45 / 3 + 1.0 / 3 * 1.55 / 3));
}

TEST(BalanceLoss, SequencesAreAveragedAndEmptyOnesDoNotCount) {
  Problem p = three_tokens();
  p.scope = DROPLESS_SCOPE_SEQUENCE;
  p.boundaries = {0, 0, 2, 3};
  // Sequence 1: f = 1, 0; P_0 = 0.675. Sequence 2: f = 0, 1; P_1 = 0.9.
  EXPECT_DOUBLE_EQ(p.value(), 2 * (0.675 + 0.9) / 2);
  p.mask = {1, 1, 0};
  EXPECT_DOUBLE_EQ(p.value(), 2 * 0.675);
}

TEST(BalanceLoss, GlobalCountsAddUpButProbabilitiesAreOfThisMicroBatch) {
  Problem p = three_tokens();
  p.scope = DROPLESS_SCOPE_GLOBAL;
  p.accumulated = {1, 6};
  p.accumulated_tokens = 7;
  // f = 3/10, 7/10; P = 1.45/3, 1.55/3.
  EXPECT_DOUBLE_EQ(p.value(), 2 * (0.3 * 1.45 + 0.7 * 1.55) / 3);
}

TEST(BalanceLoss, GlobalWithoutEarlierOnesIsTheMicroBatch) {
  Problem p = three_tokens();
  const double micro = p.value();
  p.scope = DROPLESS_SCOPE_GLOBAL;
  p.accumulated = {0, 0};
  EXPECT_EQ(p.value(), micro);
}

TEST(BalanceLoss, CleanCountsIgnoreTheRealRouting) {
  Problem p = three_tokens();
  p.ids = {1, 1, 0};  // as a strong bias would have it
  const double real = p.value();
  p.profile.balance_counts = DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K;
  EXPECT_EQ(balance_counts(p.settings, p.profile, p.input(p.logits)), (Ids{2, 1}));
  EXPECT_DOUBLE_EQ(p.value(), 2 * (2 * 1.45 + 1.55) / 9);
  EXPECT_NE(p.value(), real);
}

TEST(BalanceLoss, CleanCountsIgnoreGroups) {
  Problem p;
  p.settings = route_settings(4, 2, DROPLESS_SCORE_SIGMOID);
  p.settings.num_groups = 2;
  p.settings.kept_groups = 1;
  p.tokens = 1;
  p.logits = {3, 0, 2, 1};
  p.ids = {2, 3};
  EXPECT_EQ(balance_counts(p.settings, p.profile, p.input(p.logits)), (Ids{0, 0, 1, 1}));
  p.profile.balance_counts = DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K;
  EXPECT_EQ(balance_counts(p.settings, p.profile, p.input(p.logits)), (Ids{1, 0, 1, 0}));
}

TEST(BalanceLoss, SigmoidScoresAreDividedByTheirRowSum) {
  Problem p = three_tokens();
  p.settings.score_function = DROPLESS_SCORE_SIGMOID;
  p.tokens = 1;
  p.ids = {1};
  p.logits = {logit_of(0.75), logit_of(0.5)};
  EXPECT_DOUBLE_EQ(p.value(), 2 * 0.5 / 1.25);
  // A row of nothing but masked experts: 0 / 2^-126.
  p.logits = {-kInf, -kInf};
  EXPECT_EQ(p.value(), 0);
  EXPECT_EQ(p.gradient().value, (Doubles{0, 0}));
}

TEST(BalanceLoss, UniformRoutingWithUniformScoresGivesTheCoefficient) {
  for (const int f :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    for (const int scope :
         {DROPLESS_SCOPE_MICRO_BATCH, DROPLESS_SCOPE_SEQUENCE, DROPLESS_SCOPE_GLOBAL}) {
      Problem p;
      p.settings = route_settings(6, 2, f);
      p.coeff = 0.01;
      p.scope = scope;
      p.tokens = 6;
      p.logits.assign(36, -1.5);
      for (Index t = 0; t < 6; ++t) {
        p.ids.push_back(2 * t % 6);
        p.ids.push_back(2 * t % 6 + 1);
      }
      p.boundaries = {0, 3, 6};
      p.accumulated.assign(6, 4);
      p.accumulated_tokens = 12;
      EXPECT_NEAR(p.value(), 0.01, 1e-15);
      p.profile.balance_factor = DROPLESS_BALANCE_FACTOR_TOP_K;
      EXPECT_NEAR(p.value(), 0.02, 1e-15);
    }
  }
}

TEST(BalanceLoss, SoftmaxShiftAndTokenOrderChangeNothing) {
  Problem p = three_tokens();
  const double value = p.value();
  Problem shifted = p;
  for (double& x : shifted.logits) x += 3;
  EXPECT_NEAR(shifted.value(), value, 1e-15);
  Problem swapped = p;
  std::swap_ranges(swapped.logits.begin(), swapped.logits.begin() + 2, swapped.logits.begin() + 4);
  std::swap(swapped.ids[0], swapped.ids[2]);
  EXPECT_NEAR(swapped.value(), value, 1e-15);
}

TEST(BalanceLoss, NoTokens) {
  Problem p;
  p.settings = route_settings(3, 2, DROPLESS_SCORE_SOFTMAX);
  EXPECT_EQ(p.value(), 0);
  p.tokens = 2;
  p.logits = {1, 2, 3, 4, 5, 6};
  p.ids = {-1, -1, -1, -1};
  p.mask = {0, 0};
  EXPECT_EQ(p.value(), 0);
  EXPECT_EQ(p.gradient().value, Doubles(6, 0));
}

TEST(BalanceLoss, GradientsAgreeWithFiniteDifferences) {
  std::mt19937_64 random(5);
  const auto pick = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  for (int trial = 0; trial < 400; ++trial) {
    Problem p;
    const Index num_experts = pick(1, 6);
    p.settings = route_settings(num_experts, pick(1, num_experts), static_cast<int>(pick(0, 2)));
    p.profile.balance_factor = static_cast<int32_t>(pick(0, 1));
    p.scope = static_cast<int>(pick(0, 2));
    p.coeff = 0.25;
    p.tokens = pick(1, 6);
    p.logits = random_values(random, p.tokens * num_experts, 2);
    p.ids = route(p.settings, p.profile, {p.tokens, p.logits, {}, {}, {}, {}}).ids;
    p.boundaries = {0, pick(0, p.tokens), p.tokens};
    for (Index e = 0; e < num_experts; ++e) p.accumulated.push_back(pick(0, 5));
    p.accumulated_tokens = pick(0, 9);
    if (pick(0, 1) == 0) {
      for (Index t = 0; t < p.tokens; ++t) p.mask.push_back(pick(0, 3) == 0 ? 0 : 1);
    }
    SCOPED_TRACE("trial " + std::to_string(trial));
    const Gauged g = p.gradient(-3);
    expect_gauge(g);
    expect_gradient([&](const Doubles& x) { return -3 * p.value(x); }, p.logits, g.value, 1e-10);
    if (HasFailure()) return;
  }
}

TEST(BalanceLoss, Refusals) {
  const auto refused = [](const std::function<void(Problem&)>& spoil, const char* culprit) {
    Problem p = three_tokens();
    p.mask = {1, 1, 1};
    p.boundaries = {0, 1, 3};
    p.accumulated = {1, 2};
    for (const int scope :
         {DROPLESS_SCOPE_MICRO_BATCH, DROPLESS_SCOPE_SEQUENCE, DROPLESS_SCOPE_GLOBAL}) {
      p.scope = scope;
      EXPECT_NO_THROW(p.value());
      EXPECT_NO_THROW(p.gradient());
    }
    spoil(p);
    expect_refused([&] { p.value(); }, culprit);
    expect_refused([&] { p.gradient(); }, culprit);
  };
  refused([](Problem& p) { p.scope = 3; }, "scope = 3");
  refused([](Problem& p) { p.logits.pop_back(); }, "logits has 5");
  refused([](Problem& p) { p.ids[2] = 2; }, "ids[2,0] = 2");
  refused([](Problem& p) { p.mask.pop_back(); }, "token_mask has 2");
  refused([](Problem& p) { p.settings.top_k = 3; }, "top_k = 3");
  refused([](Problem& p) { p.accumulated.pop_back(); }, "accumulated_counts has 1");
  refused([](Problem& p) { p.accumulated[0] = -1; }, "accumulated_counts[0]");
  refused([](Problem& p) { p.accumulated_tokens = -1; }, "accumulated_tokens");
  const auto sequences = [&](Ids boundaries, const char* culprit) {
    refused(
        [&](Problem& p) {
          p.scope = DROPLESS_SCOPE_SEQUENCE;
          p.boundaries = boundaries;
        },
        culprit);
  };
  sequences({}, "sequence_boundaries is missing");
  sequences({0, 2, 1, 3}, "sequence_boundaries[2] = 1 falls");
  sequences({0, 2}, "to 2");
  sequences({0, 4}, "to 4");
  sequences({1, 3}, "from 1");
}

}  // namespace
}  // namespace dropless::reference::testing
