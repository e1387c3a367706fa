// SPDX-License-Identifier: Apache-2.0
// The MoE layer on one rank, text-book form: LAYER-1 onward. It calls the other stages and adds
// nothing but their order.
#pragma once

#include <dropless/contract.h>

#include <memory>

#include "reference/routing.h"
#include "reference/value.h"

namespace dropless::reference {

// Dimensions and parameters. Empty where the model has none. Shapes as in
// dropless_layer_parameters.
struct LayerParameters {
  Index hidden = 0, intermediate = 0, shared_intermediate = 0;
  Input router_weight, router_bias, expert_bias, expert_scale;
  Input gate_up, gate_up_bias, down, down_bias;
  Input shared_gate_up, shared_down, shared_gate;
};

struct LayerInput {
  Index tokens = 0;
  Input x;            // [T,H]
  Mask token_mask;    // [T] or empty
  Indices given_ids;  // [T,K] or empty
};

// What the stages saw, kept so that the backward pass and the judge can look at every step.
struct LayerTrace {
  Doubles logits;  // [T,E]
  Routing routing;
  Doubles rows;             // [N,H] permuted input (times weight for input placement)
  Doubles gate_up, hidden;  // [N,2I], [N,I] (hidden after early weights)
  Doubles expert_out;       // [N,H]
  std::vector<Index> counts, offsets, row_map, source;  // of the rows, as in PermutePlan
  Doubles shared_gate_up, shared_hidden, shared_out, shared_gate;
};

struct LayerOutput {
  Doubles y;  // [T,H]
  LayerTrace trace;
};

// Element format of every stored intermediate: the reference can round what a real implementation
// stores, so that bf16 layers are compared with the same roundings (fp32: no rounding at all).
struct LayerArithmetic {
  dropless_dtype storage = DROPLESS_FP32;
};

// Throws Refused for unknown settings and for sizes that do not fit. Rounded to the storage format
// are gate-up, hidden and expert output of routed and shared experts, the weighted input rows of
// input placement, and in the backward pass the gradients of the same tensors; logits are rounded
// to settings.logits_dtype (fp32: not at all). y and all results of the backward pass are not
// rounded: that is the judge's last step.
LayerOutput layer(const dropless_layer_settings& settings, const dropless_profile& profile,
                  const LayerParameters& parameters, const LayerInput& input,
                  const LayerArithmetic& arithmetic = {});

struct LayerGradient {
  Doubles d_x;
  Doubles router_weight, router_bias, expert_scale;
  Doubles gate_up, gate_up_bias, down, down_bias;
  Doubles shared_gate_up, shared_down, shared_gate;
};

// d_logits [T,E] or empty: gradient of further losses on the logits, added to the routing's own.
LayerGradient layer_backward(const dropless_layer_settings& settings,
                             const dropless_profile& profile, const LayerParameters& parameters,
                             const LayerInput& input, const LayerTrace& trace, Input d_y,
                             const LayerArithmetic& arithmetic = {}, Input d_logits = {});

}  // namespace dropless::reference
