// SPDX-License-Identifier: Apache-2.0
// Routing by brute force: every subset of experts, and of groups, is tried; the right one is the
// one that no outsider beats. Written from ROUTING-1 to 10 and 13.
#pragma once

#include <string>
#include <vector>

#include "reference/routing.h"

namespace dropless::oracles {

struct RoutingProblem {
  dropless_route_settings settings = {};
  dropless_profile profile = {};
  std::int64_t tokens = 0;
  std::vector<double> logits, expert_bias, expert_scale;
  std::vector<std::uint8_t> token_mask;
  std::vector<std::int64_t> given_ids;

  [[nodiscard]] reference::RoutingInput input() const {
    return {tokens, logits, expert_bias, token_mask, given_ids, expert_scale};
  }
};

// A row whose result ROUTING-8 leaves open: a NaN logit; softmax: also +inf, or no finite logit.
bool is_nan_row(const RoutingProblem& problem, std::int64_t token);

// Empty, or the first disagreement in words.
std::string check_routing(const RoutingProblem& problem, const reference::Routing& got);

// What happened, so that a test can show that its cases were not all trivial.
struct RoutingCensus {
  int tied_boundaries = 0;  // an outsider equals an insider
  int tied_groups = 0;
  int nan_rows = 0;
  int short_rows = 0;  // fewer than K unmasked experts to choose from
};
void take_census(const RoutingProblem& problem, const reference::Routing& got,
                 RoutingCensus& census);

}  // namespace dropless::oracles
