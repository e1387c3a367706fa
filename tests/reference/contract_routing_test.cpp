// SPDX-License-Identifier: Apache-2.0
// Routing, router losses and cross-entropy of the reference through the contract.
#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

struct RouteForward : Fixture {
  dropless_route_settings settings = route_settings(4, 2, DROPLESS_SCORE_SIGMOID);
  dropless_route_args args = arguments<dropless_route_args>();
  explicit RouteForward(Index gap) : Fixture(gap) {
    settings.renormalize = 1;
    settings.scaling_factor = 2;
    args.settings = &settings;
    args.logits = input("logits", DROPLESS_FP32, {3, 4}, {0, 3, 1, 2, 4, 0, 1, 2, 9, 9, 9, 9});
    args.expert_bias = input("expert_bias", DROPLESS_FP32, {4}, {2, 0, 0, 0});
    args.token_mask = input("token_mask", DROPLESS_U8, {3}, {1, 1, 0});
    args.expert_scale = input("expert_scale", DROPLESS_FP32, {4}, {1, 3, 1, 1});
    args.ids = output("ids", DROPLESS_I32, {3, 2});
    args.weights = output("weights", DROPLESS_FP32, {3, 2});
    args.scores = output("scores", DROPLESS_FP32, {3, 4});
    args.tokens_per_expert = output("tokens_per_expert", DROPLESS_I64, {4});
  }
  dropless_status run() override { return table().route_forward(table().context, &call, &args); }
};

TEST(ContractRouteForward, ByHand) {
  RouteForward o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["ids"].integers(), (Ids{0, 1, 0, 3, -1, -1}));
  const double half = 0.5, s3 = 1 / (1 + std::exp(-3.0));
  EXPECT_EQ(o["weights"].values()[0], fp32(2 * half / (half + s3)));
  EXPECT_EQ(o["weights"].values()[1], fp32(3 * 2 * s3 / (half + s3)));
  EXPECT_EQ(o["weights"].values()[4], 0);
  EXPECT_EQ(o["scores"].values()[1], fp32(s3));
  EXPECT_EQ(o["tokens_per_expert"].integers(), (Ids{2, 1, 0, 1}));
}

TEST(ContractRouteForward, TensorsAndStrides) {
  expect_strides_are_honoured<RouteForward>();
  expect_tensors_are_checked<RouteForward>();
}

TEST(ContractRouteForward, Bf16LogitsAndWideIds) {
  RouteForward fp32_logits(0), o(0);
  HostTensor bf16("bf16", DROPLESS_BF16, {3, 4}, false, 0),
      wide("wide", DROPLESS_I64, {3, 2}, true, 1);
  bf16.set(fp32_logits["logits"].values());
  o.args.logits = bf16;
  o.args.ids = wide;
  ASSERT_EQ(fp32_logits.run(), DROPLESS_OK);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(wide.integers(), fp32_logits["ids"].integers());
  EXPECT_EQ(o["weights"].integers(), fp32_logits["weights"].integers());
}

TEST(ContractRouteForward, GivenIds) {
  RouteForward o(0);
  HostTensor given("given", DROPLESS_I64, {3, 2}, false, 0);
  o.args.given_ids = given.set({2, -1, 3, 1, 0, 1});
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["ids"].integers(), (Ids{2, -1, 3, 1, -1, -1}));
  given.set({2, 2, 3, 1, 0, 1});
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("given_ids[0,1] = 2"), std::string::npos) << o.message();
}

TEST(ContractRouteForward, ProfileChoosesTheTieRule) {
  RouteForward o(0);
  o.args.expert_bias = nullptr;
  o["logits"].set(Doubles(12, 1.0));
  o.profile.tie_rule = DROPLESS_TIE_HIGHEST_INDEX;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["ids"].integers(), (Ids{3, 2, 3, 2, -1, -1}));
}

TEST(ContractRouteForward, Refusals) {
  using O = RouteForward;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.settings = nullptr; }, "route settings is null");
  refused([](O& o) { o.settings.struct_size = 40; }, "route settings.struct_size = 40");
  refused([](O& o) { o.settings.top_k = 5; }, "top_k = 5");
  refused([](O& o) { o.settings.num_groups = 3; }, "num_groups = 3");
  refused(
      [](O& o) {
        o.settings.score_function = DROPLESS_SCORE_SOFTMAX;
        o.settings.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
        o.settings.renormalize = 0;
      },
      "expert_bias");
  refused([](O& o) { o.args.logits = nullptr; }, "logits is null");
  refused([](O& o) { o.args.ids = nullptr; }, "ids is null");
  refused([](O& o) { o.args.weights = nullptr; }, "weights is null");
  refused([](O& o) { o.args.tokens_per_expert = nullptr; }, "tokens_per_expert is null");
  refused([](O& o) { o["logits"].tensor.dtype = DROPLESS_I32; }, "logits has dtype");
  refused([](O& o) { o["logits"].tensor.rank = 3; }, "logits has rank 3");
}

// Struct sizes: what lies beyond the declared size is zero, whatever the memory holds.
TEST(ContractRouteForward, ShortArguments) {
  RouteForward o(0);
  o.args.struct_size = offsetof(dropless_route_args, tokens_per_expert);
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("tokens_per_expert is null"), std::string::npos) << o.message();
  o.args.struct_size = 4;
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("arguments.struct_size = 4"), std::string::npos) << o.message();
  EXPECT_EQ(o.table().route_forward(o.table().context, &o.call, nullptr),
            DROPLESS_INVALID_ARGUMENT);
}

TEST(ContractRouteForward, NoTokens) {
  RouteForward o(0);
  HostTensor logits("l", DROPLESS_FP32, {0, 4}, false, 0), ids("i", DROPLESS_I32, {0, 2}, true, 0),
      weights("w", DROPLESS_FP32, {0, 2}, true, 0);
  ASSERT_EQ(logits.tensor.data, nullptr);
  o.args.logits = logits, o.args.ids = ids, o.args.weights = weights;
  o.args.scores = nullptr, o.args.token_mask = nullptr;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["tokens_per_expert"].integers(), (Ids{0, 0, 0, 0}));
}

struct RouteBackward : Fixture {
  dropless_route_settings settings = route_settings(3, 1, DROPLESS_SCORE_SIGMOID);
  dropless_route_backward_args args = arguments<dropless_route_backward_args>();
  explicit RouteBackward(Index gap) : Fixture(gap) {
    args.settings = &settings;
    args.logits = input("logits", DROPLESS_FP32, {3, 3}, {0, 1, 2, 2, 1, 0, 5, 5, 5});
    args.token_mask = input("token_mask", DROPLESS_U8, {3}, {1, 1, 0});
    args.expert_scale = input("expert_scale", DROPLESS_FP32, {3}, {4, 1, 1});
    args.ids = input("ids", DROPLESS_I32, {3, 1}, {0, -1, 1});
    args.d_weights = input("d_weights", DROPLESS_FP32, {3, 1}, {2, kNaN, kNaN});
    args.d_logits = output("d_logits", DROPLESS_FP32, {3, 3});
    args.d_expert_scale = output("d_expert_scale", DROPLESS_FP32, {3});
  }
  dropless_status run() override { return table().route_backward(table().context, &call, &args); }
};

TEST(ContractRouteBackward, ByHand) {
  RouteBackward o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["d_logits"].values(), (Doubles{2 * 4 * 0.25, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(o["d_expert_scale"].values(), (Doubles{2 * 0.5, 0, 0}));
}

TEST(ContractRouteBackward, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<RouteBackward>();
  expect_tensors_are_checked<RouteBackward>();
  using O = RouteBackward;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o["ids"].set({3, -1, 1}); }, "ids[0,0] = 3");
  refused([](O& o) { o.args.expert_scale = nullptr; }, "d_expert_scale");
  refused([](O& o) { o.settings.top_k = 0; }, "top_k = 0");
}

struct BiasUpdate : Fixture {
  dropless_bias_update_args args = arguments<dropless_bias_update_args>();
  explicit BiasUpdate(Index gap) : Fixture(gap) {
    args.rate = 0.25;
    args.counts = input("counts", DROPLESS_I64, {2, 3}, {5, 1, 0, 1, 2, 0});
    args.expert_bias = in_out("expert_bias", DROPLESS_FP32, {3}, {1, 1, 1});
  }
  dropless_status run() override { return table().bias_update(table().context, &call, &args); }
};

TEST(ContractBiasUpdate, ByHandStridesAndRefusals) {
  BiasUpdate o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["expert_bias"].values(), (Doubles{0.75, 1, 1.25}));
  expect_strides_are_honoured<BiasUpdate>();
  expect_tensors_are_checked<BiasUpdate>({"counts:0"});
  expect_spoiled_is_refused<BiasUpdate>([](BiasUpdate& b) { b.args.rate = kInf; }, "rate");
  expect_spoiled_is_refused<BiasUpdate>(
      [](BiasUpdate& b) {
        b["counts"].set({5, 1, 0, 1, -2, 0});
      },
      "counts[4]");
}

struct BalanceLoss : Fixture {
  dropless_route_settings settings = route_settings(2, 1, DROPLESS_SCORE_SOFTMAX);
  dropless_balance_loss_args args = arguments<dropless_balance_loss_args>();
  bool backward = false;
  explicit BalanceLoss(Index gap) : Fixture(gap) {
    const double l3 = std::log(3.0);
    args.settings = &settings;
    args.coeff = 0.5;
    args.scope = DROPLESS_SCOPE_GLOBAL;
    args.logits = input("logits", DROPLESS_FP32, {3, 2}, {l3, 0, l3, 0, 0, 9});
    args.ids = input("ids", DROPLESS_I32, {3, 1}, {0, 0, 1});
    args.token_mask = input("token_mask", DROPLESS_U8, {3}, {1, 1, 0});
    args.accumulated_counts = in_out("accumulated_counts", DROPLESS_I64, {2}, {1, 1});
    args.accumulated_tokens = in_out("accumulated_tokens", DROPLESS_I64, {1}, {2});
    args.loss = output("loss", DROPLESS_FP32, {1});
  }
  dropless_status run() override {
    return table().balance_loss_forward(table().context, &call, &args);
  }
};

TEST(ContractBalanceLoss, GlobalAccumulatesInPlace) {
  BalanceLoss o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["accumulated_counts"].integers(), (Ids{3, 1}));
  EXPECT_EQ(o["accumulated_tokens"].integers(), (Ids{4}));
  // f = 3/4, 1/4; P = 3/4, 1/4; E/K = 2.
  EXPECT_NEAR(o["loss"].values()[0], 0.5 * 2 * (9.0 + 1) / 16, 1e-7);
}

// Backward takes the sums after the forward call, so that the two calls agree on f.
TEST(ContractBalanceLoss, BackwardAfterForward) {
  BalanceLoss o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  HostTensor d_loss("d_loss", DROPLESS_FP32, {1}, false, 0),
      d_logits("d_logits", DROPLESS_FP32, {3, 2}, true, 0);
  o.args.d_loss = d_loss.set({4});
  o.args.d_logits = d_logits;
  ASSERT_EQ(o.table().balance_loss_backward(o.table().context, &o.call, &o.args), DROPLESS_OK)
      << o.message();
  // d_p = 4 * 0.5 * 2 * f / 2 = 2 f; d_l0 = p0 p1 (d_p0 - d_p1) = 3/16 * 2 * (3/4 - 1/4).
  const Doubles got = d_logits.values();
  for (const std::size_t t : {0, 1}) {
    EXPECT_NEAR(got[2 * t], 3.0 / 16, 1e-7);
    EXPECT_NEAR(got[2 * t + 1], -3.0 / 16, 1e-7);
  }
  EXPECT_EQ(got[4], 0);
  EXPECT_EQ(o["accumulated_counts"].integers(), (Ids{3, 1}));  // only read
  // Sums in which this micro-batch cannot be contained are refused.
  o["accumulated_counts"].set({1, 1});
  EXPECT_EQ(o.table().balance_loss_backward(o.table().context, &o.call, &o.args),
            DROPLESS_INVALID_ARGUMENT);
}

TEST(ContractBalanceLoss, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<BalanceLoss>();
  expect_tensors_are_checked<BalanceLoss>();
  using O = BalanceLoss;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.scope = 3; }, "scope = 3");
  refused([](O& o) { o.args.scope = DROPLESS_SCOPE_SEQUENCE; }, "sequence_boundaries is null");
  refused([](O& o) { o.args.accumulated_counts = nullptr; }, "accumulated_counts is null");
  refused([](O& o) { o["ids"].set({0, 2, 1}); }, "ids[1,0] = 2");
  refused([](O& o) { o.args.loss = nullptr; }, "loss is null");
}

struct ZLoss : Fixture {
  dropless_z_loss_args args = arguments<dropless_z_loss_args>();
  explicit ZLoss(Index gap) : Fixture(gap) {
    args.coeff = 0.5;
    args.logits = input("logits", DROPLESS_FP32, {2, 2}, {0, std::log(3.0), 7, 7});
    args.token_mask = input("token_mask", DROPLESS_U8, {2}, {1, 0});
    args.d_loss = input("d_loss", DROPLESS_FP32, {1}, {2});
    args.d_logits = output("d_logits", DROPLESS_FP32, {2, 2});
  }
  dropless_status run() override { return table().z_loss_backward(table().context, &call, &args); }
};

TEST(ContractZLoss, ByHandStridesAndRefusals) {
  ZLoss o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_NEAR(o["d_logits"].values()[0], 2 * std::log(4.0) * 0.25, 1e-6);
  EXPECT_NEAR(o["d_logits"].values()[1], 2 * std::log(4.0) * 0.75, 1e-6);
  EXPECT_EQ(o["d_logits"].values()[2], 0);
  HostTensor loss("loss", DROPLESS_FP32, {1}, true, 0);
  o.args.loss = loss;
  ASSERT_EQ(o.table().z_loss_forward(o.table().context, &o.call, &o.args), DROPLESS_OK);
  EXPECT_NEAR(loss.values()[0], 0.5 * std::log(4.0) * std::log(4.0), 1e-6);
  loss.tensor.shape[0] = 2;
  EXPECT_EQ(o.table().z_loss_forward(o.table().context, &o.call, &o.args),
            DROPLESS_INVALID_ARGUMENT);
  expect_strides_are_honoured<ZLoss>();
  expect_tensors_are_checked<ZLoss>();
}

struct CrossEntropy : Fixture {
  dropless_cross_entropy_args args = arguments<dropless_cross_entropy_args>();
  explicit CrossEntropy(Index gap) : Fixture(gap) {
    args.logits = input("logits", DROPLESS_FP32, {3, 2}, {0, std::log(3.0), 7, 7, 1, 1});
    args.labels = input("labels", DROPLESS_I32, {3}, {1, -1, 0});
    args.d_loss = input("d_loss", DROPLESS_FP32, {1}, {2});
    args.d_logits = output("d_logits", DROPLESS_FP32, {3, 2});
  }
  dropless_status run() override {
    return table().cross_entropy_backward(table().context, &call, &args);
  }
};

TEST(ContractCrossEntropy, ByHandStridesAndRefusals) {
  CrossEntropy o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Doubles expected{0.25, -0.25, 0, 0, -0.5, 0.5};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(o["d_logits"].values()[i], expected[i], 1e-7);
  HostTensor loss("loss", DROPLESS_FP32, {1}, true, 0);
  o.args.loss = loss;
  ASSERT_EQ(o.table().cross_entropy_forward(o.table().context, &o.call, &o.args), DROPLESS_OK);
  EXPECT_NEAR(loss.values()[0], (std::log(4.0 / 3) + std::log(2.0)) / 2, 1e-7);
  expect_strides_are_honoured<CrossEntropy>();
  expect_tensors_are_checked<CrossEntropy>();
  expect_spoiled_is_refused<CrossEntropy>(
      [](CrossEntropy& c) {
        c["labels"].set({1, 2, 0});
      },
      "labels[1] = 2");
}

}  // namespace
}  // namespace dropless::reference::testing
