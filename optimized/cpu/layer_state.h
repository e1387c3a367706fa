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

// With an exchange: the tokens of all ranks for the experts of this one, as if they were its own.
struct Arrived {
  Buffer x, scales;     // [N,H], or codes with [N,S]
  Buffer ids, weights;  // [N,K] in the flat layout, [N,1] in the expert-major one; local ids
  Buffer counts;        // [L] pairs

  // Once they are permuted, only their number is of interest.
  void forget_rows() {
    x = Buffer(x.get()->dtype, {x.get()->shape[0], 0});
    scales = Buffer();
  }
};

struct LayerTrace {
  Buffer logits, weights, ids, counts;  // [T,E], [T,K], [T,K] i64, [E]
  std::optional<Arrived> arrived;
  // Of the own tokens, or of those that arrived:
  Buffer row_map, source;   // [T,K], [N]
  Buffer rows, row_scales;  // [N,H] as the experts see them; scales of codes
  Buffer row_weights;       // [N]
  ExpertTrace routed, shared;
  std::vector<float> shared_gate;  // [T], empty without a gate
};

// The handle that layer_forward hands out. With recomputation it holds nothing but the fact that
// the forward pass was run.
struct LayerState {
  Index tokens = 0, hidden = 0;
  const exchange::Handle* ranks = nullptr;
  std::uint64_t plans = 0;  // of the handle, that of this call included
  std::optional<LayerTrace> trace;
};

// What the permutation of the layer works on.
struct RoutedTokens {
  dropless_tensor x;                              // [T,H]
  const dropless_tensor *scales, *ids, *weights;  // [T,S] or null, [T,K], [T,K]
  const Buffer& counts;                           // [E] pairs
};
[[nodiscard]] RoutedTokens routed_tokens(const LayerProblem& problem, const LayerTrace& trace);

// Router to expert outputs; the same input gives the same bits. backward_follows: the trace will be
// used by a backward pass.
LayerTrace run_layer(Call& call, const LayerProblem& problem, bool backward_follows);

// y = combined experts + shared expert, rounded once.
void write_output(Call& call, const LayerProblem& problem, const LayerTrace& trace,
                  const Tensor& y);

}  // namespace dropless::cpu
