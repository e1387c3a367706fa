// SPDX-License-Identifier: Apache-2.0
// The balance loss in fp32.
#pragma once

#include "tests/honest/arithmetic.h"

namespace dropless::honest {

// Under the default profile: c = 1, counts of the real routing.
void balance_in_fp32(Planted& variant, Style style);

}  // namespace dropless::honest
