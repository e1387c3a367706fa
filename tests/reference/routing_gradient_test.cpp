// SPDX-License-Identifier: Apache-2.0
// Backward of the reference's routing against finite differences of its forward (ROUTING-12).
#include <gtest/gtest.h>

#include "tests/reference/finite_difference.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

struct Problem {
  dropless_route_settings settings{};
  Index tokens = 0;
  Doubles logits, scale, d_weights;
  std::vector<std::uint8_t> mask;
  Ids ids;

  // sum of d_weights * weights with the selection held constant.
  [[nodiscard]] double value(const Doubles& at_logits, const Doubles& at_scale) const {
    const Routing r =
        route(settings, default_profile(), {tokens, at_logits, {}, mask, ids, at_scale});
    double sum = 0;
    for (std::size_t i = 0; i < r.weights.size(); ++i) sum += d_weights[i] * r.weights[i];
    return sum;
  }
  [[nodiscard]] RoutingGradient gradient() const {
    return route_backward(settings, {tokens, logits, mask, scale, ids, d_weights});
  }
};

Problem random_problem(std::mt19937_64& random) {
  const auto pick = [&](Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random);
  };
  Problem p;
  const Index num_experts = pick(1, 9);
  p.settings = route_settings(num_experts, pick(1, num_experts), static_cast<int>(pick(0, 2)));
  p.settings.softmax_order = static_cast<int32_t>(pick(0, 1));
  const bool after = p.settings.score_function == DROPLESS_SCORE_SOFTMAX &&
                     p.settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
  if (!after) {
    p.settings.renormalize = static_cast<int32_t>(pick(0, 1));
    p.settings.renormalize_single = static_cast<int32_t>(pick(0, 1));
  }
  p.settings.eps_form = static_cast<int32_t>(pick(0, 1));
  p.settings.renormalize_eps = std::array<double, 3>{1e-20, 0.125, 4}[at(pick(0, 2))];
  p.settings.scaling_factor = 2.5;
  p.tokens = pick(1, 3);
  p.logits = random_values(random, p.tokens * num_experts, 2);
  p.d_weights = random_values(random, p.tokens * p.settings.top_k, 1);
  if (pick(0, 1) == 1) p.scale = random_values(random, num_experts, 1);
  p.ids = route(p.settings, default_profile(), {p.tokens, p.logits, {}, {}, {}, {}}).ids;
  if (pick(0, 2) == 0) p.ids[at(pick(0, static_cast<Index>(p.ids.size()) - 1))] = -1;
  if (pick(0, 2) == 0) {
    p.mask.assign(at(p.tokens), 1);
    p.mask[at(pick(0, p.tokens - 1))] = 0;
  }
  return p;
}

// max(sum, eps) has a kink at sum = eps; a difference across it says nothing.
bool near_kink(const Problem& p) {
  const Routing r =
      route(p.settings, default_profile(), {p.tokens, p.logits, {}, p.mask, p.ids, {}});
  for (const double sum : r.weight_sum) {
    if (std::abs(sum - p.settings.renormalize_eps) < 0.01) return true;
  }
  return false;
}

TEST(RoutingGradient, AgreesWithFiniteDifferences) {
  std::mt19937_64 random(3);
  int checked = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const Problem p = random_problem(random);
    if (p.settings.eps_form == DROPLESS_EPS_MAXIMUM && near_kink(p)) continue;
    const RoutingGradient g = p.gradient();
    SCOPED_TRACE("trial " + std::to_string(trial));
    expect_gradient([&](const Doubles& x) { return p.value(x, p.scale); }, p.logits,
                    g.d_logits.value, 1e-10);
    expect_gauge(g.d_logits);
    expect_gauge(g.d_expert_scale);
    if (!p.scale.empty()) {
      expect_gradient([&](const Doubles& x) { return p.value(p.logits, x); }, p.scale,
                      g.d_expert_scale.value, 1e-10);
    }
    if (HasFailure()) return;
    ++checked;
  }
  EXPECT_GT(checked, 1200);
}

// One expert, by hand: w = 2.5 c sigmoid(l), so dw/dl = 2.5 c s (1 - s).
TEST(RoutingGradient, OneExpertByHand) {
  Problem p;
  p.settings = route_settings(2, 1, DROPLESS_SCORE_SIGMOID);
  p.settings.scaling_factor = 2.5;
  p.tokens = 1;
  p.logits = {logit_of(0.75), 0};
  p.scale = {3, 7};
  p.d_weights = {-2};
  p.ids = {0};
  const RoutingGradient g = p.gradient();
  EXPECT_DOUBLE_EQ(g.d_logits.value[0], -2 * 2.5 * 3 * 0.75 * 0.25);
  EXPECT_EQ(g.d_logits.value[1], 0);
  EXPECT_DOUBLE_EQ(g.d_expert_scale.value[0], -2 * 2.5 * 0.75);
  EXPECT_EQ(g.d_expert_scale.value[1], 0);
}

// Two renormalised experts, eps 0: w_0 = s_0 / (s_0 + s_1), dw_0/ds_0 = s_1 / (s_0 + s_1)^2.
TEST(RoutingGradient, RenormalisedPairByHand) {
  Problem p;
  p.settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  p.settings.renormalize = 1;
  p.settings.renormalize_eps = 0;
  p.tokens = 1;
  p.logits = {logit_of(0.75), logit_of(0.5)};
  p.d_weights = {1, 0};
  p.ids = {0, 1};
  const RoutingGradient g = p.gradient();
  EXPECT_DOUBLE_EQ(g.d_logits.value[0], 0.5 / (1.25 * 1.25) * 0.75 * 0.25);
  EXPECT_DOUBLE_EQ(g.d_logits.value[1], -0.75 / (1.25 * 1.25) * 0.5 * 0.5);
  // |1 / 1.25| + |0.75 / 1.25^2|, times the slope.
  EXPECT_DOUBLE_EQ(g.d_logits.gauge[0], (1 / 1.25 + 0.75 / (1.25 * 1.25)) * 0.75 * 0.25);
}

TEST(RoutingGradient, SingleRenormalisedExpertHasNone) {
  for (const double logit : {-29.0, -3.0, 0.0, 20.0}) {
    for (const int f :
         {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
      Problem p;
      p.settings = route_settings(3, 1, f);
      p.settings.renormalize_single = 1;
      p.tokens = 1;
      p.logits = {logit, logit - 1, logit - 2};
      p.d_weights = {1};
      p.ids = {0};
      for (const double d : p.gradient().d_logits.value) EXPECT_NEAR(d, 0, 1e-6);
      // The control: without renormalisation there is one.
      p.settings.renormalize_single = 0;
      const double d = p.gradient().d_logits.value[0];
      EXPECT_GT(d, f == DROPLESS_SCORE_SIGMOID ? std::exp(-std::abs(logit)) / 5 : 1e-8);
    }
  }
}

TEST(RoutingGradient, SoftmaxOverOneSelectedHasNone) {
  Problem p;
  p.settings = route_settings(3, 1, DROPLESS_SCORE_SOFTMAX);
  p.settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  p.tokens = 1;
  p.logits = {2, 1, 0};
  p.d_weights = {5};
  p.ids = {0};
  EXPECT_EQ(p.gradient().d_logits.value, (Doubles{0, 0, 0}));
}

TEST(RoutingGradient, MaskedTokensAndUnroutedSlotsContributeNothing) {
  Problem p;
  p.settings = route_settings(2, 2, DROPLESS_SCORE_SIGMOID);
  p.settings.renormalize = 1;
  p.tokens = 2;
  p.logits = {0.5, 1, kNaN, 2};
  p.scale = {1, 1};
  p.d_weights = {1, kNaN, kNaN, kNaN};  // the NaN of the first token is at an id of -1
  p.ids = {1, -1, 0, 1};
  p.mask = {1, 0};
  const RoutingGradient g = p.gradient();
  EXPECT_NEAR(g.d_logits.value[1], 0, 1e-15);
  EXPECT_EQ(g.d_logits.value[0], 0);
  EXPECT_EQ(g.d_logits.value[2], 0);
  EXPECT_EQ(g.d_logits.value[3], 0);
  EXPECT_EQ(g.d_expert_scale.value, (Doubles{0, 1}));
}

TEST(RoutingGradient, MaskedPicksHaveNone) {
  for (const int f :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    Problem p;
    p.settings = route_settings(3, 2, f);
    p.settings.renormalize = 1;
    p.settings.renormalize_eps = 0;
    p.tokens = 2;
    p.logits = {1, -kInf, -kInf, /**/ -kInf, -kInf, 2};
    p.d_weights = {1, 1, 1, 1};
    p.ids = {0, 1, /**/ 0, 1};  // the second token's picks are all masked
    for (const double d : p.gradient().d_logits.value) EXPECT_NEAR(d, 0, 1e-15);
  }
}

// Far below zero sqrt(softplus(l)) = e^(l/2), whose derivative is e^(l/2) / 2.
TEST(RoutingGradient, SqrtSoftplusFarBelowZero) {
  Problem p;
  p.settings = route_settings(1, 1, DROPLESS_SCORE_SQRT_SOFTPLUS);
  p.tokens = 1;
  p.d_weights = {1};
  p.ids = {0};
  for (const double logit : {-60.0, -1000.0}) {
    p.logits = {logit};
    EXPECT_NEAR(p.gradient().d_logits.value[0] / (std::exp(logit / 2) / 2), 1, 1e-14);
  }
}

TEST(RoutingGradient, HeldSelectionIsTheForwardOne) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 50; ++trial) {
    Problem p = random_problem(random);
    const Routing free =
        route(p.settings, default_profile(), {p.tokens, p.logits, {}, {}, {}, p.scale});
    const Routing held =
        route(p.settings, default_profile(), {p.tokens, p.logits, {}, {}, free.ids, p.scale});
    EXPECT_EQ(free.weights, held.weights);
  }
}

}  // namespace
}  // namespace dropless::reference::testing
