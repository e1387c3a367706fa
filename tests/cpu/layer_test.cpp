// SPDX-License-Identifier: Apache-2.0
// The layer by hand, and its bits with saved state, without, and with recomputation.
#include <gtest/gtest.h>

#include "tests/cpu/layer_case.h"

namespace dropless::cpu::testing {
namespace {

// One expert, K = 1, relu2, everything a small integer: y = w d (g x)^2 + shared.
TEST(Layer, ByHand) {
  auto route = route_settings(1, 1, DROPLESS_SCORE_SOFTMAX);  // the weight is 1
  route.scaling_factor = 2;
  auto activation = make_args<dropless_activation_settings>();
  activation.kind = DROPLESS_RELU2;
  auto settings = make_args<dropless_layer_settings>();
  settings.route = &route, settings.activation = &activation;
  const Array router = Array(DROPLESS_FP32, {1, 1}).set({1});
  const Array gate_up = Array(DROPLESS_FP32, {1, 1, 1}).set({3});
  const Array down = Array(DROPLESS_FP32, {1, 1, 1}).set({5});
  const Array shared_gate_up = Array(DROPLESS_FP32, {1, 1}).set({1});
  const Array shared_down = Array(DROPLESS_FP32, {1, 1}).set({7});
  auto parameters = make_args<dropless_layer_parameters>();
  parameters.router_weight = router.get(), parameters.gate_up = gate_up.get();
  parameters.down = down.get(), parameters.shared_gate_up = shared_gate_up.get();
  parameters.shared_down = shared_down.get();
  const Array x = Array(DROPLESS_FP32, {2, 1}).set({2, -1});
  const Array y(DROPLESS_FP32, {2, 1}), ids(DROPLESS_I64, {2, 1}), counts(DROPLESS_I64, {1});
  auto args = make_args<dropless_layer_args>();
  args.settings = &settings, args.parameters = &parameters, args.x = x.get();
  args.y = y.get(), args.ids = ids.get(), args.tokens_per_expert = counts.get();
  args.keep = 1;
  ASSERT_EQ(perform(implementation().layer_forward, args).status, DROPLESS_OK);
  EXPECT_EQ(y.values(), (std::vector<double>{2 * 5 * 36 + 7 * 4, 0}));
  EXPECT_EQ(counts.at(0), 2);
  EXPECT_NE(args.saved, nullptr);

  const Array d_y = Array(DROPLESS_FP32, {2, 1}).set({1, 1}), d_x(DROPLESS_FP32, {2, 1});
  const Array d_gate_up(DROPLESS_FP32, {1, 1, 1}), d_down(DROPLESS_FP32, {1, 1, 1});
  auto gradients = make_args<dropless_layer_parameters>();
  gradients.gate_up = d_gate_up.get(), gradients.down = d_down.get();
  auto backward = make_args<dropless_layer_backward_args>();
  backward.forward = &args, backward.d_y = d_y.get(), backward.d_x = d_x.get();
  backward.gradients = &gradients;
  ASSERT_EQ(perform(implementation().layer_backward, backward).status, DROPLESS_OK);
  // 2 * 5 * 2 * (3 x) * 3 + 7 * 2 x at x = 2; the router's own gradient is zero for E = 1.
  EXPECT_EQ(d_x.values(), (std::vector<double>{360 + 28, 0}));
  EXPECT_EQ(d_gate_up.at(0), 2 * 5 * 2 * 6 * 2);
  EXPECT_EQ(d_down.at(0), 2 * 36);
}

TEST(Layer, SavedStateAndRecomputationGiveTheSameBits) {
  for (const int placement :
       {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY, DROPLESS_WEIGHTS_INPUT}) {
    for (const int recipe : {DROPLESS_RECIPE_PLAIN, DROPLESS_RECIPE_MXFP8}) {
      LayerCase saved;
      saved.placement = placement, saved.recipe = recipe;
      LayerCase nothing_saved = saved, recomputed = saved;
      nothing_saved.keep = false;
      recomputed.recompute = 1;
      const auto bytes = saved.run();
      EXPECT_EQ(nothing_saved.run(), bytes);
      EXPECT_EQ(recomputed.run(), bytes);
    }
  }
}

TEST(Layer, RecipeAndPlacementMatter) {
  LayerCase plain, mxfp8, early;
  mxfp8.recipe = DROPLESS_RECIPE_MXFP8;
  early.placement = DROPLESS_WEIGHTS_EARLY;
  EXPECT_NE(plain.run(), mxfp8.run());
  EXPECT_NE(plain.run(), early.run());
}

TEST(Layer, ReleaseTakesTheStateBack) {
  auto args = make_args<dropless_layer_args>();
  EXPECT_EQ(perform(implementation().layer_release, args).status, DROPLESS_OK);
  EXPECT_EQ(args.saved, nullptr);
}

}  // namespace
}  // namespace dropless::cpu::testing
