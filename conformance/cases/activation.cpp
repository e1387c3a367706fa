// SPDX-License-Identifier: Apache-2.0
// Case families of the stage activation: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_activation(Registry&) {}

}  // namespace dropless::conformance
