// SPDX-License-Identifier: Apache-2.0
// Shared pieces of the layer's forward and backward pass.
#include "reference/layer_parts.h"

#include <cstring>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

Doubles to_doubles(const std::vector<std::byte>& bytes) {
  Doubles values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

RoutedView routed_view(const dropless_route_settings& route, const LayerInput& input,
                       const LayerTrace& trace) {
  if (!trace.received) {
    return {input.tokens, route.top_k,       route.num_experts,
            input.x,      trace.routing.ids, trace.routing.weights};
  }
  const RoutedTokens& r = *trace.received;
  return {r.tokens, r.top_k, r.num_experts, r.x, r.ids, r.weights};
}

ExpertWeights routed_weights(Index num_experts, const LayerParameters& parameters) {
  return {num_experts,         parameters.hidden,       parameters.intermediate,
          parameters.gate_up,  parameters.gate_up_bias, parameters.down,
          parameters.down_bias};
}

ExpertWeights shared_weights(const LayerParameters& parameters) {
  return {1,
          parameters.hidden,
          parameters.shared_intermediate,
          parameters.shared_gate_up,
          {},
          parameters.shared_down,
          {}};
}

Doubles permuted_rows(const PermutePlan& plan, Index columns, Input x) {
  return to_doubles(permute(plan, std::as_bytes(x), at(columns) * sizeof(double)));
}

Doubles permuted_weights(const PermutePlan& plan, Input weights) {
  return to_doubles(permute_slots(plan, std::as_bytes(weights), sizeof(double)));
}

double dot(const double* a, const double* b, Index count) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace dropless::reference
