// SPDX-License-Identifier: Apache-2.0
// Case families of the stage grouped_gemm: none yet.
#include "conformance/cases/family.h"

namespace dropless::conformance {

void add_grouped_gemm(Registry&) {}

}  // namespace dropless::conformance
