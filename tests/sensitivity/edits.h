// SPDX-License-Identifier: Apache-2.0
// Changes of one input in one place: small, and legal as far as that can be seen from the input.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/sensitivity/inputs.h"

namespace dropless::sensitivity {

struct Edit {
  std::string name;  // "negate largest", "later middle"
  // Changes the elements; false: there is nothing to change in that place.
  std::function<bool(const dropless_tensor& elements)> apply;
};

// In the order in which they are tried.
const std::vector<Edit>& edits_of(Role role);
// The one change of a real number.
bool change_number(double& number);

}  // namespace dropless::sensitivity
