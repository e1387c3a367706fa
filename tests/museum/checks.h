// SPDX-License-Identifier: Apache-2.0
// Checks that are in common use for tensors, applied as they are usually written.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dropless::museum {

struct CommonCheck {
  std::string name;     // of a column
  std::string meaning;  // one sentence
  // Accepts these values in place of the expected ones; both have the same, positive length.
  bool (*accepts)(std::span<const double> expected, std::span<const double> got);
};

const std::vector<CommonCheck>& common_checks();

// Value by value, NaN equal to NaN and infinities to themselves: what every check is for integers.
bool equal(std::span<const double> expected, std::span<const double> got);

}  // namespace dropless::museum
