// SPDX-License-Identifier: Apache-2.0
// Inputs whose change a family need not notice, each with the reason. Anything else that a family
// does not notice is a hole in it; an entry that no longer holds is a mistake as well.
#pragma once

#include <string>
#include <vector>

namespace dropless::sensitivity {

struct Exemption {
  std::string family;  // "routing.refusals"
  std::string input;   // "route_forward.logits", or "*": whichever of its inputs do not flip
  std::string reason;
};

const std::vector<Exemption>& exemptions();

}  // namespace dropless::sensitivity
