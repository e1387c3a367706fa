// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward pass of the layer have in common: groups of rows, views of the
// parameters, and rows of doubles in permuted order.
#pragma once

#include "reference/layer.h"
#include "reference/layer_experts.h"
#include "reference/permutation.h"

namespace dropless::reference {

inline Groups routed_groups(const LayerTrace& trace) {
  return {trace.offsets, trace.counts};
}

// The tokens that the experts of this rank work on.
struct RoutedView {
  Index tokens, top_k, num_experts;
  Input x;
  Indices ids;
  Input weights;
};
RoutedView routed_view(const dropless_route_settings& route, const LayerInput& input,
                       const LayerTrace& trace);

ExpertWeights routed_weights(Index num_experts, const LayerParameters& parameters);
// The shared expert as one expert without biases; intermediate 0 where the model has none.
ExpertWeights shared_weights(const LayerParameters& parameters);

// x [T,columns] in permuted order [N,columns]; weights [T,K] as row weights [N]. Padding is zero.
Doubles permuted_rows(const PermutePlan& plan, Index columns, Input x);
Doubles permuted_weights(const PermutePlan& plan, Input weights);

double dot(const double* a, const double* b, Index count);

}  // namespace dropless::reference
