// SPDX-License-Identifier: Apache-2.0
// One token of a router in fp32, for its forward and its backward pass.
#pragma once

#include "tests/honest/arithmetic.h"

namespace dropless::honest {

struct RouterToken {
  const dropless_route_settings& settings;
  Floats logits, scores;   // [E], unbiased
  std::vector<Index> ids;  // [K], -1 not routed
  bool undefined;          // ROUTING-8: no scores
};
RouterToken router_token(const dropless_route_settings& settings, const TensorView& logits, Index t,
                         const Style& style);
std::vector<Index> selected_of(const TensorView& ids, Index t);

// Elements of the selected experts, `missing` where the id is -1.
Floats selected_values(const Floats& of_expert, const std::vector<Index>& ids, float missing);
bool renormalizes(const dropless_route_settings& settings);
struct Divisor {
  float value;
  bool moves;  // depends on the scores
};
Divisor divisor_of(const dropless_route_settings& settings, const Floats& selected,
                   const Style& style);
// Before scaling factor and expert scale.
Floats unscaled_weights(const RouterToken& token, const Style& style);

// route_backward of a call that succeeded.
void route_back(const dropless_route_backward_args& a, const Style& style);

}  // namespace dropless::honest
