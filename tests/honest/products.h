// SPDX-License-Identifier: Apache-2.0
// Grouped GEMMs with an accumulator of one's own (GROUPED_GEMM-6).
#pragma once

#include "tests/accumulators/accumulators.h"
#include "tests/honest/variant.h"

namespace dropless::honest {

// One for every type of operands; fp32 where either operand is, else mxfp8 where either is.
struct Accumulators {
  accumulators::Dot fp32, bf16, mxfp8;
};

// fprop, dgrad and wgrad compute every element of real rows (wgrad: of experts with rows) by the
// accumulator, then alpha, bias and beta * C in fp32, and round once. Padding, tails, experts
// without rows and refusals stay the reference's.
void accumulate_with(Planted& variant, Accumulators accumulators);

}  // namespace dropless::honest
