// SPDX-License-Identifier: Apache-2.0
// The layers that the bound of a layer is measured on.
#include "tests/tolerances/measure/judged_layer.h"

namespace dropless::tolerances {
namespace {

using models::LayerShape;

const LayerShape small{20, 32, 16, 24, 6, 2};
const LayerShape blocks{40, 64, 32, 32, 4, 2};

}  // namespace

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kinds = {

      {"layer fp32", small, DROPLESS_FP32, DROPLESS_SCORE_SIGMOID, 1, DROPLESS_WEIGHTS_LATE,
       DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 1},
      {"layer fp32, early", small, DROPLESS_FP32, DROPLESS_SCORE_SOFTMAX, 1, DROPLESS_WEIGHTS_EARLY,
       DROPLESS_GEGLU_TANH, DROPLESS_RECIPE_PLAIN, 16},
      {"layer fp32, input", small, DROPLESS_FP32, DROPLESS_SCORE_SOFTMAX, 0, DROPLESS_WEIGHTS_INPUT,
       DROPLESS_RELU2, DROPLESS_RECIPE_PLAIN, 1},
      {"layer bf16", small, DROPLESS_BF16, DROPLESS_SCORE_SOFTMAX, 1, DROPLESS_WEIGHTS_LATE,
       DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 16},
      {"layer bf16, early, clamped", small, DROPLESS_BF16, DROPLESS_SCORE_SQRT_SOFTPLUS, 1,
       DROPLESS_WEIGHTS_EARLY, DROPLESS_SWIGLU_CLAMPED, DROPLESS_RECIPE_PLAIN, 1},
      {"layer bf16, input", small, DROPLESS_BF16, DROPLESS_SCORE_SIGMOID, 0, DROPLESS_WEIGHTS_INPUT,
       DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 1},
      {"layer mxfp8 of fp32", blocks, DROPLESS_FP32, DROPLESS_SCORE_SIGMOID, 1,
       DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU, DROPLESS_RECIPE_MXFP8, 32},
      {"layer mxfp8 of bf16", blocks, DROPLESS_BF16, DROPLESS_SCORE_SIGMOID, 1,
       DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU, DROPLESS_RECIPE_MXFP8, 32},
  };
  return kinds;
}

JudgedLayer::JudgedLayer(const LayerKind& setup, std::uint64_t seed) {
  data.activation.kind = setup.activation;
  data.settings.weight_placement = setup.placement;
  data.settings.recipe = setup.recipe;
  data.settings.gradient_format = DROPLESS_E5M2;
  data.settings.logits_dtype = DROPLESS_FP32;
  data.route.score_function = setup.score_function;
  data.route.renormalize = data.route.renormalize_single = setup.renormalize;
  data.profile.alignment = setup.alignment;
  models::fill(data, setup.shape, setup.storage, seed);
  reference::LayerInput input;
  input.tokens = data.tokens, input.x = data.x;
  const auto parameters = data.parameters();
  const reference::LayerArithmetic arithmetic{setup.storage};
  reference = reference::layer(data.settings, data.profile, parameters, input, arithmetic);
  gradient = reference::layer_backward(data.settings, data.profile, parameters, input,
                                       reference.trace, data.d_y, arithmetic);
  const auto& trace = reference.trace;
  const LayerCall call{
      data.settings, data.profile,
      data.model(),  {trace.routing.ids, trace.offsets, trace.counts, trace.source},
      data.tokens,   data.x,
      setup.storage, setup.storage == DROPLESS_FP32 ? Operands::fp32 : Operands::bf16};
  forward = layer_forward(call);
  backward = layer_backward(call, forward, data.d_y);
}

}  // namespace dropless::tolerances
