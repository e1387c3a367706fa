// SPDX-License-Identifier: Apache-2.0
// The case families of the stage losses.
#include "conformance/cases/losses/setup.h"

namespace dropless::conformance {

void add_losses(Registry& registry) {
  add_losses_balance(registry);
  add_losses_logits(registry);
  add_losses_contract(registry);
}

}  // namespace dropless::conformance
