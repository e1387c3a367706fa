// SPDX-License-Identifier: Apache-2.0
// AdamW by hand, bf16 storage, and stochastic rounding.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

struct Step {
  Step(Index n, dropless_dtype weight_dtype, dropless_dtype moment_dtype = DROPLESS_FP32)
      : gradient(DROPLESS_FP32, {n}),
        first(moment_dtype, {n}),
        second(DROPLESS_FP32, {n}),
        weight(weight_dtype, {n}) {
    first.fill(0), second.fill(0);
    args.learning_rate = 0.1, args.beta1 = 0.9, args.beta2 = 0.99, args.eps = 1e-8;
    args.weight_decay = 0.01, args.gradient_scale = 1, args.step = 1;
  }
  Outcome run() {
    args.gradient = gradient.get(), args.first_moment = first.get();
    args.second_moment = second.get(), args.weight = weight.get();
    return perform(implementation().adamw, args);
  }
  Array gradient, first, second, weight;
  dropless_adamw_args args = make_args<dropless_adamw_args>();
};

// The first step moves by the sign of the gradient, whatever its size.
TEST(Optimizer, FirstStep) {
  Step s(3, DROPLESS_FP32);
  s.gradient.set({2, -4, 0}), s.weight.set({1, 1, 1});
  s.args.gradient_scale = 0.5;
  ASSERT_EQ(s.run().status, DROPLESS_OK);
  EXPECT_NEAR(s.weight.at(0), 1 - 0.1 * (1 + 0.01), 1e-7);
  EXPECT_NEAR(s.weight.at(1), 1 - 0.1 * (-1 + 0.01), 1e-7);
  EXPECT_NEAR(s.weight.at(2), 1 - 0.1 * 0.01, 1e-7);
  EXPECT_NEAR(s.first.at(0), 0.1, 1e-8);
  EXPECT_NEAR(s.second.at(1), 0.01 * 4, 1e-8);
}

TEST(Optimizer, MasterWeightsAndScaleTensor) {
  Step s(1, DROPLESS_BF16, DROPLESS_BF16);
  const Array master = Array(DROPLESS_FP32, {1}).set({1});
  const Array scale = Array(DROPLESS_FP32, {1}).set({2});
  s.gradient.set({1}), s.weight.set({-77});
  s.args.master = master.get(), s.args.gradient_scale_tensor = scale.get();
  ASSERT_EQ(s.run().status, DROPLESS_OK);
  EXPECT_NEAR(master.at(0), 1 - 0.1 * 1.01, 1e-7);
  EXPECT_EQ(s.weight.at(0), round_to(DROPLESS_BF16, master.at(0)));
  EXPECT_EQ(s.first.at(0), round_to(DROPLESS_BF16, 0.2));
}

// p = 1 + 2^-9 lies a quarter of the way between two bf16 numbers.
TEST(Optimizer, StochasticRoundingIsUnbiasedAndRepeats) {
  const Index n = 40000;
  Step s(n, DROPLESS_BF16);
  s.gradient.fill(-1), s.weight.fill(1);
  s.args.learning_rate = 0x1p-9, s.args.weight_decay = 0, s.args.eps = 0;
  s.args.weight_rounding = DROPLESS_ROUND_STOCHASTIC, s.args.seed = 11;
  Step again = s;
  Step other = s;
  ASSERT_EQ(s.run().status, DROPLESS_OK);
  ASSERT_EQ(again.run().status, DROPLESS_OK);
  other.args.seed = 12;
  ASSERT_EQ(other.run().status, DROPLESS_OK);
  Index up = 0;
  for (Index i = 0; i < n; ++i) {
    ASSERT_TRUE(s.weight.at(i) == 1 || s.weight.at(i) == 1 + 0x1p-7) << s.weight.at(i);
    up += s.weight.at(i) > 1 ? 1 : 0;
  }
  const double deviation = std::sqrt(n * 0.25 * 0.75);
  EXPECT_NEAR(static_cast<double>(up), 0.25 * static_cast<double>(n), 5 * deviation);
  EXPECT_EQ(s.weight.bytes(), again.weight.bytes());
  EXPECT_NE(s.weight.bytes(), other.weight.bytes());
}

}  // namespace
}  // namespace dropless::cpu::testing
