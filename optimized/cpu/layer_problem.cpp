// SPDX-License-Identifier: Apache-2.0
// Checks of the layer's arguments.
#include "optimized/cpu/layer_problem.h"

#include "optimized/cpu/route_settings.h"

namespace dropless::cpu {
namespace {

bool within(int value, int last) {
  return value >= 0 && value <= last;
}

void check_settings(const dropless_layer_settings& s) {
  refuse_if(!within(s.weight_placement, DROPLESS_WEIGHTS_INPUT), "weight_placement: unknown");
  refuse_if(!within(s.recipe, DROPLESS_RECIPE_MXFP8), "recipe: unknown");
  refuse_if(s.logits_dtype != DROPLESS_FP32 && s.logits_dtype != DROPLESS_BF16,
            "logits_dtype: neither fp32 nor bf16");
  refuse_if(s.recipe == DROPLESS_RECIPE_MXFP8 && s.gradient_format != DROPLESS_E4M3 &&
                s.gradient_format != DROPLESS_E5M2,
            "gradient_format: neither e4m3 nor e5m2");
}

// Shapes of dropless_layer_parameters. `wanted`: the parameters that exist, when gradients are
// read.
LayerTensors read_tensors(const dropless_layer_parameters& p, const LayerSizes& n,
                          const LayerTensors* wanted) {
  const auto read = [wanted](const dropless_tensor* given, const Tensor LayerTensors::*member,
                             const char* name, Dtypes dtypes, std::initializer_list<Index> shape) {
    if (given != nullptr && wanted != nullptr && !(wanted->*member).given) {
      refuse(std::string(name) + ": gradient of a parameter that the model does not have");
    }
    return optional_tensor(given, name, dtypes, shape);
  };
  using T = LayerTensors;
  const Dtypes fp32 = {DROPLESS_FP32};
  LayerTensors t;
  t.router_weight =
      read(p.router_weight, &T::router_weight, "router_weight", floats, {n.experts, n.hidden});
  t.router_bias = read(p.router_bias, &T::router_bias, "router_bias", floats, {n.experts});
  t.expert_bias = read(p.expert_bias, &T::expert_bias, "expert_bias", fp32, {n.experts});
  t.expert_scale = read(p.expert_scale, &T::expert_scale, "expert_scale", fp32, {n.experts});
  const Index local = n.local_experts;
  t.gate_up = read(p.gate_up, &T::gate_up, "gate_up", floats, {local, n.gate_up, n.hidden});
  t.gate_up_bias =
      read(p.gate_up_bias, &T::gate_up_bias, "gate_up_bias", floats, {local, n.gate_up});
  t.down = read(p.down, &T::down, "down", floats, {local, n.hidden, n.intermediate});
  t.down_bias = read(p.down_bias, &T::down_bias, "down_bias", floats, {local, n.hidden});
  t.shared_gate_up = read(p.shared_gate_up, &T::shared_gate_up, "shared_gate_up", floats,
                          {n.shared_gate_up, n.hidden});
  t.shared_down = read(p.shared_down, &T::shared_down, "shared_down", floats, {n.hidden, n.shared});
  t.shared_gate = read(p.shared_gate, &T::shared_gate, "shared_gate", floats, {1, n.hidden});
  return t;
}

// What the exchange was opened for.
void check_group(const exchange::Group& g, const Tensor& x, const LayerSizes& n) {
  const auto opened_for = [](const char* name, Index most, Index have) {
    refuse(std::string(name) + ": the layer has " + std::to_string(have) +
           ", the exchange was opened for " + std::to_string(most));
  };
  if (n.experts != g.experts) opened_for("num_experts", g.experts, n.experts);
  if (n.top_k != g.top_k) opened_for("top_k", g.top_k, n.top_k);
  if (n.tokens > g.max_tokens) opened_for("max_tokens", g.max_tokens, n.tokens);
  if (n.hidden * x.element > g.row_bytes) {
    opened_for("row_bytes", g.row_bytes, n.hidden * x.element);
  }
}

Linear linear(const dropless_tensor& w, const dropless_tensor* offsets) {
  Linear result;
  result.w = w;
  result.offsets = offsets;
  return result;
}

}  // namespace

LayerProblem read_layer(const dropless_layer_args& args) {
  LayerProblem p = {};
  p.settings = read_struct(args.settings, "settings");
  check_settings(p.settings);
  p.route = read_struct(p.settings.route, "route settings");
  p.activation = read_struct(p.settings.activation, "activation settings");
  const dropless_layer_parameters parameters = read_struct(args.parameters, "parameters");
  read_route_settings(&p.route, parameters.expert_bias != nullptr);
  refuse_if(!within(p.activation.kind, DROPLESS_RELU2), "activation kind: unknown");
  refuse_if(!within(p.activation.gate_up_layout, DROPLESS_GATE_UP_INTERLEAVED),
            "gate_up_layout: unknown");

  p.x = tensor(args.x, "x", floats, {any, any});
  LayerSizes& n = p.sizes;
  n.tokens = p.x.shape[0];
  n.hidden = p.x.shape[1];
  n.experts = p.route.num_experts;
  n.top_k = p.route.top_k;
  n.local_experts = n.experts;
  if (args.exchange != nullptr) {
    p.exchange = args.exchange;
    p.ranks = &exchange::handle_of(args.exchange);
    n.local_experts = p.ranks->group.slots;
    check_group(p.ranks->group, p.x, n);
  }
  const Index factor = p.activation.kind == DROPLESS_RELU2 ? 1 : 2;
  n.intermediate =
      tensor(parameters.down, "down", floats, {n.local_experts, n.hidden, any}).shape[2];
  n.gate_up = factor * n.intermediate;
  n.shared =
      optional_tensor(parameters.shared_down, "shared_down", floats, {n.hidden, any}).shape[1];
  n.shared_gate_up = factor * n.shared;
  p.parameters = read_tensors(parameters, n, nullptr);
  const LayerTensors& t = p.parameters;
  refuse_if(!t.router_weight, "router_weight: null pointer");
  refuse_if(!t.gate_up, "gate_up: null pointer");
  refuse_if(t.shared_gate_up.given != t.shared_down.given,
            "shared_gate_up and shared_down: only one given");
  refuse_if(t.shared_gate && !t.shared_down, "shared_gate: without a shared expert");

  p.token_mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {n.tokens});
  p.given_ids = optional_tensor(args.given_ids, "given_ids", integers, {n.tokens, n.top_k});
  if (p.given_ids) check_ids(p.given_ids, n.experts, "given_ids");
  return p;
}

LayerTensors read_gradients(const LayerProblem& problem, const dropless_layer_parameters* given) {
  if (given == nullptr) return {};
  return read_tensors(read_struct(given, "gradients"), problem.sizes, &problem.parameters);
}

Linear LayerProblem::router(const dropless_tensor* offsets) const {
  Linear result = linear(stacked(parameters.router_weight), offsets);
  if (parameters.router_bias) result.bias = stacked(parameters.router_bias);
  return result;
}

Linear LayerProblem::gate_up(const dropless_tensor* offsets) const {
  Linear result = linear(describe(parameters.gate_up), offsets);
  if (parameters.gate_up_bias) result.bias = describe(parameters.gate_up_bias);
  result.mxfp8 = mxfp8();
  result.gradient_format = settings.gradient_format;
  return result;
}

Linear LayerProblem::down(const dropless_tensor* offsets) const {
  Linear result = linear(describe(parameters.down), offsets);
  if (parameters.down_bias) result.bias = describe(parameters.down_bias);
  result.mxfp8 = mxfp8();
  result.gradient_format = settings.gradient_format;
  return result;
}

Linear LayerProblem::shared_gate_up(const dropless_tensor* offsets) const {
  Linear result = linear(stacked(parameters.shared_gate_up), offsets);
  result.mxfp8 = mxfp8();
  result.gradient_format = settings.gradient_format;
  return result;
}

Linear LayerProblem::shared_down(const dropless_tensor* offsets) const {
  Linear result = linear(stacked(parameters.shared_down), offsets);
  result.mxfp8 = mxfp8();
  result.gradient_format = settings.gradient_format;
  return result;
}

}  // namespace dropless::cpu
