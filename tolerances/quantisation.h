// SPDX-License-Identifier: Apache-2.0
// MXFP8 of approximate values: everything that quantising and dequantising any value within the
// error can give (MXFP8-1 to 6). "Quantisation" in derivations.md.
#pragma once

#include <dropless/contract.h>

#include <span>

#include "tolerances/propagation.h"

namespace dropless::tolerances {

// Unbiased scale exponent k of a block with this amax (MXFP8-2), -127 .. 127.
int scale_exponent(dropless_dtype format, int scale_rule, double amax);

// One block in place: `count` elements with this stride from x[first].
void requantise_block(dropless_dtype format, int scale_rule, Approximate& x, Index first,
                      Index stride, Index count);

// Blocks along the columns of each row; the number of columns need not be a multiple of 32.
Approximate requantised_rows(dropless_dtype format, int scale_rule, Approximate x, Index columns);
// Blocks along the rows of each group, from its first row (offsets [G+1] in rows).
Approximate requantised_columns(dropless_dtype format, int scale_rule, Approximate x, Index columns,
                                std::span<const Index> offsets);

}  // namespace dropless::tolerances
