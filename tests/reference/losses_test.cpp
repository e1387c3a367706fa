// SPDX-License-Identifier: Apache-2.0
// z-loss (ROUTING-15) and cross-entropy (LOSSES-1) of the reference: hand-computed values,
// extremes, gradients, refusals.
#include "reference/losses.h"

#include <gtest/gtest.h>

#include "tests/reference/finite_difference.h"
#include "tests/reference/refusal.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {
namespace {

using Labels = std::vector<Index>;
using Masks = std::vector<std::uint8_t>;

TEST(ZLoss, ByHand) {
  // logsumexp of (0, ln 3) is ln 4; of (ln 5, ln 3) is ln 8.
  const Doubles logits{0, std::log(3.0), std::log(5.0), std::log(3.0)};
  const double expected = 0.5 * (std::pow(std::log(4.0), 2) + std::pow(std::log(8.0), 2)) / 2;
  EXPECT_DOUBLE_EQ(z_loss(0.5, 2, logits, {}).value, expected);
  EXPECT_DOUBLE_EQ(z_loss(0.5, 2, logits, Masks{0, 1}).value, 0.5 * std::pow(std::log(8.0), 2));
}

TEST(ZLoss, GaugeCoversACancellingLogSumExp) {
  // -ln 2 twice: logsumexp = -ln 2 + ln 2 = 0, from terms that are not small.
  const Loss loss = z_loss(1, 2, Doubles{-std::log(2.0), -std::log(2.0)}, {});
  EXPECT_NEAR(loss.value, 0, 1e-30);
  EXPECT_DOUBLE_EQ(loss.gauge, std::pow(2 * std::log(2.0), 2));
}

TEST(ZLoss, MaskedExpertsAddNothing) {
  EXPECT_DOUBLE_EQ(z_loss(1, 3, Doubles{-kInf, 0, std::log(3.0)}, {}).value,
                   std::pow(std::log(4.0), 2));
  const Gauged g = z_loss_backward(1, 3, Doubles{-kInf, 0, std::log(3.0)}, {}, 1);
  EXPECT_EQ(g.value[0], 0);
  EXPECT_DOUBLE_EQ(g.value[2], 2 * std::log(4.0) * 0.75);
}

TEST(ZLoss, HugeLogitsStayFinite) {
  EXPECT_DOUBLE_EQ(z_loss(1, 2, Doubles{1e4, -1e4}, {}).value, 1e8);
  EXPECT_DOUBLE_EQ(z_loss(1, 2, Doubles{-1e4, -2e4}, {}).value, 1e8);
}

TEST(ZLoss, NoTokens) {
  EXPECT_EQ(z_loss(1, 2, {}, {}).value, 0);
  EXPECT_EQ(z_loss(1, 2, Doubles{1, 2}, Masks{0}).value, 0);
  EXPECT_EQ(z_loss_backward(1, 2, Doubles{1, kNaN}, Masks{0}, 1).value, (Doubles{0, 0}));
}

TEST(ZLoss, GradientAgreesWithFiniteDifferences) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 100; ++trial) {
    const Index experts = 1 + trial % 5;
    const Doubles logits = random_values(random, 3 * experts, 2);
    const Masks mask{1, static_cast<std::uint8_t>(trial % 2), 1};
    const Gauged g = z_loss_backward(0.5, experts, logits, mask, -2);
    expect_gauge(g);
    expect_gradient([&](const Doubles& x) { return -2 * z_loss(0.5, experts, x, mask).value; },
                    logits, g.value, 1e-10);
  }
}

TEST(ZLoss, Refusals) {
  const auto call = [](Index experts, const Doubles& logits, const Masks& mask) {
    return [=] {
      z_loss(1, experts, logits, mask);
      z_loss_backward(1, experts, logits, mask, 1);
    };
  };
  EXPECT_NO_THROW(call(2, {1, 2}, {1})());
  expect_refused(call(2, {1, 2, 3}, {1}), "logits has 3");
  expect_refused(call(2, {1, 2}, {1, 1}), "token_mask has 2");
  expect_refused(call(0, {1, 2}, {}), "num_experts = 0");
}

TEST(CrossEntropy, ByHand) {
  // Probabilities (1/4, 3/4) and (1/2, 1/2), the third token is ignored.
  const Doubles logits{0, std::log(3.0), 7, 7, kNaN, 0};
  const Loss loss = cross_entropy(2, logits, Labels{1, 0, -100});
  EXPECT_DOUBLE_EQ(loss.value, (std::log(4.0 / 3) + std::log(2.0)) / 2);
  const Gauged g = cross_entropy_backward(2, logits, Labels{1, 0, -100}, 8);
  const Doubles expected{1, -1, -2, 2, 0, 0};  // 8 / 2 * (p - onehot)
  for (std::size_t i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(g.value[i], expected[i]);
}

TEST(CrossEntropy, HugeLogits) {
  EXPECT_DOUBLE_EQ(cross_entropy(2, Doubles{1e4, -1e4}, Labels{1}).value, 2e4);
  EXPECT_EQ(cross_entropy(2, Doubles{1e4, -1e4}, Labels{0}).value, 0);
  // Neither the common size of the logits nor their sign costs digits.
  EXPECT_NEAR(cross_entropy(2, Doubles{1e4, 1e4 + 1}, Labels{1}).value, std::log1p(std::exp(-1.0)),
              1e-15);
  EXPECT_NEAR(cross_entropy(2, Doubles{-1e4, -1e4}, Labels{0}).value, std::log(2.0), 1e-15);
}

TEST(CrossEntropy, UniformLogitsGiveTheLogOfTheVocabulary) {
  EXPECT_DOUBLE_EQ(cross_entropy(256, Doubles(256, 0.5), Labels{17}).value, std::log(256.0));
}

TEST(CrossEntropy, NothingLabelled) {
  EXPECT_EQ(cross_entropy(2, Doubles{1, 2}, Labels{-1}).value, 0);
  EXPECT_EQ(cross_entropy(2, {}, {}).value, 0);
  EXPECT_EQ(cross_entropy_backward(2, Doubles{1, 2}, Labels{-1}, 1).value, (Doubles{0, 0}));
}

TEST(CrossEntropy, GradientAgreesWithFiniteDifferencesAndAddsUpToZero) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 100; ++trial) {
    const Index vocabulary = 1 + trial % 7;
    const Doubles logits = random_values(random, 3 * vocabulary, 3);
    const Labels labels{trial % vocabulary, -1, 0};
    const Gauged g = cross_entropy_backward(vocabulary, logits, labels, 1.5);
    expect_gauge(g);
    expect_gradient(
        [&](const Doubles& x) { return 1.5 * cross_entropy(vocabulary, x, labels).value; }, logits,
        g.value, 1e-10);
    double sum = 0;
    for (Index v = 0; v < vocabulary; ++v) sum += g.value[at(v)];
    EXPECT_NEAR(sum, 0, 1e-15);
  }
}

TEST(CrossEntropy, Refusals) {
  const auto call = [](const Doubles& logits, const Labels& labels) {
    return [=] {
      cross_entropy(2, logits, labels);
      cross_entropy_backward(2, logits, labels, 1);
    };
  };
  EXPECT_NO_THROW(call({1, 2, 3, 4}, {0, 1})());
  expect_refused(call({1, 2, 3, 4}, {0, 2}), "labels[1] = 2");
  expect_refused(call({1, 2, 3}, {0, 1}), "logits has 3");
}

}  // namespace
}  // namespace dropless::reference::testing
