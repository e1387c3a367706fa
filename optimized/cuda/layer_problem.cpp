// SPDX-License-Identifier: Apache-2.0
// Checks of the layer's arguments (GENERAL-3).
#include "optimized/cuda/layer_problem.h"

#include <optional>

#include "optimized/cuda/route_settings.h"

namespace dropless::cuda {
namespace {

constexpr Dtypes only_fp32 = {DROPLESS_FP32};

void check_settings(const LayerProblem& p) {
  const dropless_layer_settings& s = p.settings;
  const auto unknown = [](std::int32_t value, std::int32_t last) {
    return value < 0 || value > last;
  };
  refuse_if(unknown(s.weight_placement, DROPLESS_WEIGHTS_INPUT), "weight_placement: unknown");
  refuse_if(unknown(s.recipe, DROPLESS_RECIPE_MXFP8), "recipe: unknown");
  refuse_if(unknown(s.logits_dtype, DROPLESS_BF16), "logits_dtype: neither fp32 nor bf16");
  refuse_if(s.recipe == DROPLESS_RECIPE_MXFP8 && s.gradient_format != DROPLESS_E4M3 &&
                s.gradient_format != DROPLESS_E5M2,
            "gradient_format: neither e4m3 nor e5m2");
  refuse_if(unknown(p.activation.kind, DROPLESS_RELU2), "activation kind: unknown");
  refuse_if(unknown(p.activation.gate_up_layout, DROPLESS_GATE_UP_INTERLEAVED),
            "gate_up_layout: unknown");
}

// What a parameter, or its gradient, has to look like.
struct Expected {
  const dropless_tensor* dropless_layer_parameters::*member;
  const char* name;
  Dtypes dtypes;
  std::initializer_list<Index> shape;
};

template <class Visit>
void for_each_parameter(const LayerProblem& p, const Visit& visit) {
  using P = dropless_layer_parameters;
  const Index e = p.experts, h = p.hidden, i = p.intermediate, s = p.shared;
  const Index wide = p.gate_up_width(i), shared_wide = p.gate_up_width(s);
  visit(Expected{&P::router_weight, "router_weight", floats, {e, h}});
  visit(Expected{&P::router_bias, "router_bias", floats, {e}});
  visit(Expected{&P::expert_bias, "expert_bias", only_fp32, {e}});
  visit(Expected{&P::expert_scale, "expert_scale", only_fp32, {e}});
  visit(Expected{&P::gate_up, "gate_up", floats, {e, wide, h}});
  visit(Expected{&P::gate_up_bias, "gate_up_bias", floats, {e, wide}});
  visit(Expected{&P::down, "down", floats, {e, h, i}});
  visit(Expected{&P::down_bias, "down_bias", floats, {e, h}});
  visit(Expected{&P::shared_gate_up, "shared_gate_up", floats, {shared_wide, h}});
  visit(Expected{&P::shared_down, "shared_down", floats, {h, s}});
  visit(Expected{&P::shared_gate, "shared_gate", floats, {1, h}});
}

Linear expert_map(const LayerProblem& p, dropless_tensor w, const dropless_tensor* bias,
                  const dropless_tensor& zones, bool dense) {
  Linear map{
      w, {}, &zones, dense, p.settings.recipe == DROPLESS_RECIPE_MXFP8, p.settings.gradient_format};
  if (bias != nullptr) map.bias = read_struct(bias, "bias");
  return map;
}

}  // namespace

LayerProblem read_layer(const dropless_layer_args& args) {
  if (args.exchange != nullptr) not_supported("exchange: layers over ranks are not offered");
  LayerProblem p = {};
  p.settings = read_struct(args.settings, "settings");
  p.activation = read_struct(p.settings.activation, "activation settings");
  p.parameters = read_struct(args.parameters, "parameters");
  p.route = read_struct(p.settings.route, "route settings");
  static_cast<void>(read_route_settings(&p.route, p.parameters.expert_bias != nullptr));
  check_settings(p);

  const Tensor x = tensor(args.x, "x", floats, {any, any});
  p.x = read_struct(args.x, "x");
  p.tokens = x.shape[0], p.hidden = x.shape[1];
  p.experts = p.route.num_experts, p.top_k = p.route.top_k;
  const dropless_layer_parameters& given = p.parameters;
  p.intermediate = tensor(given.down, "down", floats, {p.experts, p.hidden, any}).shape[2];
  if (given.shared_down != nullptr) {
    p.shared = tensor(given.shared_down, "shared_down", floats, {p.hidden, any}).shape[1];
  }
  for_each_parameter(p, [&](const Expected& one) {
    optional_tensor(given.*one.member, one.name, one.dtypes, one.shape);
  });
  refuse_if(given.router_weight == nullptr, "router_weight: null pointer");
  refuse_if(given.gate_up == nullptr, "gate_up: null pointer");
  refuse_if((given.shared_gate_up == nullptr) != (given.shared_down == nullptr),
            "shared_gate_up and shared_down: only one given");
  refuse_if(given.shared_gate != nullptr && given.shared_down == nullptr,
            "shared_gate: without a shared expert");
  optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {p.tokens});
  optional_tensor(args.given_ids, "given_ids", integers, {p.tokens, p.top_k});
  p.token_mask = args.token_mask, p.given_ids = args.given_ids;
  return p;
}

dropless_layer_parameters read_gradients(const LayerProblem& p,
                                         const dropless_layer_parameters* given) {
  if (given == nullptr) return {};
  const dropless_layer_parameters gradients = read_struct(given, "gradients");
  for_each_parameter(p, [&](const Expected& one) {
    const dropless_tensor* gradient = gradients.*one.member;
    if (gradient != nullptr && p.parameters.*one.member == nullptr) {
      refuse(std::string(one.name) + ": gradient of a parameter that the model does not have");
    }
    optional_tensor(gradient, one.name, one.dtypes, one.shape);
  });
  return gradients;
}

Linear LayerProblem::router(const dropless_tensor& zones) const {
  Linear map{stacked(*parameters.router_weight), {}, &zones, true, false, DROPLESS_E4M3};
  if (parameters.router_bias != nullptr) map.bias = stacked(*parameters.router_bias);
  return map;
}
Linear LayerProblem::gate_up(const dropless_tensor& zones) const {
  return expert_map(*this, read_struct(parameters.gate_up, "gate_up"), parameters.gate_up_bias,
                    zones, false);
}
Linear LayerProblem::down(const dropless_tensor& zones) const {
  return expert_map(*this, read_struct(parameters.down, "down"), parameters.down_bias, zones,
                    false);
}
Linear LayerProblem::shared_gate_up(const dropless_tensor& zones) const {
  return expert_map(*this, stacked(*parameters.shared_gate_up), nullptr, zones, true);
}
Linear LayerProblem::shared_down(const dropless_tensor& zones) const {
  return expert_map(*this, stacked(*parameters.shared_down), nullptr, zones, true);
}

}  // namespace dropless::cuda
