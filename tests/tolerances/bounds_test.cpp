// SPDX-License-Identifier: Apache-2.0
// Every bound: positive, growing with length, gauge and spread, with the documented special cases;
// and the numbers of the clauses.
#include "tolerances/bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace dropless::tolerances {
namespace {

constexpr double u = 0x1p-24;
constexpr double infinity = std::numeric_limits<double>::infinity();

dropless_route_settings route(int function, int renormalize, Index e = 64, Index k = 8) {
  dropless_route_settings s{};
  s.num_experts = e;
  s.top_k = k;
  s.score_function = function;
  s.renormalize = s.renormalize_single = renormalize;
  return s;
}

dropless_profile accumulators(int accumulator, int period = 0) {
  dropless_profile p{};
  p.accumulator_fp32 = p.accumulator_bf16 = p.accumulator_mxfp8 = accumulator;
  p.promotion_period = period;
  return p;
}

TEST(Bounds, NumbersOfTheClauses) {
  // GROUPED_GEMM-6 in fp32, any order: K u S for exact products.
  EXPECT_DOUBLE_EQ(gemm({}, Operands::bf16, 4096, 2), 4096 * u * 2 + 4096 * 0x1p-149);
  EXPECT_DOUBLE_EQ(gemm({}, Operands::fp32, 100, 1, 2), 103 * u + 102 * 0x1p-149);
  EXPECT_NEAR(gemm(accumulators(DROPLESS_ACCUMULATOR_HOPPER_FP8_13, 128), Operands::mxfp8, 4096, 1),
              1.6e-2, 2e-4);
  EXPECT_NEAR(gemm(accumulators(DROPLESS_ACCUMULATOR_HOPPER_FP8_13), Operands::mxfp8, 4096, 1),
              0.52, 0.01);
  // PERMUTATION-6 and 7.
  EXPECT_NEAR(sum(8, 1), 9 * u, 1e-40);
  EXPECT_NEAR(sum(2048 + 1, 1), (2048 + 2) * u, 1e-40);
  // ROUTING-6.
  EXPECT_EQ(routing_weight_relative(route(DROPLESS_SCORE_SIGMOID, 0), {}, 5), 8 * u);
  EXPECT_EQ(routing_weight_relative(route(DROPLESS_SCORE_SQRT_SOFTPLUS, 1), {}, 5), (8 + 12) * u);
  EXPECT_EQ(routing_weight_relative(route(DROPLESS_SCORE_SOFTMAX, 0), {}, 5), (64 + 5 + 16) * u);
  EXPECT_EQ(routing_weight_relative(route(DROPLESS_SCORE_SOFTMAX, 1), {}, 5), (8 + 5 + 16) * u);
  auto after = route(DROPLESS_SCORE_SOFTMAX, 0);
  after.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  EXPECT_EQ(routing_weight_relative(after, {}, 5), (8 + 5 + 16) * u);
  dropless_profile fast{};
  fast.exponential = DROPLESS_EXPONENTIAL_FAST;
  EXPECT_DOUBLE_EQ(routing_weight_relative(route(DROPLESS_SCORE_SOFTMAX, 0), fast, 5),
                   (64 + 5 + 16) * u + (2 + 1.2 * 5) * 2 * u);
  // The switch for one expert is its own.
  auto single = route(DROPLESS_SCORE_SIGMOID, 0, 64, 1);
  single.renormalize = 1;
  EXPECT_EQ(routing_weight_relative(single, {}, 5), 8 * u);
}

TEST(Bounds, TheAccumulatorIsThatOfTheOperands) {
  dropless_profile p{};
  p.accumulator_mxfp8 = DROPLESS_ACCUMULATOR_HOPPER_FP8_13;
  p.accumulator_bf16 = DROPLESS_ACCUMULATOR_TENSOR_CORE_25;
  const double fp32 = gemm(p, Operands::fp32, 256, 1), bf16 = gemm(p, Operands::bf16, 256, 1),
               mxfp8 = gemm(p, Operands::mxfp8, 256, 1);
  EXPECT_NEAR(fp32, 257 * u, 1e-12);
  EXPECT_NEAR(bf16, 257 * u, 1e-12);
  EXPECT_GT(mxfp8, 1000 * bf16);
  p.partials = DROPLESS_PARTIALS_BF16;
  EXPECT_NEAR(gemm(p, Operands::bf16, 256, 1), 0x1p-8, 1e-4);
  p.accumulator_bf16 = 77;
  EXPECT_THROW(gemm(p, Operands::bf16, 1, 1), std::logic_error);
  EXPECT_THROW(gemm(p, Operands::fp32, -1, 1), std::logic_error);
}

TEST(Bounds, EpilogueRoundings) {
  EXPECT_EQ(epilogue_roundings(1, false, 0), 0);
  EXPECT_EQ(epilogue_roundings(-0.25, true, 0), 1);
  EXPECT_EQ(epilogue_roundings(0.1, false, 0), 2);
  EXPECT_EQ(epilogue_roundings(1, false, 1), 1);
  EXPECT_EQ(epilogue_roundings(3, true, 0.9), 6);
}

// A bound as a function of one argument that it must not fall with.
struct Growing {
  std::string name;
  std::function<double(double)> bound;
  std::vector<double> arguments;
};

std::vector<Growing> growing() {
  const std::vector<double> lengths = {1, 2, 8, 31, 32, 33, 127, 128, 129, 4096, 1e6};
  const std::vector<double> gauges = {1e-30, 1e-3, 1, 7, 1e10};
  const std::vector<double> spreads = {0, 0.5, 3, 20, 100};
  std::vector<Growing> all;
  const auto length = [](double n) { return static_cast<Index>(n); };
  for (const int accumulator : {DROPLESS_ACCUMULATOR_FP32, DROPLESS_ACCUMULATOR_TENSOR_CORE_25,
                                DROPLESS_ACCUMULATOR_HOPPER_FP8_13}) {
    for (const int period : {0, 128}) {
      const auto p = accumulators(accumulator, period);
      const std::string name = std::to_string(accumulator) + "/" + std::to_string(period);
      all.push_back({"gemm length " + name,
                     [=](double n) { return gemm(p, Operands::mxfp8, length(n), 1); }, lengths});
      all.push_back({"gemm gauge " + name,
                     [=](double g) { return gemm(p, Operands::fp32, 100, g, 3); }, gauges});
      all.push_back({"gemm extra " + name,
                     [=](double n) { return gemm(p, Operands::fp32, 100, 1, length(n)); },
                     lengths});
      all.push_back({"statistical length " + name,
                     [=](double n) { return gemm_statistical(p, Operands::bf16, length(n), 1, 0); },
                     lengths});
      all.push_back({"statistical root " + name,
                     [=](double g) { return gemm_statistical(p, Operands::bf16, 9, g, 1e-3); },
                     gauges});
    }
  }
  all.push_back({"sum length", [=](double n) { return sum(length(n), 1); }, lengths});
  all.push_back({"sum gauge", [](double g) { return sum(8, g); }, gauges});
  for (const int rounding : {DROPLESS_COMBINE_ROUNDS_ONCE, DROPLESS_COMBINE_ROUNDS_PER_RANK}) {
    dropless_profile p{};
    p.combine_rounding = rounding;
    all.push_back({"combine", [=](double g) { return combine(p, DROPLESS_BF16, 8, g); }, gauges});
  }
  for (const int function :
       {DROPLESS_SCORE_SOFTMAX, DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    for (const int renormalize : {0, 1}) {
      const auto s = route(function, renormalize);
      dropless_profile fast{};
      fast.exponential = DROPLESS_EXPONENTIAL_FAST;
      for (const dropless_profile& p : {dropless_profile{}, fast}) {
        all.push_back(
            {"weight", [=](double x) { return routing_weight_relative(s, p, x); }, spreads});
        all.push_back({"score", [=](double x) { return score_relative(s, p, x); }, spreads});
        all.push_back({"distance spread",
                       [=](double x) { return selection_distance(s, p, 0.5, 2, x); }, spreads});
        all.push_back({"distance score",
                       [=](double x) { return selection_distance(s, p, x, 1, 3); }, spreads});
        all.push_back(
            {"gradient gauge", [=](double g) { return routing_gradient(s, p, g, 3, 1); }, gauges});
        all.push_back({"gradient spread", [=](double x) { return routing_gradient(s, p, 1, x, 1); },
                       spreads});
        all.push_back(
            {"gradient logit", [=](double x) { return routing_gradient(s, p, 1, 3, x); }, spreads});
        all.push_back({"expert scale",
                       [=](double n) { return expert_scale_gradient(s, p, length(n), 1, 3); },
                       lengths});
        all.push_back({"balance", [=](double g) { return balance_loss(s, p, 64, g, 3); }, gauges});
        all.push_back({"balance tokens",
                       [=](double n) { return balance_loss(s, p, length(n), 1, 3); }, lengths});
        all.push_back({"balance gradient",
                       [=](double g) { return balance_loss_gradient(s, p, g, 3, 1); }, gauges});
      }
    }
  }
  all.push_back({"subtract", [](double b) { return routing_weight_subtract(0.5, b); }, gauges});
  for (const int kind :
       {DROPLESS_SWIGLU, DROPLESS_SWIGLU_CLAMPED, DROPLESS_GEGLU_TANH, DROPLESS_RELU2}) {
    dropless_activation_settings s{};
    s.kind = kind;
    s.limit = 1e20, s.alpha = 1.702, s.offset = 1;
    for (const double gate : {-90.0, -3.0, 0.5, 40.0}) {
      if (kind == DROPLESS_RELU2 && gate < 0) continue;
      all.push_back({"activation up",
                     [=](double up) { return activation_forward({}, s, gate, up, 0.5); }, gauges});
      all.push_back({"activation weight",
                     [=](double w) { return activation_forward({}, s, gate, 1, 2 * w + 2); },
                     gauges});
      all.push_back({"activation d_gate",
                     [=](double d) { return activation_backward({}, s, gate, 1, d, 1).d_gate; },
                     gauges});
      if (kind == DROPLESS_RELU2) continue;
      all.push_back({"activation d_up",
                     [=](double d) { return activation_backward({}, s, gate, 1, d, 1).d_up; },
                     gauges});
    }
  }
  all.push_back(
      {"ce tokens", [=](double n) { return cross_entropy({}, length(n), 9, 1); }, lengths});
  all.push_back(
      {"ce width", [=](double n) { return cross_entropy({}, 9, length(n), 1); }, lengths});
  all.push_back({"ce gauge", [](double g) { return cross_entropy({}, 9, 9, g); }, gauges});
  all.push_back(
      {"ce gradient", [](double g) { return cross_entropy_gradient({}, 9, g, 1, 1); }, gauges});
  all.push_back({"z gauge", [](double g) { return z_loss({}, 9, 9, 1e-3, g, 3); }, gauges});
  all.push_back({"z largest", [](double x) { return z_loss({}, 9, 9, 1e-3, 1, x); }, gauges});
  all.push_back({"z gradient", [](double g) { return z_loss_gradient({}, 9, g, 1, 1); }, gauges});
  all.push_back({"adamw weight", [](double x) { return adamw_weight(x, 1e-3); }, gauges});
  all.push_back({"adamw update", [](double x) { return adamw_weight(1, x); }, gauges});
  all.push_back({"adamw moment", [](double x) { return adamw_moment(x); }, gauges});
  return all;
}

TEST(Bounds, ArePositiveAndGrow) {
  for (const Growing& one : growing()) {
    double before = 0;
    for (const double argument : one.arguments) {
      const double bound = one.bound(argument);
      EXPECT_TRUE(std::isfinite(bound)) << one.name << " at " << argument;
      EXPECT_GT(bound, 0) << one.name << " at " << argument;
      EXPECT_GE(bound, before) << one.name << " at " << argument;
      before = bound;
    }
    EXPECT_GT(one.bound(one.arguments.back()), 0) << one.name;
  }
}

TEST(Bounds, NothingAddedNothingLost) {
  const auto s = route(DROPLESS_SCORE_SIGMOID, 1);
  for (const double nothing : {0.0, std::nan("")}) {
    EXPECT_EQ(gemm({}, Operands::fp32, 9, nothing, 2), 0);
    EXPECT_EQ(sum(9, nothing), 0);
    EXPECT_EQ(combine({}, DROPLESS_BF16, 9, nothing), 0);
    EXPECT_EQ(routing_gradient(s, {}, nothing, 1, 1), 0);
    EXPECT_EQ(cross_entropy_gradient({}, 9, nothing, 1, 1), 0);
    EXPECT_EQ(z_loss_gradient({}, 9, nothing, 1, 1), 0);
    EXPECT_EQ(balance_loss(s, {}, 9, nothing, 1), 0);
    EXPECT_EQ(balance_loss_gradient(s, {}, nothing, 1, 1), 0);
  }
  EXPECT_EQ(gemm({}, Operands::fp32, 0, 0), 0);
  EXPECT_EQ(gemm_statistical({}, Operands::fp32, 9, 0, 0), 0);
}

TEST(Bounds, InfiniteGaugeIsNotJudged) {
  EXPECT_EQ(gemm({}, Operands::bf16, 9, infinity), infinity);
  EXPECT_EQ(sum(9, infinity), infinity);
  EXPECT_EQ(routing_gradient(route(DROPLESS_SCORE_SOFTMAX, 0), {}, 1, infinity, 0), infinity);
}

TEST(Bounds, MaskedExperts) {
  const auto s = route(DROPLESS_SCORE_SOFTMAX, 1);
  EXPECT_EQ(selection_distance(s, {}, 0, -infinity, infinity), 0);
  const std::vector<SelectedExpert> selected = {{0.7, 0, 0, 2}, {0, infinity, 0, 2}};
  for (const double error : routing_weights(s, {}, selected)) EXPECT_TRUE(std::isfinite(error));
  EXPECT_LT(routing_weights(s, {}, selected)[1], 1e-37);  // a masked pick weighs 0
  // Where the sum itself may have been lost, nothing is judged.
  dropless_profile subtract{};
  subtract.weight_source = DROPLESS_WEIGHT_SUBTRACT;
  const std::vector<SelectedExpert> lost = {{1e-9, 0, 1, 1e9}};
  EXPECT_EQ(routing_weights(route(DROPLESS_SCORE_SIGMOID, 1), subtract, lost)[0], infinity);
}

TEST(Bounds, SelectionOfAnUnbiasedSoftmaxDoesNotPayForTheSum) {
  const auto s = route(DROPLESS_SCORE_SOFTMAX, 0, 512);
  EXPECT_LT(selection_distance(s, {}, 0.1, 0.1, 1, false),
            0.1 * selection_distance(s, {}, 0.1, 0.1, 1, true));
  auto after = s;
  after.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
  EXPECT_EQ(selection_distance(after, {}, 0.1, 3, 1, false), 0);
}

TEST(Bounds, HeldInputsOfTheActivationHaveNoSlope) {
  dropless_activation_settings clamped{};
  clamped.kind = DROPLESS_SWIGLU_CLAMPED;
  clamped.limit = 7, clamped.alpha = 1.702, clamped.offset = 1;
  EXPECT_EQ(activation_backward({}, clamped, 8, 1, 1, 1).d_gate, 0);
  EXPECT_GT(activation_backward({}, clamped, 8, 1, 1, 1).d_up, 0);
  EXPECT_EQ(activation_backward({}, clamped, 1, -8, 1, 1).d_up, 0);
  dropless_activation_settings relu2{};
  relu2.kind = DROPLESS_RELU2;
  EXPECT_EQ(activation_forward({}, relu2, -1, 0, 1), 0);
}

TEST(Bounds, GroupDistanceCoversTheSumOfItsMembers) {
  dropless_route_settings settings{};
  settings.group_score = DROPLESS_GROUP_SCORE_TOP_SUM;
  const std::vector<double> distances = {1e-6, 2e-6}, selections = {1, -3};
  EXPECT_NEAR(group_distance(settings, distances, selections), 3e-6 + 4 * 0x1p-24, 1e-15);
  settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  EXPECT_EQ(group_distance(settings, distances, selections), 2e-6);
  EXPECT_EQ(group_distance(settings, {}, {}), 0);
}

TEST(Bounds, AdamwIsInUlps) {
  EXPECT_EQ(adamw_weight(1.5, 0x1p-10), 0x1p-23 + 4 * 0x1p-33);
  EXPECT_EQ(adamw_weight(1.5, 0x1p-10, 0x1p-8), 0x1p-23 + 4 * 0x1p-31);
  EXPECT_EQ(adamw_moment(-1), 2 * 0x1p-23);
  EXPECT_EQ(adamw_moment(0, 4), 2 * 0x1p-21);
}

}  // namespace
}  // namespace dropless::tolerances
