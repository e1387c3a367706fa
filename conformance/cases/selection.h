// SPDX-License-Identifier: Apache-2.0
// Choosing cases: pairwise covering instead of full products.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {

struct Axis {
  std::string name;
  std::vector<std::string> values;
};

// Every combination.
std::vector<Values> product(const std::vector<Axis>& axes);
// A small list in which every pair of values of two axes occurs at least once (unless `allowed`
// rules every row with that pair out). Deterministic greedy; the first row takes the first values.
std::vector<Values> pairwise(const std::vector<Axis>& axes,
                             const std::function<bool(const Values&)>& allowed = {});
// The rows of `more` that are not in `fewer`: what a higher tier adds.
std::vector<Values> without(std::vector<Values> more, const std::vector<Values>& fewer);
// The value of one key.
const std::string& value_of(const Values& values, std::string_view key);

}  // namespace dropless::conformance
