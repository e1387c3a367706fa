// SPDX-License-Identifier: Apache-2.0
// The case families of the stage routing.
#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {

void add_routing(Registry& registry) {
  add_routing_selection(registry);
  add_routing_groups(registry);
  add_routing_ties(registry);
  add_routing_weights(registry);
  add_routing_special(registry);
  add_routing_metamorphic(registry);
  add_routing_backward(registry);
  add_routing_bias_update(registry);
  add_routing_contract(registry);
  add_routing_refusals(registry);
}

}  // namespace dropless::conformance
