// SPDX-License-Identifier: Apache-2.0
// Every gradient of the reference layer against finite differences in double, with the selection
// checked to stay as it was: all weight placements, activations, score functions, shared experts.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/reference/layer_fixture.h"

namespace dropless::reference {
namespace {

using test::LayerFixture;
using test::Shared;

enum class Router { sigmoid_biased_groups, softmax_before, softmax_after, sqrt_softplus };

void set_router(LayerFixture& layer, Router router) {
  dropless_route_settings& route = layer.route;
  switch (router) {
    case Router::sigmoid_biased_groups:
      route.num_groups = 2;
      route.kept_groups = 1;
      break;
    case Router::softmax_before:
      route.score_function = DROPLESS_SCORE_SOFTMAX;
      route.renormalize = 0;
      layer.expert_bias.clear();
      break;
    case Router::softmax_after:
      route.score_function = DROPLESS_SCORE_SOFTMAX;
      route.softmax_order = DROPLESS_SOFTMAX_AFTER_TOP_K;
      route.renormalize = 0;
      layer.expert_bias.clear();
      layer.expert_scale.clear();
      break;
    case Router::sqrt_softplus:
      route.score_function = DROPLESS_SCORE_SQRT_SOFTPLUS;
      layer.router_bias.clear();
      break;
  }
}

// loss = <d_y, y> + <d_logits, logits>
void expect_all_gradients(LayerFixture& layer) {
  test::RandomData random(99);
  const LayerOutput base = layer.forward();
  const Doubles d_y = random.uniforms(static_cast<Index>(base.y.size()), -1, 1);
  const Doubles d_logits = random.uniforms(static_cast<Index>(base.trace.logits.size()), -1, 1);
  const auto loss = [&] {
    const LayerOutput output = layer.forward();
    EXPECT_EQ(output.trace.routing.ids, base.trace.routing.ids);
    return test::inner_product(output.y, d_y) + test::inner_product(output.trace.logits, d_logits);
  };
  const LayerGradient gradient = layer.backward(base.trace, d_y, d_logits);
  test::expect_gradient(loss, layer.x, gradient.d_x, "d_x");
  test::expect_gradient(loss, layer.router_weight, gradient.router_weight, "router_weight");
  test::expect_gradient(loss, layer.router_bias, gradient.router_bias, "router_bias");
  test::expect_gradient(loss, layer.expert_scale, gradient.expert_scale, "expert_scale");
  test::expect_gradient(loss, layer.gate_up, gradient.gate_up, "gate_up");
  test::expect_gradient(loss, layer.gate_up_bias, gradient.gate_up_bias, "gate_up_bias");
  test::expect_gradient(loss, layer.down, gradient.down, "down");
  test::expect_gradient(loss, layer.down_bias, gradient.down_bias, "down_bias");
  test::expect_gradient(loss, layer.shared_gate_up, gradient.shared_gate_up, "shared_gate_up");
  test::expect_gradient(loss, layer.shared_down, gradient.shared_down, "shared_down");
  test::expect_gradient(loss, layer.shared_gate, gradient.shared_gate, "shared_gate");
}

class LayerGradients : public testing::TestWithParam<std::tuple<int, int, Shared, Router>> {};

TEST_P(LayerGradients, AreDerivatives) {
  const auto [placement, kind, shared, router] = GetParam();
  LayerFixture layer(31, placement, kind, shared);
  set_router(layer, router);
  expect_all_gradients(layer);
}

INSTANTIATE_TEST_SUITE_P(
    Models, LayerGradients,
    testing::Combine(testing::Values(DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY,
                                     DROPLESS_WEIGHTS_INPUT),
                     testing::Values(DROPLESS_SWIGLU, DROPLESS_SWIGLU_CLAMPED, DROPLESS_GEGLU_TANH,
                                     DROPLESS_RELU2),
                     testing::Values(Shared::none, Shared::plain, Shared::gated),
                     testing::Values(Router::sigmoid_biased_groups, Router::softmax_before,
                                     Router::softmax_after, Router::sqrt_softplus)));

TEST(LayerGradient, MaskGivenIdsAndInterleavedColumns) {
  for (const int placement :
       {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
    LayerFixture layer(32, placement, DROPLESS_SWIGLU, Shared::gated);
    layer.activation.gate_up_layout = DROPLESS_GATE_UP_INTERLEAVED;
    layer.token_mask = {1, 0, 1, 1, 1, 0};
    layer.given_ids = {0, 2, 1, 3, -1, 2, -1, -1, 2, 0, 1, 0};
    layer.expert_bias.clear();
    expect_all_gradients(layer);
  }
}

TEST(LayerGradient, NoBiasesOneSlot) {
  LayerFixture layer(33);
  layer.route.top_k = 1;
  layer.profile.alignment = 1;
  layer.gate_up_bias.clear();
  layer.down_bias.clear();
  layer.router_bias.clear();
  expect_all_gradients(layer);
}

}  // namespace
}  // namespace dropless::reference
