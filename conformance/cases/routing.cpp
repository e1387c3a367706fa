// SPDX-License-Identifier: Apache-2.0
// Case families of the stage routing: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_routing(Registry&) {}

}  // namespace dropless::conformance
