// SPDX-License-Identifier: Apache-2.0
// Case families of the stage losses: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_losses(Registry&) {}

}  // namespace dropless::conformance
