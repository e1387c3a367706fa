// SPDX-License-Identifier: Apache-2.0
// AdamW of the reference (OPTIMIZER-1): hand-computed steps, invariances, refusals.
#include "reference/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/reference/refusal.h"

namespace dropless::reference::testing {
namespace {

const AdamwSettings kSettings{0.5, 0.5, 0.75, 0.25, 0.125, 1, 1};

TEST(Adamw, FirstStepByHand) {
  // m = 1, v = 1, c1 = 1/2, c2 = 1/4: u = 2 / (2 + 1/4) = 8/9.
  const AdamwElement e = adamw(kSettings, 2, 0, 0, 4);
  EXPECT_DOUBLE_EQ(e.first_moment, 1);
  EXPECT_DOUBLE_EQ(e.second_moment, 1);
  EXPECT_DOUBLE_EQ(e.update, 0.5 * (8.0 / 9 + 0.5));
  EXPECT_DOUBLE_EQ(e.weight, 4 - 0.5 * (8.0 / 9 + 0.5));
}

TEST(Adamw, SecondStepByHand) {
  AdamwSettings settings = kSettings;
  settings.step = 2;
  // From m = 1, v = 1 with g = -1: m = 0, then only the decay is left.
  const AdamwElement e = adamw(settings, -1, 1, 1, 4);
  EXPECT_DOUBLE_EQ(e.first_moment, 0);
  EXPECT_DOUBLE_EQ(e.second_moment, 1);
  EXPECT_DOUBLE_EQ(e.update, 0.5 * 0.125 * 4);
  // With g = 3: m = 2, v = 3, c1 = 3/4, c2 = 7/16: u = (8/3) / (sqrt(48/7) + 1/4).
  EXPECT_DOUBLE_EQ(adamw(settings, 3, 1, 1, 0).update,
                   0.5 * (8.0 / 3) / (std::sqrt(48.0 / 7) + 0.25));
}

// The gradient scale is applied before the moments, so the second moment sees its square.
TEST(Adamw, GradientScale) {
  AdamwSettings settings = kSettings;
  settings.gradient_scale = 0.25;
  const AdamwElement scaled = adamw(settings, 8, 0.5, 0.25, 1);
  const AdamwElement plain = adamw(kSettings, 2, 0.5, 0.25, 1);
  EXPECT_EQ(scaled.first_moment, plain.first_moment);
  EXPECT_EQ(scaled.second_moment, plain.second_moment);
  EXPECT_EQ(scaled.weight, plain.weight);
}

// Decoupled decay: it does not pass through the moments.
TEST(Adamw, DecayIsDecoupled) {
  AdamwSettings without = kSettings;
  without.weight_decay = 0;
  const AdamwElement a = adamw(kSettings, 2, 0.5, 0.25, 3);
  const AdamwElement b = adamw(without, 2, 0.5, 0.25, 3);
  EXPECT_EQ(a.first_moment, b.first_moment);
  EXPECT_EQ(a.second_moment, b.second_moment);
  EXPECT_DOUBLE_EQ(a.update - b.update, 0.5 * 0.125 * 3);
}

// On the first step without eps the update is lr * sign(g), whatever the size of g.
TEST(Adamw, FirstUpdateIsTheSign) {
  AdamwSettings settings{0.125, 0.9, 0.999, 0, 0, 1, 1};
  for (const double g : {1e-10, 1.0, 1e10}) {
    EXPECT_NEAR(adamw(settings, g, 0, 0, 0).update, 0.125, 1e-13);
    EXPECT_NEAR(adamw(settings, -g, 0, 0, 0).update, -0.125, 1e-13);
  }
}

TEST(Adamw, ConstantGradientKeepsTheUnitUpdateOverManySteps) {
  AdamwSettings settings{1, 0.9, 0.999, 0, 0, 1, 0};
  double m = 0, v = 0;
  for (settings.step = 1; settings.step <= 1000; ++settings.step) {
    const AdamwElement e = adamw(settings, 0.3, m, v, 0);
    m = e.first_moment, v = e.second_moment;
    EXPECT_NEAR(e.update, 1, 1e-10);
  }
}

TEST(Adamw, Refusals) {
  const auto refused = [](const std::function<void(AdamwSettings&)>& spoil, const char* culprit) {
    AdamwSettings settings = kSettings;
    EXPECT_NO_THROW(adamw(settings, 1, 0, 0, 0));
    spoil(settings);
    expect_refused([&] { adamw(settings, 1, 0, 0, 0); }, culprit);
  };
  refused([](AdamwSettings& s) { s.beta1 = 1; }, "beta1");
  refused([](AdamwSettings& s) { s.beta2 = -0.1; }, "beta2");
  refused([](AdamwSettings& s) { s.beta2 = std::nan(""); }, "beta2");
  refused([](AdamwSettings& s) { s.step = 0; }, "step = 0");
  refused([](AdamwSettings& s) { s.eps = -1; }, "eps");
}

TEST(ClipFactors, ByHand) {
  EXPECT_EQ(clip_factors(4, 1).plain, 0.25);
  EXPECT_DOUBLE_EQ(clip_factors(4, 1).with_eps, 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factors(0.5, 1).plain, 1);
  EXPECT_EQ(clip_factors(0.5, 1).with_eps, 1);
  EXPECT_EQ(clip_factors(0, 0).plain, 1);
  EXPECT_EQ(clip_factors(0, 1).with_eps, 1);
}

TEST(ClipFactors, AnUndefinedNormIsNotHidden) {
  EXPECT_TRUE(std::isnan(clip_factors(std::nan(""), 1).plain));
  EXPECT_TRUE(std::isnan(clip_factors(std::nan(""), 1).with_eps));
}

TEST(ClipFactors, Refusals) {
  EXPECT_NO_THROW(clip_factors(1, 0));
  expect_refused([] { clip_factors(1, -1); }, "max_norm");
}

}  // namespace
}  // namespace dropless::reference::testing
