// SPDX-License-Identifier: Apache-2.0
// Gradients of the layer against finite differences of its forward pass, every parameter and every
// placement of the weights. The ids are given, so that no selection can move.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

constexpr Index tokens = 5, hidden = 6, intermediate = 4, experts = 3, top_k = 2, shared = 3;

struct SmallLayer {
  SmallLayer(int placement, int kind) {
    route.renormalize = 1, route.scaling_factor = 1.5;
    activation.kind = kind;
    settings.route = &route, settings.activation = &activation;
    settings.weight_placement = placement;
    const Index width = kind == DROPLESS_RELU2 ? 1 : 2;
    const std::vector<Shape> shapes = {{tokens, hidden},
                                       {experts, hidden},
                                       {experts},
                                       {experts},
                                       {experts, width * intermediate, hidden},
                                       {experts, width * intermediate},
                                       {experts, hidden, intermediate},
                                       {experts, hidden},
                                       {width * shared, hidden},
                                       {hidden, shared},
                                       {1, hidden}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      inputs.push_back(Array(DROPLESS_FP32, shapes[i]).random(static_cast<unsigned>(i + 1), 0.7));
      gradients.emplace_back(DROPLESS_FP32, shapes[i]);
    }
    ids = random_ids(tokens, top_k, experts, 7);
    ids.view().store_integer(-1, 2, 1);
    d_y.random(50);
  }

  static dropless_layer_parameters connect(const std::vector<Array>& a) {
    auto p = make_args<dropless_layer_parameters>();
    p.router_weight = a[1].get(), p.router_bias = a[2].get(), p.expert_scale = a[3].get();
    p.gate_up = a[4].get(), p.gate_up_bias = a[5].get(), p.down = a[6].get();
    p.down_bias = a[7].get(), p.shared_gate_up = a[8].get(), p.shared_down = a[9].get();
    p.shared_gate = a[10].get();
    return p;
  }

  // <d_y, layer(inputs)>
  double value(bool keep = false) {
    parameters = connect(inputs);
    args.settings = &settings, args.parameters = &parameters, args.x = inputs[0].get();
    args.given_ids = ids.get(), args.y = y.get(), args.ids = out_ids.get();
    args.tokens_per_expert = counts.get(), args.keep = keep ? 1 : 0;
    const Outcome outcome = perform(implementation().layer_forward, args);
    if (outcome.status != DROPLESS_OK) throw std::runtime_error(outcome.message);
    double sum = 0;
    for (Index i = 0; i < y.size(); ++i) sum += y.at(i) * d_y.at(i);
    return sum;
  }

  void differentiate() {
    value(true);
    const auto wanted = connect(gradients);
    auto backward = make_args<dropless_layer_backward_args>();
    backward.forward = &args, backward.d_y = d_y.get(), backward.d_x = gradients[0].get();
    backward.gradients = &wanted;
    const Outcome outcome = perform(implementation().layer_backward, backward);
    if (outcome.status != DROPLESS_OK) throw std::runtime_error(outcome.message);
  }

  dropless_route_settings route = route_settings(experts, top_k, DROPLESS_SCORE_SIGMOID);
  dropless_activation_settings activation = make_args<dropless_activation_settings>();
  dropless_layer_settings settings = make_args<dropless_layer_settings>();
  dropless_layer_parameters parameters = {};
  dropless_layer_args args = make_args<dropless_layer_args>();
  std::vector<Array> inputs, gradients;
  Array ids{DROPLESS_I32, {tokens, top_k}}, out_ids{DROPLESS_I32, {tokens, top_k}};
  Array counts{DROPLESS_I64, {experts}}, y{DROPLESS_FP32, {tokens, hidden}};
  Array d_y{DROPLESS_FP32, {tokens, hidden}};
};

void compare(SmallLayer& layer) {
  const char* names[] = {
      "x",    "router_weight", "router_bias",    "expert_scale", "gate_up",    "gate_up_bias",
      "down", "down_bias",     "shared_gate_up", "shared_down",  "shared_gate"};
  layer.differentiate();
  double largest = 0;
  for (std::size_t p = 0; p < layer.inputs.size(); ++p) {
    for (Index i = 0; i < layer.inputs[p].size(); ++i) {
      const double kept = layer.inputs[p].at(i);
      constexpr double step = 1.0 / 256;
      layer.inputs[p].view().store_flat(kept + step, i);
      const double up = layer.value();
      layer.inputs[p].view().store_flat(kept - step, i);
      const double down = layer.value();
      layer.inputs[p].view().store_flat(kept, i);
      const double slope = (up - down) / (2 * step);
      const double got = layer.gradients[p].at(i);
      // Third derivatives times step^2, and fp32 noise over the step.
      EXPECT_NEAR(got, slope, 2e-3 + 2e-3 * std::abs(slope)) << names[p] << " " << i;
      largest = std::max(largest, std::abs(slope));
    }
  }
  EXPECT_GT(largest, 0.5);
}

TEST(LayerGradient, Late) {
  SmallLayer layer(DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU);
  compare(layer);
}

TEST(LayerGradient, Early) {
  SmallLayer layer(DROPLESS_WEIGHTS_EARLY, DROPLESS_GEGLU_TANH);
  compare(layer);
}

TEST(LayerGradient, Input) {
  SmallLayer layer(DROPLESS_WEIGHTS_INPUT, DROPLESS_SWIGLU);
  compare(layer);
}

}  // namespace
}  // namespace dropless::cpu::testing
