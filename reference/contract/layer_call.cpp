// SPDX-License-Identifier: Apache-2.0
// A layer call, checked and read.
#include "reference/contract/layer_call.h"

#include "reference/checks.h"
#include "reference/contract/call.h"
#include "reference/contract/settings.h"
#include "reference/routing_checks.h"

namespace dropless::reference::contract {
namespace {

constexpr std::size_t position(Parameter p) {
  return static_cast<std::size_t>(p);
}

// Extent of one axis of a tensor whose other axes are checked later.
Index extent(const dropless_tensor* argument, const char* name, std::int32_t rank,
             std::int32_t axis) {
  const dropless_tensor t = completed(argument, name, sizeof(dropless_tensor));
  if (t.rank != rank) {
    throw Refused(std::string(name) + " has rank " + std::to_string(t.rank) + ", not " +
                  std::to_string(rank));
  }
  return t.shape[axis];
}

void check_switch(std::int32_t value, const char* name) {
  if (value != 0 && value != 1) {
    throw Refused(std::string(name) + " = " + std::to_string(value) + " is neither 0 nor 1");
  }
}

// What the handle was opened for.
void check_exchange(const ExchangeSettings& exchange, const dropless_route_settings& route,
                    const LayerDimensions& dimensions, dropless_dtype x_dtype) {
  const auto check_equal = [](Index have, Index want, const char* name) {
    if (have == want) return;
    throw Refused(std::string("the exchange was opened for ") + name + " = " +
                  std::to_string(want) + ", the layer has " + std::to_string(have));
  };
  const auto check_most = [](Index have, Index most, const char* name) {
    if (have <= most) return;
    throw Refused(std::string("the exchange was opened for ") + name + " = " +
                  std::to_string(most) + " at most, the layer has " + std::to_string(have));
  };
  check_equal(route.num_experts, exchange.num_experts, "num_experts");
  check_equal(route.top_k, exchange.top_k, "top_k");
  check_most(dimensions.tokens, exchange.max_tokens, "max_tokens");
  check_most(dimensions.hidden * static_cast<Index>(element_bytes(x_dtype)), exchange.row_bytes,
             "row_bytes");
}

}  // namespace

const char* parameter_name(Parameter p) {
  static constexpr std::array<const char*, kParameters> names{
      "router_weight",  "router_bias",  "expert_bias", "expert_scale",
      "gate_up",        "gate_up_bias", "down",        "down_bias",
      "shared_gate_up", "shared_down",  "shared_gate"};
  return names[position(p)];
}

LayerCall::LayerCall(const dropless_layer_args& a, const ExchangeSettings* exchange) {
  settings_ =
      completed(a.settings, "layer settings", offsetof(dropless_layer_settings, weight_placement));
  route_ = route_settings(settings_.route);
  check_route_settings(route_);
  activation_ = activation_settings(settings_.activation);
  settings_.route = &route_;
  settings_.activation = &activation_;
  check_switch(settings_.recompute, "recompute");
  check_switch(settings_.offload, "offload");
  check_switch(settings_.overlap, "overlap");

  const dropless_layer_parameters tensors = completed(a.parameters, "parameters");
  const TensorView x = tensor(a.x, "x", Element::real, {kAny, kAny});
  x_dtype_ = x.dtype();
  dimensions_.tokens = x.shape(0);
  dimensions_.hidden = x.shape(1);
  dimensions_.intermediate = extent(tensors.down, "parameters.down", 3, 2);
  check_pair(tensors.shared_gate_up, "parameters.shared_gate_up", tensors.shared_down,
             "parameters.shared_down");
  if (tensors.shared_gate != nullptr && tensors.shared_down == nullptr) {
    throw Refused("parameters.shared_gate is given without a shared expert");
  }
  if (tensors.shared_down != nullptr) {
    dimensions_.shared_intermediate = extent(tensors.shared_down, "parameters.shared_down", 2, 1);
  }
  local_experts_ = exchange == nullptr ? route_.num_experts : exchange_topology(*exchange).slots;
  if (exchange != nullptr) check_exchange(*exchange, route_, dimensions_, x_dtype_);
  const Views parameter_views = views(tensors, "parameters.");
  for (const Parameter p : {Parameter::router_weight, Parameter::gate_up, Parameter::down}) {
    if (!parameter_views[position(p)]) {
      throw Refused(std::string("parameters.") + parameter_name(p) + " is null");
    }
  }
  for (std::size_t p = 0; p < kParameters; ++p) {
    present_[p] = parameter_views[p].has_value();
    values_[p] = read_values(parameter_views[p]);
  }
  x_ = read_values(x);
  const Index tokens = dimensions_.tokens;
  mask_ = read_bytes(optional_tensor(a.token_mask, "token_mask", Element::u8, {tokens}));
  given_ids_ =
      read_integers(optional_tensor(a.given_ids, "given_ids", Element::id, {tokens, route_.top_k}));
}

LayerCall::Views LayerCall::views(const dropless_layer_parameters& tensors,
                                  const char* what) const {
  const Index experts = route_.num_experts, local = local_experts_, h = dimensions_.hidden,
              i = dimensions_.intermediate, s = dimensions_.shared_intermediate;
  const Index matrices = activation_.kind == DROPLESS_RELU2 ? 1 : 2;  // gate and up
  Views result;
  const auto add = [&](Parameter p, const dropless_tensor* argument, Element element,
                       std::initializer_list<Index> shape) {
    const std::string name = std::string(what) + parameter_name(p);
    result[position(p)] = optional_tensor(argument, name.c_str(), element, shape);
  };
  const Element real = Element::real;
  add(Parameter::router_weight, tensors.router_weight, real, {experts, h});
  add(Parameter::router_bias, tensors.router_bias, real, {experts});
  add(Parameter::expert_bias, tensors.expert_bias, real, {experts});
  add(Parameter::expert_scale, tensors.expert_scale, Element::fp32, {experts});
  add(Parameter::gate_up, tensors.gate_up, real, {local, matrices * i, h});
  add(Parameter::gate_up_bias, tensors.gate_up_bias, real, {local, matrices * i});
  add(Parameter::down, tensors.down, real, {local, h, i});
  add(Parameter::down_bias, tensors.down_bias, real, {local, h});
  add(Parameter::shared_gate_up, tensors.shared_gate_up, real, {matrices * s, h});
  add(Parameter::shared_down, tensors.shared_down, real, {h, s});
  add(Parameter::shared_gate, tensors.shared_gate, real, {1, h});
  return result;
}

LayerCall::Views LayerCall::gradient_views(const dropless_layer_parameters* gradients) const {
  if (gradients == nullptr) return {};  // none is wanted
  const dropless_layer_parameters tensors = completed(gradients, "gradients");
  if (tensors.expert_bias != nullptr) {
    throw Refused("gradients.expert_bias: the bias selects only and has no gradient");
  }
  Views result = views(tensors, "gradients.");
  for (std::size_t p = 0; p < kParameters; ++p) {
    if (result[p] && !present_[p]) {
      throw Refused(std::string("gradients.") + parameter_name(static_cast<Parameter>(p)) +
                    " is given although the parameter is null");
    }
  }
  return result;
}

LayerParameters LayerCall::parameters() const {
  LayerParameters p;
  p.hidden = dimensions_.hidden;
  p.intermediate = dimensions_.intermediate;
  p.shared_intermediate = dimensions_.shared_intermediate;
  p.router_weight = value(Parameter::router_weight);
  p.router_bias = value(Parameter::router_bias);
  p.expert_bias = value(Parameter::expert_bias);
  p.expert_scale = value(Parameter::expert_scale);
  p.gate_up = value(Parameter::gate_up);
  p.gate_up_bias = value(Parameter::gate_up_bias);
  p.down = value(Parameter::down);
  p.down_bias = value(Parameter::down_bias);
  p.shared_gate_up = value(Parameter::shared_gate_up);
  p.shared_down = value(Parameter::shared_down);
  p.shared_gate = value(Parameter::shared_gate);
  return p;
}

LayerInput LayerCall::input() const {
  return {dimensions_.tokens, x_, mask_, given_ids_};
}

}  // namespace dropless::reference::contract
