// SPDX-License-Identifier: Apache-2.0
// The case families of the stage optimizer.
#include "conformance/cases/optimizer/setup.h"

namespace dropless::conformance {

void add_optimizer(Registry& registry) {
  add_optimizer_adamw(registry);
  add_optimizer_stochastic(registry);
  add_optimizer_contract(registry);
}

}  // namespace dropless::conformance
