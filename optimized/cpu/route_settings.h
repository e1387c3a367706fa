// SPDX-License-Identifier: Apache-2.0
// Settings of the router, checked (GENERAL-3).
#pragma once

#include "optimized/cpu/arguments.h"

namespace dropless::cpu {

struct RouteSettings {
  Index experts, top_k, groups, kept_groups;  // groups 1: no group limit
  int score_function, group_score;
  bool after_top_k;  // softmax over the selected K
  bool renormalize;  // the switch that counts for this K
  bool eps_maximum;
  double eps, scale;

  [[nodiscard]] Index group_size() const { return experts / groups; }
};

// with_bias: an expert bias is given. Throws Refusal.
RouteSettings read_route_settings(const dropless_route_settings* given, bool with_bias);

// ids [T,K] of type i32 or i64. Throws Refusal for ids below -1, beyond E - 1, or twice in a token.
void check_ids(const Tensor& ids, Index experts, const char* name);

}  // namespace dropless::cpu
