// SPDX-License-Identifier: Apache-2.0
// Routing, text-book form: ROUTING-1 to 13 and 16.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

struct RoutingInput {
  Index tokens = 0;
  Input logits;        // [T,E]
  Input expert_bias;   // [E] or empty
  Mask token_mask;     // [T] or empty
  Indices given_ids;   // [T,K] or empty
  Input expert_scale;  // [E] or empty
};

struct Routing {
  std::vector<Index> ids;  // [T,K], -1 = not routed
  Doubles weights;         // [T,K], exact formula in double
  Doubles weight_sum;      // [T]: sum of the selected scores, before renormalisation
  Doubles scores;          // [T,E] unbiased scores
  Doubles selection;       // [T,E] compared values: fl32(score) + bias, -inf if masked
                           //   (logits where softmax over the selected K selects on them)
  Doubles group_scores;    // [T,G], empty when there is no group limit
  std::vector<std::uint8_t> group_kept;  // [T,G]
  std::vector<Index> tokens_per_expert;  // [E]
};

// Throws Refused as listed at dropless_route_args. Given ids of masked tokens are checked like all
// others. An undefined row (ROUTING-8) is selected with NaN above every number, so that the NaN
// reaches the weights; with given ids nothing is selected and the weights are the plain formula.
Routing route(const dropless_route_settings& settings, const dropless_profile& profile,
              const RoutingInput& input);

struct RoutingBackwardInput {
  Index tokens = 0;
  Input logits;        // [T,E]
  Mask token_mask;     // [T] or empty
  Input expert_scale;  // [E] or empty
  Indices ids;         // [T,K]
  Input d_weights;     // [T,K]
};

struct RoutingGradient {
  Gauged d_logits;        // [T,E]
  Gauged d_expert_scale;  // [E]
};

RoutingGradient route_backward(const dropless_route_settings& settings,
                               const RoutingBackwardInput& input);

// fl32(b_e + rate * sign(sum(n) - E * n_e)); counts [n,E].
std::vector<float> bias_update(double rate, Index num_experts, Indices counts,
                               std::span<const float> expert_bias);

}  // namespace dropless::reference
