// SPDX-License-Identifier: Apache-2.0
// Case families of the stage optimizer: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_optimizer(Registry&) {}

}  // namespace dropless::conformance
