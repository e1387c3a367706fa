// SPDX-License-Identifier: Apache-2.0
// The families of the exchange stage: dispatch and combine over ranks.
#include "conformance/cases/exchange/setup.h"

namespace dropless::conformance {

void add_exchange(Registry& registry) {
  add_exchange_capacity(registry);
  add_exchange_plans(registry);
  add_exchange_dispatch(registry);
  add_exchange_combine(registry);
  add_exchange_backward(registry);
  add_exchange_adjoint(registry);
  add_exchange_steps(registry);
  add_exchange_interleaving(registry);
  add_exchange_overflow(registry);
  add_exchange_overflow_checks(registry);
  add_exchange_repeat(registry);
  add_exchange_parity(registry);
  add_exchange_refusals(registry);
  add_exchange_lost_ranks(registry);
}

}  // namespace dropless::conformance
