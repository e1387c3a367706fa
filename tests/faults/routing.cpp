// SPDX-License-Identifier: Apache-2.0
// Faults of the router, in four files: selection, weights, special rows and refusals, gradients
// with the bias update.
#include "tests/faults/routers.h"

namespace dropless::faults {

void add_routing(std::vector<Fault>& faults) {
  add_routing_selection(faults);
  add_routing_weights(faults);
  add_routing_special(faults);
  add_routing_backward(faults);
}

}  // namespace dropless::faults
