// SPDX-License-Identifier: Apache-2.0
// The router's settings as kernels take them, and checks of them and of ids (GENERAL-3).
#pragma once

#include "optimized/cuda/call.h"

namespace dropless::cuda {

struct RouteSettings {
  int experts, top_k;
  int groups, kept_groups;  // groups is 1 without a group limit
  int score_function;
  int group_width;   // how many values of a group its score adds up; 1 is the maximum (ROUTING-4)
  bool after_top_k;  // softmax over the selected
  bool renormalize;
  bool eps_maximum;
  double eps, scale;

  [[nodiscard]] DROPLESS_HOST_DEVICE int group_size() const { return experts / groups; }
};

// Throws Refusal for settings that GENERAL-3 names.
RouteSettings read_route_settings(const dropless_route_settings* given, bool with_bias);

// Enqueues the check of ids [T,K]: within -1 .. E-1, no expert twice in a token. Nothing when the
// call is trusted.
void check_ids(Call& call, const Tensor& ids, Index experts);

}  // namespace dropless::cuda
