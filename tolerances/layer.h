// SPDX-License-Identifier: Apache-2.0
// A-priori error bounds of a whole MoE layer, forward and backward: "Layer" in derivations.md. The
// values and their errors are computed side by side, stage by stage; the values repeat the
// reference's own formulas, so that a test can hold the two against each other.
//
//     LayerCall call{settings, profile, model, rows, tokens, x, DROPLESS_BF16, Operands::bf16};
//     const LayerForward forward = layer_forward(call);
//     judge.bounded("LAYER-1a", "y", y, reference.y, forward.y.error);
//     const LayerBackward backward = layer_backward(call, forward, d_y);
//     judge.bounded("LAYER-1e", "d_x", d_x, gradient.d_x, backward.d_x.error);
//
// Hypothesis: the implementation selects the same experts (the case keeps margins larger than
// forward.logits.error and checks ids exactly).
#pragma once

#include <dropless/contract.h>

#include <span>

#include "tolerances/propagation.h"

namespace dropless::tolerances {

// Parameters as in dropless_layer_parameters; empty where the model has none.
struct LayerModel {
  Index hidden = 0, intermediate = 0, shared_intermediate = 0;
  Input router_weight, router_bias, expert_bias, expert_scale;
  Input gate_up, gate_up_bias, down, down_bias;
  Input shared_gate_up, shared_down, shared_gate;
};

// The routing and permutation that the layer makes, from the reference's trace.
struct LayerRows {
  std::span<const Index> ids;      // [T,K], -1 not routed
  std::span<const Index> offsets;  // [E+1]
  std::span<const Index> counts;   // [E]
  std::span<const Index> source;   // [N] t * K + slot, -1 padding
};

struct LayerCall {
  const dropless_layer_settings& settings;
  const dropless_profile& profile;
  LayerModel model;
  LayerRows rows;
  Index tokens = 0;
  Input x;  // [T,H]
  // Element format of the stored intermediates, as given to the reference (LayerArithmetic).
  dropless_dtype storage = DROPLESS_FP32;
  // Formats of x and router weight, whichever is wider.
  Operands router_operands = Operands::fp32;
  // The layer's experts are spread over ranks: "Over ranks" in derivations.md.
  bool over_ranks = false;
};

// The values of one set of experts (routed, or the shared one).
struct ExpertStages {
  Approximate gate_up, hidden, out;  // as stored: [N,2I] or [N,I], [N,I], [N,H]
};

struct LayerForward {
  Approximate logits;   // [T,E]
  Approximate weights;  // [T,K]
  Approximate rows;     // [N,H]
  ExpertStages routed, shared;
  Approximate shared_gate;  // [T]
  Approximate y;            // [T,H], not rounded
};
LayerForward layer_forward(const LayerCall& call);

struct LayerBackward {
  Approximate d_x;  // [T,H]
  Approximate router_weight, router_bias, expert_scale;
  Approximate gate_up, gate_up_bias, down, down_bias;
  Approximate shared_gate_up, shared_down, shared_gate;
};
// d_logits [T,E] or empty: gradient of further losses on the logits.
LayerBackward layer_backward(const LayerCall& call, const LayerForward& forward, Input d_y,
                             Input d_logits = {});

}  // namespace dropless::tolerances
