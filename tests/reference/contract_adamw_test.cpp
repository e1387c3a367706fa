// SPDX-License-Identifier: Apache-2.0
// AdamW of the reference through the contract, and stochastic rounding on its own.
#include <gtest/gtest.h>

#include <set>

#include "reference/contract/stochastic_rounding.h"
#include "reference/optimizer.h"
#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

struct Adamw : Fixture {
  dropless_adamw_args args = arguments<dropless_adamw_args>();
  explicit Adamw(Index gap) : Fixture(gap) {
    args.learning_rate = 0.5;
    args.beta1 = 0.5;
    args.beta2 = 0.75;
    args.eps = 0.25;
    args.weight_decay = 0.125;
    args.gradient_scale = 1;
    args.step = 1;
    args.gradient = input("gradient", DROPLESS_FP32, {2}, {2, 0});
    args.first_moment = in_out("first_moment", DROPLESS_FP32, {2}, {0, 1});
    args.second_moment = in_out("second_moment", DROPLESS_FP32, {2}, {0, 0});
    args.weight = in_out("weight", DROPLESS_FP32, {2}, {4, 0});
  }
  dropless_status run() override { return table().adamw(table().context, &call, &args); }
};

TEST(ContractAdamw, ByHand) {
  Adamw o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["first_moment"].values(), (Doubles{1, 0.5}));
  EXPECT_EQ(o["second_moment"].values(), (Doubles{1, 0}));
  // u = 8/9 and decay 1/8 of 4; the other element: u = 1 / (0 + 1/4) = 4.
  EXPECT_EQ(o["weight"].values(), (Doubles{fp32(4 - 0.5 * (8.0 / 9 + 0.5)), -2}));
}

TEST(ContractAdamw, TheScaleTensorReplacesTheScale) {
  Adamw o(0), plain(0);
  HostTensor scale("scale", DROPLESS_FP32, {1}, false, 0);
  o.args.gradient_scale_tensor = scale.set({0.5});
  o.args.gradient_scale = kNaN;
  o["gradient"].set({4, 0});
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  ASSERT_EQ(plain.run(), DROPLESS_OK);
  for (const char* name : {"first_moment", "second_moment", "weight"}) {
    EXPECT_EQ(o[name].integers(), plain[name].integers()) << name;
  }
}

// The update comes from the moment before it is stored to bf16.
TEST(ContractAdamw, Bf16FirstMoment) {
  Adamw o(0), wide(0);
  HostTensor m("m16", DROPLESS_BF16, {2}, true, 0);
  m.set({0, 1});
  o.args.first_moment = m;
  for (Adamw* one : {&o, &wide}) (*one)["gradient"].set({2 + 0x1p-9, 0.001});
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  ASSERT_EQ(wide.run(), DROPLESS_OK);
  EXPECT_EQ(o["weight"].integers(), wide["weight"].integers());
  const Doubles exact{1 + 0x1p-10, 0.5 + 0.5 * fp32(0.001)};
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(m.values()[i], round_to(DROPLESS_BF16, exact[i]));
    EXPECT_NE(m.values()[i], exact[i]);
  }
}

TEST(ContractAdamw, MasterIsUpdatedAndTheWeightIsItsRounding) {
  Adamw o(0), plain(0);
  HostTensor master("master", DROPLESS_FP32, {2}, true, 0),
      weight("w16", DROPLESS_BF16, {2}, true, 0);
  o.args.master = master.set({4, 0});
  o.args.weight = weight.set({kNaN, kNaN});  // only an output
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  ASSERT_EQ(plain.run(), DROPLESS_OK);
  EXPECT_EQ(master.integers(), plain["weight"].integers());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(weight.values()[i], round_to(DROPLESS_BF16, master.values()[i]));
  }
}

// p = 1 + 2^-8 + 2^-30: the master holds 1 + 2^-8, a tie of bf16 that goes to 1, while p itself
// would go to 1 + 2^-7. The weight is the rounding of the master.
TEST(ContractAdamw, TheWeightIsMadeFromTheStoredMaster) {
  Adamw o(0);
  HostTensor master("master", DROPLESS_FP32, {2}, true, 0),
      weight("w16", DROPLESS_BF16, {2}, true, 0);
  const double start = 1 + 0x1p-8 + 0x1p-23;
  o.args.learning_rate = 1;
  o.args.weight_decay = (0x1p-23 - 0x1p-30) / start;
  for (const char* name : {"gradient", "first_moment"}) o[name].set({0, 0});
  o.args.master = master.set({start, start});
  o.args.weight = weight;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(master.values()[0], 1 + 0x1p-8);
  EXPECT_EQ(weight.values()[0], 1);
}

TEST(ContractAdamw, Bf16WeightToNearestEven) {
  Adamw o(0);
  HostTensor weight("w16", DROPLESS_BF16, {2}, true, 0);
  o.args.weight = weight.set({4, 0});
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(weight.values()[0], round_to(DROPLESS_BF16, 4 - 0.5 * (8.0 / 9 + 0.5)));
}

// n equal elements, p between two bf16 values: the share that goes up has the right mean, the same
// seed repeats, another seed and another step do not, and neighbours are not correlated.
TEST(ContractAdamw, StochasticRounding) {
  const Index n = 40000;
  const auto run = [&](std::uint64_t seed, Index step) {
    Adamw o(0);
    HostTensor g("g", DROPLESS_FP32, {n}, false, 0), m("m", DROPLESS_FP32, {n}, true, 0),
        v("v", DROPLESS_FP32, {n}, true, 0), weight("w", DROPLESS_BF16, {n}, true, 0);
    const Doubles zeros(at(n), 0);
    o.args.gradient = g.set(zeros), o.args.first_moment = m.set(zeros);
    o.args.second_moment = v.set(zeros), o.args.weight = weight.set(Doubles(at(n), 1));
    o.args.learning_rate = 1, o.args.weight_decay = 0x1p-10;  // p = 1 - 2^-10
    o.args.weight_rounding = DROPLESS_ROUND_STOCHASTIC;
    o.args.seed = seed, o.args.step = step;
    EXPECT_EQ(o.run(), DROPLESS_OK) << o.message();
    return weight.values();
  };
  const Doubles first = run(1, 1);
  // Below 1 the spacing is 2^-8: p lies 3/4 of the way from 1 - 2^-8 to 1.
  double up = 0, pairs = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    ASSERT_TRUE(first[i] == 1 || first[i] == 1 - 0x1p-8);
    up += first[i] == 1 ? 1 : 0;
    pairs += i > 0 && first[i] == 1 && first[i - 1] == 1 ? 1 : 0;
  }
  const double count = static_cast<double>(n);
  EXPECT_NEAR(up / count, 0.75, 5 * std::sqrt(0.75 * 0.25 / count));
  EXPECT_NEAR(pairs / count, 0.75 * 0.75, 5 * std::sqrt(0.6 / count));
  EXPECT_EQ(run(1, 1), first);
  EXPECT_NE(run(2, 1), first);
  EXPECT_NE(run(1, 2), first);
}

TEST(StochasticRounding, NeighboursByHand) {
  const auto value = [](double x, double uniform) {
    return Bf16::from_bits(round_stochastically(x, uniform)).to_double();
  };
  // A quarter of the way from 1 to 1 + 2^-7.
  EXPECT_EQ(value(1 + 0x1p-9, 0.24), 1 + 0x1p-7);
  EXPECT_EQ(value(1 + 0x1p-9, 0.26), 1);
  EXPECT_EQ(value(-1 - 0x1p-9, 0.24), -1 - 0x1p-7);
  EXPECT_EQ(value(-1 - 0x1p-9, 0.26), -1);
  // Exact values stay whatever the number; the smallest subnormal is 2^-133.
  EXPECT_EQ(value(1.5, 0), 1.5);
  EXPECT_EQ(value(0, 0), 0);
  EXPECT_EQ(value(0x1p-134, 0.49), 0x1p-133);
  EXPECT_EQ(value(0x1p-134, 0.51), 0);
  // Beyond the largest finite value there is no neighbour: to nearest even.
  EXPECT_EQ(value(0x1.FEp127 + 0x1p118, 0), 0x1.FEp127);
  EXPECT_EQ(value(1e300, 0.9), kInf);
  EXPECT_TRUE(std::isnan(value(kNaN, 0.5)));
}

TEST(StochasticRounding, UniformNumbersAreUniform) {
  double sum = 0, squares = 0;
  std::set<double> seen;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double u = counter_uniform(7, 3, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u, squares += u * u;
    seen.insert(u);
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(n));
}

TEST(ContractAdamw, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Adamw>();
  expect_tensors_are_checked<Adamw>();
  using O = Adamw;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.step = 0; }, "step = 0");
  refused([](O& o) { o.args.beta1 = 1; }, "beta1");
  refused([](O& o) { o.args.beta2 = -1; }, "beta2");
  refused([](O& o) { o.args.eps = -1; }, "eps");
  refused([](O& o) { o.args.weight_rounding = 2; }, "weight_rounding = 2");
  refused([](O& o) { o.args.weight = nullptr; }, "weight is null");
  refused(
      [](O& o) {
        o.args.master = o["gradient"];
        --o["gradient"].tensor.shape[0];
      },
      "has the shape");
  refused([](O& o) { o["second_moment"].tensor.dtype = DROPLESS_BF16; }, "second_moment has dtype");
}

TEST(ContractAdamw, NoElements) {
  Adamw o(0);
  HostTensor none("none", DROPLESS_FP32, {0}, true, 0);
  o.args.gradient = o.args.first_moment = o.args.second_moment = o.args.weight = none;
  EXPECT_EQ(o.run(), DROPLESS_OK) << o.message();
}

}  // namespace
}  // namespace dropless::reference::testing
