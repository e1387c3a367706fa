// SPDX-License-Identifier: Apache-2.0
// What the forward pass of the layer keeps for the backward pass, and the forward pass itself.
#pragma once

#include <optional>

#include "optimized/cpu/layer_problem.h"

namespace dropless::cpu {

// One set of experts: the routed ones over their zones, or the shared one over all tokens.
struct ExpertTrace {
  Buffer offsets;          // [E+1]
  Buffer gate_up, hidden;  // [N,2I] or [N,I]; [N,I], after early weights
  Buffer out;              // [N,H]
};

struct LayerTrace {
  Buffer logits, weights, ids, counts;  // [T,E], [T,K], [T,K] i64, [E]
  Buffer row_map, source;               // [T,K], [N]
  Buffer rows, row_weights;             // [N,H] as the experts see them, [N]
  ExpertTrace routed, shared;
  std::vector<float> shared_gate;  // [T], empty without a gate
};

// The handle that layer_forward hands out. With recomputation it holds nothing but the fact that
// the forward pass was run.
struct LayerState {
  Index tokens = 0, hidden = 0;
  std::optional<LayerTrace> trace;
};

// Router to expert outputs; the same input gives the same bits.
LayerTrace run_layer(Call& call, const LayerProblem& problem);

// y = combined experts + shared expert, rounded once.
void write_output(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                  const Tensor& y);

}  // namespace dropless::cpu
