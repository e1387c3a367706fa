// SPDX-License-Identifier: Apache-2.0
// The arguments of a layer call, checked.
#pragma once

#include "optimized/cpu/buffer.h"
#include "optimized/cpu/exchange/handle.h"
#include "optimized/cpu/layer_linear.h"

namespace dropless::cpu {

// Parameters, or gradients of them; those that are not given are empty.
struct LayerTensors {
  Tensor router_weight, router_bias, expert_bias, expert_scale;
  Tensor gate_up, gate_up_bias, down, down_bias;
  Tensor shared_gate_up, shared_down, shared_gate;
};

struct LayerSizes {
  Index tokens, hidden, experts, top_k, intermediate, shared;
  Index local_experts;            // of this rank
  Index gate_up, shared_gate_up;  // widths of the gate-up products
};

struct LayerProblem {
  dropless_exchange* exchange;  // null on one rank
  const exchange::Handle* ranks;
  dropless_route_settings route;
  dropless_activation_settings activation;
  dropless_layer_settings settings;
  LayerSizes sizes;
  LayerTensors parameters;
  Tensor x, token_mask, given_ids;

  [[nodiscard]] bool mxfp8() const { return settings.recipe == DROPLESS_RECIPE_MXFP8; }
  [[nodiscard]] bool places(int placement) const { return settings.weight_placement == placement; }
  [[nodiscard]] bool has_shared() const { return parameters.shared_down.given; }

  // The linear maps of the layer. offsets: zones of the routed experts, or the one zone of all
  // tokens.
  [[nodiscard]] Linear router(const dropless_tensor* offsets) const;
  [[nodiscard]] Linear gate_up(const dropless_tensor* offsets) const;
  [[nodiscard]] Linear down(const dropless_tensor* offsets) const;
  [[nodiscard]] Linear shared_gate_up(const dropless_tensor* offsets) const;
  [[nodiscard]] Linear shared_down(const dropless_tensor* offsets) const;
};

// Throws Refusal, also for what does not fit the exchange of the call.
LayerProblem read_layer(const dropless_layer_args& args);

// Gradients [as the parameters]; one that the model has no parameter for is refused.
LayerTensors read_gradients(const LayerProblem& problem, const dropless_layer_parameters* given);

}  // namespace dropless::cpu
