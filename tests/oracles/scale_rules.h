// SPDX-License-Identifier: Apache-2.0
// MXFP8 scales and codes by search: no exponent bits, no log2, only comparisons of exact numbers.
#pragma once

#include <dropless/contract.h>

#include <cstdint>

#include "tests/oracles/format_table.h"

namespace dropless::oracles {

// E4M3 or E5M2.
const FormatTable& element_table(dropless_dtype format);

// MXFP8-2: the unclamped scale exponent k for a finite amax > 0.
int scale_exponent(long double amax, dropless_dtype format, int scale_rule);

// MXFP8-2 and 4: the byte of a block with this amax: 0, finite or infinite.
std::uint8_t scale_byte(long double amax, dropless_dtype format, int scale_rule);

// MXFP8-3: the code of x under a scale byte below 255.
FormatTable::Encoded encode(long double x, std::uint8_t byte, dropless_dtype format);

// MXFP8-5: value of a code under a byte, rounded to fp32 once.
float decode(std::uint8_t code, std::uint8_t byte, dropless_dtype format);

}  // namespace dropless::oracles
