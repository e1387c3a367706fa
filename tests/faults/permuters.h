// SPDX-License-Identifier: Apache-2.0
// What permutation faults share.
#pragma once

#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

// Faults of rows and gradients.
void add_permutation_rows(std::vector<Fault>& faults);

}  // namespace dropless::faults
