// SPDX-License-Identifier: Apache-2.0
// The layer of the reference through the contract: values, saved state, gradients, refusals.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "reference/layer.h"
#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

using Ids = std::vector<Index>;

// Four tokens (one masked), H = 3, I = 2, four experts, top 2, a gated shared expert with S = 1.
constexpr Index kTokens = 4, kHidden = 3, kInner = 2, kExperts = 4, kTopK = 2, kShared = 1;

struct Parameter {
  const char* name;
  std::vector<Index> shape;
  const dropless_tensor* dropless_layer_parameters::*member;
};

const std::vector<Parameter>& all_parameters() {
  using P = dropless_layer_parameters;
  static const std::vector<Parameter> parameters{
      {"router_weight", {kExperts, kHidden}, &P::router_weight},
      {"router_bias", {kExperts}, &P::router_bias},
      {"expert_bias", {kExperts}, &P::expert_bias},
      {"expert_scale", {kExperts}, &P::expert_scale},
      {"gate_up", {kExperts, 2 * kInner, kHidden}, &P::gate_up},
      {"gate_up_bias", {kExperts, 2 * kInner}, &P::gate_up_bias},
      {"down", {kExperts, kHidden, kInner}, &P::down},
      {"down_bias", {kExperts, kHidden}, &P::down_bias},
      {"shared_gate_up", {2 * kShared, kHidden}, &P::shared_gate_up},
      {"shared_down", {kHidden, kShared}, &P::shared_down},
      {"shared_gate", {1, kHidden}, &P::shared_gate}};
  return parameters;
}

struct Layer : Fixture {
  dropless_route_settings route = route_settings(kExperts, kTopK, DROPLESS_SCORE_SIGMOID);
  dropless_activation_settings activation{};
  dropless_layer_settings settings{};
  dropless_layer_parameters parameters{};
  dropless_layer_args args = arguments<dropless_layer_args>();

  explicit Layer(Index gap) : Fixture(gap) {
    std::mt19937_64 random(11);
    route.renormalize = 1;
    route.scaling_factor = 2.5;
    activation.struct_size = sizeof activation;
    settings.struct_size = sizeof settings;
    settings.route = &route, settings.activation = &activation;
    parameters.struct_size = sizeof parameters;
    for (const Parameter& p : all_parameters()) {
      const Index size =
          std::accumulate(p.shape.begin(), p.shape.end(), Index{1}, std::multiplies());
      parameters.*p.member = input(p.name, DROPLESS_FP32, p.shape, random_values(random, size, 1));
    }
    args.settings = &settings, args.parameters = &parameters;
    args.x = input("x", DROPLESS_FP32, {kTokens, kHidden}, random_values(random, 12, 1));
    args.token_mask = input("token_mask", DROPLESS_U8, {kTokens}, {1, 1, 0, 1});
    args.y = output("y", DROPLESS_FP32, {kTokens, kHidden});
    args.ids = output("ids", DROPLESS_I32, {kTokens, kTopK});
    args.tokens_per_expert = output("tokens_per_expert", DROPLESS_I64, {kExperts});
  }
  dropless_status run() override { return table().layer_forward(table().context, &call, &args); }
  dropless_status release() { return table().layer_release(table().context, &call, &args); }

  // The same through the reference's own interface.
  [[nodiscard]] LayerOutput direct() {
    values_.clear();
    for (HostTensor& t : tensors) values_[t.name] = t.values();
    LayerParameters p;
    p.hidden = kHidden, p.intermediate = kInner, p.shared_intermediate = kShared;
    p.router_weight = values_["router_weight"], p.router_bias = values_["router_bias"];
    p.expert_bias = values_["expert_bias"], p.expert_scale = values_["expert_scale"];
    p.gate_up = values_["gate_up"], p.gate_up_bias = values_["gate_up_bias"];
    p.down = values_["down"], p.down_bias = values_["down_bias"];
    p.shared_gate_up = values_["shared_gate_up"], p.shared_down = values_["shared_down"];
    p.shared_gate = values_["shared_gate"];
    const std::vector<std::uint8_t> mask{1, 1, 0, 1};
    return layer(settings, profile, p, {kTokens, values_["x"], mask, {}});
  }

 private:
  std::map<std::string, Doubles> values_;
};

TEST(ContractLayer, ForwardIsTheReferenceRoundedOnce) {
  for (const int placement :
       {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
    Layer o(0);
    o.settings.weight_placement = placement;
    ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
    const LayerOutput direct = o.direct();
    for (std::size_t i = 0; i < direct.y.size(); ++i) {
      EXPECT_EQ(o["y"].values()[i], fp32(direct.y[i]));
    }
    EXPECT_EQ(o["ids"].integers(), direct.trace.routing.ids);
    EXPECT_EQ(o["tokens_per_expert"].integers(), direct.trace.routing.tokens_per_expert);
    EXPECT_EQ(o.args.saved, nullptr);
  }
}

TEST(ContractLayer, StridesAndTensors) {
  expect_strides_are_honoured<Layer>();
  expect_tensors_are_checked<Layer>();
}

TEST(ContractLayer, Refusals) {
  using O = Layer;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.settings = nullptr; }, "layer settings is null");
  refused([](O& o) { o.settings.route = nullptr; }, "route settings is null");
  refused([](O& o) { o.settings.activation = nullptr; }, "activation settings is null");
  refused([](O& o) { o.args.parameters = nullptr; }, "parameters is null");
  refused([](O& o) { o.parameters.router_weight = nullptr; }, "parameters.router_weight is null");
  refused([](O& o) { o.parameters.gate_up = nullptr; }, "parameters.gate_up is null");
  refused([](O& o) { o.parameters.down = nullptr; }, "parameters.down is null");
  refused([](O& o) { o.parameters.shared_down = nullptr; }, "parameters.shared_down is null");
  refused([](O& o) { o.parameters.shared_gate_up = o.parameters.shared_down = nullptr; },
          "shared_gate is given without a shared expert");
  refused([](O& o) { o.settings.recipe = 2; }, "recipe 2");
  refused([](O& o) { o.settings.weight_placement = 3; }, "weight placement 3");
  refused([](O& o) { o.settings.logits_dtype = DROPLESS_FP16; }, "logits_dtype");
  refused([](O& o) { o.settings.recompute = 2; }, "recompute = 2");
  refused([](O& o) { o.route.top_k = 5; }, "top_k = 5");
  refused([](O& o) { o.activation.kind = DROPLESS_RELU2; }, "gate_up has the shape");
  refused([](O& o) { o["y"].tensor.dtype = DROPLESS_BF16; }, "y has another dtype than x");
  refused(
      [](O& o) {
        o.args.keep = 1;
        o.args.struct_size = offsetof(dropless_layer_args, saved);
      },
      "no room for saved");
}

TEST(ContractLayer, WhatIsNoOpenExchangeIsRefused) {
  Layer o(0);
  int nothing = 0;
  o.args.exchange = reinterpret_cast<dropless_exchange*>(&nothing);
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("exchange"), std::string::npos);
}

TEST(ContractLayer, NoTokens) {
  Layer o(0);
  HostTensor x("x", DROPLESS_FP32, {0, kHidden}, false, 0),
      y("y", DROPLESS_FP32, {0, kHidden}, true, 0), ids("ids", DROPLESS_I64, {0, kTopK}, true, 0);
  o.args.x = x, o.args.y = y, o.args.ids = ids, o.args.token_mask = nullptr;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["tokens_per_expert"].integers(), Ids(kExperts, 0));
}

TEST(ContractLayer, Bf16InAndOut) {
  Layer o(0);
  HostTensor x("x16", DROPLESS_BF16, {kTokens, kHidden}, false, 0),
      y("y16", DROPLESS_BF16, {kTokens, kHidden}, true, 0);
  x.set(o["x"].values());
  o.args.x = x, o.args.y = y;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  o["x"].set(x.values());  // the rounded input, for the direct call
  const LayerOutput direct = o.direct();
  for (std::size_t i = 0; i < direct.y.size(); ++i) {
    EXPECT_EQ(y.values()[i], round_to(DROPLESS_BF16, direct.y[i]));
  }
}

struct LayerBackward : Layer {
  dropless_layer_parameters gradients{};
  dropless_layer_backward_args backward = arguments<dropless_layer_backward_args>();

  explicit LayerBackward(Index gap) : Layer(gap) {
    std::mt19937_64 random(12);
    gradients.struct_size = sizeof gradients;
    for (const Parameter& p : all_parameters()) {
      if (p.member == &dropless_layer_parameters::expert_bias) continue;
      gradients.*p.member = output(std::string("d_") + p.name, DROPLESS_FP32, p.shape);
    }
    backward.forward = &args;
    backward.d_y = input("d_y", DROPLESS_FP32, {kTokens, kHidden}, random_values(random, 12, 1));
    backward.d_x = output("d_x", DROPLESS_FP32, {kTokens, kHidden});
    backward.d_logits =
        input("d_logits", DROPLESS_FP32, {kTokens, kExperts}, random_values(random, 16, 1));
    backward.gradients = &gradients;
  }
  dropless_status run() override {
    return table().layer_backward(table().context, &call, &backward);
  }
  [[nodiscard]] std::map<std::string, Ids> results() {
    std::map<std::string, Ids> all;
    for (HostTensor& t : tensors) {
      if (t.is_output() && t.name.substr(0, 2) == "d_") all[t.name] = t.integers();
    }
    return all;
  }
};

// sum d_y * y + sum d_logits * logits as a function of one tensor, by the forward call.
double objective(LayerBackward& o) {
  const LayerOutput direct = o.direct();
  const Doubles d_y = o["d_y"].values(), d_logits = o["d_logits"].values();
  double sum = 0;
  for (std::size_t i = 0; i < d_y.size(); ++i) sum += d_y[i] * direct.y[i];
  for (std::size_t i = 0; i < d_logits.size(); ++i) sum += d_logits[i] * direct.trace.logits[i];
  return sum;
}

TEST(ContractLayerBackward, EveryGradientAgreesWithFiniteDifferences) {
  LayerBackward o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  std::vector<std::string> names{"x"};
  for (const Parameter& p : all_parameters()) {
    if (std::string(p.name) != "expert_bias") names.push_back(p.name);
  }
  for (const std::string& name : names) {
    const Doubles x = o[name].values(), got = o["d_" + name].values();
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Steps that fp32 tensors hold exactly; truncation error about step^2.
      const double step = 0x1p-8;
      Doubles moved = x;
      const auto at_offset = [&](double offset) {
        moved[i] = fp32(x[i] + offset);
        o[name].set(moved);
        return objective(o);
      };
      const double up = fp32(x[i] + step) - x[i], down = x[i] - fp32(x[i] - step);
      const double expected = (at_offset(step) - at_offset(-step)) / (up + down);
      EXPECT_NEAR(got[i], expected, 1e-3 * (1 + std::abs(expected))) << name << " " << i;
      o[name].set(x);
    }
  }
}

TEST(ContractLayerBackward, TheSameBitsWithAndWithoutSavedState) {
  LayerBackward without(0);
  ASSERT_EQ(without.run(), DROPLESS_OK) << without.message();
  for (const int recompute : {0, 1}) {
    LayerBackward with(0);
    with.settings.recompute = recompute;
    with.settings.offload = recompute;
    with.args.keep = 1;
    ASSERT_EQ(with.table().layer_forward(with.table().context, &with.call, &with.args), DROPLESS_OK)
        << with.message();
    ASSERT_NE(with.args.saved, nullptr);
    ASSERT_EQ(with.run(), DROPLESS_OK) << with.message();
    EXPECT_EQ(with.results(), without.results());
    // The backward call has released it: a second one finds nothing.
    EXPECT_EQ(with.run(), DROPLESS_INVALID_ARGUMENT);
    EXPECT_NE(with.message().find("saved"), std::string::npos) << with.message();
  }
}

TEST(ContractLayerBackward, SavedStateCanBeReleasedOnce) {
  Layer o(0);
  o.args.keep = 1;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  void* const saved = o.args.saved;
  EXPECT_EQ(o.release(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o.args.saved, nullptr);
  EXPECT_EQ(o.release(), DROPLESS_OK);  // nothing left to release
  o.args.saved = saved;
  EXPECT_EQ(o.release(), DROPLESS_INVALID_ARGUMENT);
}

TEST(ContractLayerBackward, ARefusedCallKeepsTheState) {
  LayerBackward o(0);
  o.args.keep = 1;
  ASSERT_EQ(o.table().layer_forward(o.table().context, &o.call, &o.args), DROPLESS_OK);
  const dropless_tensor* const d_y = o.backward.d_y;
  o.backward.d_y = nullptr;
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  o.backward.d_y = d_y;
  EXPECT_EQ(o.run(), DROPLESS_OK) << o.message();
}

TEST(ContractLayerBackward, GradientsThatAreNotWanted) {
  LayerBackward all(0), some(0);
  ASSERT_EQ(all.run(), DROPLESS_OK);
  some.gradients.down = some.gradients.shared_gate = nullptr;
  ASSERT_EQ(some.run(), DROPLESS_OK) << some.message();
  EXPECT_EQ(some["d_gate_up"].integers(), all["d_gate_up"].integers());
  EXPECT_EQ(some["d_down"].integers()[0], 0xA5A5A5A5);
  some.backward.gradients = nullptr;
  some.backward.d_logits = nullptr;
  EXPECT_EQ(some.run(), DROPLESS_OK) << some.message();
}

TEST(ContractLayerBackward, StridesTensorsAndRefusals) {
  expect_strides_are_honoured<LayerBackward>();
  using O = LayerBackward;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.backward.forward = nullptr; }, "forward is null");
  refused([](O& o) { o.backward.d_y = nullptr; }, "d_y is null");
  refused([](O& o) { o.backward.d_x = nullptr; }, "d_x is null");
  refused([](O& o) { --o["d_x"].tensor.shape[0]; }, "d_x has the shape");
  refused([](O& o) { --o["d_down"].tensor.shape[2]; }, "gradients.down has the shape");
  refused([](O& o) { --o["d_logits"].tensor.shape[1]; }, "d_logits has the shape");
  refused([](O& o) { o.gradients.expert_bias = o["expert_bias"]; }, "expert_bias");
  refused([](O& o) { o.parameters.down_bias = nullptr; }, "gradients.down_bias is given");
  refused(
      [](O& o) {
        o.args.keep = 1;
        o.args.saved = &o;
      },
      "saved is not a state");
}

}  // namespace
}  // namespace dropless::reference::testing
