// SPDX-License-Identifier: Apache-2.0
// Case families of the stage mxfp8: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_mxfp8(Registry&) {}

}  // namespace dropless::conformance
