// SPDX-License-Identifier: Apache-2.0
// One set of experts inside the layer: gate-up GEMM, activation, down GEMM, forward and backward.
// The routed experts are E groups of rows, the shared expert is one group with all tokens.
#pragma once

#include <dropless/contract.h>

#include "reference/grouped_gemm.h"
#include "reference/layer.h"
#include "reference/value.h"

namespace dropless::reference {

// How the layer computes: what all of its experts share.
struct ExpertMode {
  const dropless_activation_settings& activation;
  const dropless_profile& profile;
  bool mxfp8;                      // LAYER-2
  dropless_dtype gradient_format;  // of gradient operands under MXFP8
  dropless_dtype storage;          // LayerArithmetic
};
// Throws Refused for settings that no layer can have.
ExpertMode expert_mode(const dropless_layer_settings& settings, const dropless_profile& profile,
                       const LayerArithmetic& arithmetic);

// Every value as the storage format holds it; fp32 leaves doubles as they are.
void store(const ExpertMode& mode, Doubles& values);

struct ExpertWeights {
  Index num_experts, hidden, intermediate;
  Input gate_up, gate_up_bias;  // [E,2I,H] or [E,I,H], [E,2I] or empty
  Input down, down_bias;        // [E,H,I], [E,H] or empty
};

struct ExpertValues {
  Doubles gate_up, hidden, out;  // [N,2I] or [N,I], [N,I] after early weights, [N,H]
};
// rows [N,H]; early_weights [N] or empty.
ExpertValues experts_forward(const ExpertMode& mode, const ExpertWeights& weights,
                             const Groups& groups, Index row_count, Input rows,
                             Input early_weights);

struct ExpertGradient {
  Doubles d_rows;           // [N,H]
  Doubles d_early_weights;  // [N] or empty
  Doubles gate_up, gate_up_bias, down, down_bias;
};
// gate_up and hidden as experts_forward returned them; d_out [N,H].
ExpertGradient experts_backward(const ExpertMode& mode, const ExpertWeights& weights,
                                const Groups& groups, Index row_count, Input rows, Input gate_up,
                                Input hidden, Input early_weights, Input d_out);

}  // namespace dropless::reference
