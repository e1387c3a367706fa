// SPDX-License-Identifier: Apache-2.0
// Settings of published MoE models (conformance/models/models.json, with sources).
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

using Index = std::int64_t;

struct Model {
  std::string name, title, source, notes;
  Index hidden = 0, intermediate = 0, experts = 0, top_k = 0;
  Index shared_intermediate = 0;  // 0: no shared expert
  bool shared_gate = false, expert_bias = false, router_bias = false, ffn_bias = false;
  bool expert_scale = false;  // a per-expert scale on the routing weight
  bool top_k_routing = true;  // false: not top-k at heart (sparsemixer)
  int weight_placement = DROPLESS_WEIGHTS_LATE;
  double balance_coeff = 0, z_coeff = 0;
  dropless_route_settings route{};  // E, K, score, groups, factor
  dropless_activation_settings activation{};
};

// The built-in models, in the order of their names. `load_models` replaces them by a file of the
// same form; throws UsageError that names the file, the model and the field.
const std::vector<Model>& models();
void load_models(const std::string& path);
const Model* find_model(std::string_view name);

// H and I divided by `divisor`, rounded up to a multiple of 32; experts and routing unchanged.
Model scaled(const Model& model, Index divisor);

}  // namespace dropless::conformance
