// SPDX-License-Identifier: Apache-2.0
// The arguments of a layer call, checked. One rank: an exchange is not supported here.
#pragma once

#include "optimized/cuda/layer_linear.h"

namespace dropless::cuda {

struct LayerProblem {
  dropless_layer_settings settings;
  dropless_route_settings route;
  dropless_activation_settings activation;
  dropless_layer_parameters parameters;  // every tensor has been checked
  dropless_tensor x;
  const dropless_tensor *token_mask, *given_ids;
  Index tokens, hidden, experts, top_k;
  Index intermediate, shared;  // 0: no shared expert

  [[nodiscard]] bool places(int placement) const { return settings.weight_placement == placement; }
  [[nodiscard]] bool has_shared() const { return parameters.shared_down != nullptr; }
  // Columns of the gate-up product in front of `width` columns of the activation.
  [[nodiscard]] Index gate_up_width(Index width) const {
    return activation.kind == DROPLESS_RELU2 ? width : 2 * width;
  }
  // The linear maps. zones: offsets of the routed experts, or of the one zone of all tokens.
  [[nodiscard]] Linear router(const dropless_tensor& zones) const;
  [[nodiscard]] Linear gate_up(const dropless_tensor& zones) const;
  [[nodiscard]] Linear down(const dropless_tensor& zones) const;
  [[nodiscard]] Linear shared_gate_up(const dropless_tensor& zones) const;
  [[nodiscard]] Linear shared_down(const dropless_tensor& zones) const;
};

// Throws Refusal.
LayerProblem read_layer(const dropless_layer_args& args);
// Gradients have the shapes of the parameters, fp32 or bf16; one of a parameter that the model
// does not have is refused. Null: none is wanted.
dropless_layer_parameters read_gradients(const LayerProblem& problem,
                                         const dropless_layer_parameters* given);

}  // namespace dropless::cuda
