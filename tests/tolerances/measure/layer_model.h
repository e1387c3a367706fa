// SPDX-License-Identifier: Apache-2.0
// A MoE layer in plain fp32, forward and backward, as a legal implementation may write it: with
// stored intermediates in bf16 or not, sums from either end; and switches that break it.
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <vector>

#include "reference/layer.h"
#include "tolerances/layer.h"

namespace dropless::tolerances::models {

using Floats = std::vector<float>;

// Sizes, settings and random parameters of one layer; exact in the format of the layer.
struct LayerData {
  dropless_route_settings route{};
  dropless_activation_settings activation{};
  dropless_layer_settings settings{};  // points to the two above
  dropless_profile profile{};
  dropless_dtype storage = DROPLESS_FP32;
  Index tokens = 0, hidden = 0, intermediate = 0, shared_intermediate = 0;
  Doubles x, d_y, router_weight, router_bias, expert_scale;
  Doubles gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;

  LayerData() = default;
  LayerData(const LayerData&) = delete;
  LayerData& operator=(const LayerData&) = delete;
  [[nodiscard]] reference::LayerParameters parameters() const;
  [[nodiscard]] LayerModel model() const;
};

struct LayerShape {
  Index tokens, hidden, intermediate, shared_intermediate, num_experts, top_k;
};
void fill(LayerData& data, const LayerShape& shape, dropless_dtype storage, std::uint64_t seed);

enum class LayerFault {
  none,
  weights_forgotten,  // routing weights are 1
  scaling_on_shared,  // the routing factor multiplies the shared expert
  shared_gate_forgotten,
  bf16_combine,  // partial sums of the combine in bf16
  gate_and_up_exchanged,
  row_dropped,  // one row does not come back
  router_gradient_forgotten,
  wgrad_row_dropped,        // one token is missing in the weight gradients
  derivative_of_gate_only,  // d_up is taken as d_gate's factor
  rounded_twice             // the expert output is stored in e4m3 on the way (a wrong epilogue)
};

struct LayerMode {
  bool stores = true;      // keeps intermediates in the storage format (false: fp32)
  bool backwards = false;  // sums from the other end
  LayerFault fault = LayerFault::none;
};

struct LayerResult {
  Floats y, d_x, router_weight, router_bias, expert_scale;
  Floats gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;
};
// The selection is that of the reference.
LayerResult fp32_layer(const LayerData& data, const reference::LayerTrace& trace,
                       const LayerMode& mode);

}  // namespace dropless::tolerances::models
