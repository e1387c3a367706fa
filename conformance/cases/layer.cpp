// SPDX-License-Identifier: Apache-2.0
// Case families of the stage layer: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_layer(Registry&) {}

}  // namespace dropless::conformance
