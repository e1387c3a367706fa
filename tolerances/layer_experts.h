// SPDX-License-Identifier: Apache-2.0
// One set of experts inside the layer's bound: gate-up GEMM, activation, down GEMM and back.
#pragma once

#include <span>

#include "tolerances/layer.h"

namespace dropless::tolerances {

// The routed experts are E groups of rows, the shared expert is one group with all tokens.
struct Experts {
  const LayerCall& call;
  Index num_experts, hidden, intermediate;
  Input gate_up, gate_up_bias, down, down_bias;
  std::span<const Index> offsets, counts;

  [[nodiscard]] Index rows() const { return offsets.back(); }
  [[nodiscard]] Index width() const;  // columns of gate_up: 2I, or I for relu2
};

// row_weights: [N] early weights, or empty.
ExpertStages experts_forward(const Experts& experts, const Approximate& rows,
                             const Approximate& row_weights);

struct ExpertsBackward {
  Approximate d_rows;         // [N,H] as stored
  Approximate d_row_weights;  // [N], empty without early weights
  Approximate gate_up, gate_up_bias, down, down_bias;
};
ExpertsBackward experts_backward(const Experts& experts, const Approximate& rows,
                                 const Approximate& row_weights, const ExpertStages& stages,
                                 const Approximate& d_out);

}  // namespace dropless::tolerances
