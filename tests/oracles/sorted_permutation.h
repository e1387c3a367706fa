// SPDX-License-Identifier: Apache-2.0
// Permutation by sorting: the list of all (expert, token, slot) triples, sorted stably, is the row
// order. A second implementation of PERMUTATION-1 to 5.
#pragma once

#include <string>
#include <vector>

#include "reference/permutation.h"

namespace dropless::oracles {

struct PermutationProblem {
  dropless_profile profile = {};
  std::int64_t tokens = 0, top_k = 1, num_experts = 1;
  std::vector<std::int64_t> ids;  // [T,K], -1 = none
  std::int64_t row_capacity = -1;
};

// Empty, or the first disagreement in words.
std::string check_plan(const PermutationProblem& problem, const reference::PermutePlan& got);

}  // namespace dropless::oracles
