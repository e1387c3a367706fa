// SPDX-License-Identifier: Apache-2.0
// Case families of the stage permutation: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_permutation(Registry&) {}

}  // namespace dropless::conformance
