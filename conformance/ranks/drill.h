// SPDX-License-Identifier: Apache-2.0
// A collective case that trains the runner, not an implementation: tests ask for it.
#pragma once

#include "conformance/cases/family.h"

namespace dropless::conformance {

// ranks.drill: every call of the exchange once, on a handle whose max_tokens tells a test's own
// library how to misbehave. Part of the suite only where DROPLESS_RANK_DRILL is set.
void add_rank_drill(Registry& registry);

}  // namespace dropless::conformance
