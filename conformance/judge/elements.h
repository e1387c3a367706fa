// SPDX-License-Identifier: Apache-2.0
// Elements of a buffer as bytes: the judge's own reading and writing of every dtype, built from the
// definition of the formats and independent of the codecs it helps to judge.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "conformance/judge/buffers.h"

namespace dropless::conformance {

bool is_float(dropless_dtype dtype);  // fp32, bf16, fp16, e4m3, e5m2

// One element; the pointers need no alignment. decode: integers become the double of equal value,
// e8m0 2^(byte - 127), 255 NaN. encode: rounds to nearest even, fp8 saturates; e8m0 must be an
// exact power of two in range and integers exact integers in range, else std::logic_error.
double decode(dropless_dtype dtype, const std::uint8_t* element);
void encode(dropless_dtype dtype, double value, std::uint8_t* element);
// The same for elements one after the other.
void decode(dropless_dtype dtype, const std::uint8_t* elements, std::span<double> values);
void encode(dropless_dtype dtype, std::span<const double> values, std::uint8_t* elements);

// i32, i64, u8; std::logic_error otherwise or when the value does not fit.
Index decode_integer(dropless_dtype dtype, const std::uint8_t* element);
void encode_integer(dropless_dtype dtype, Index value, std::uint8_t* element);

// For messages: an integer, %.9g for floats, the raw bits appended for 8-bit formats ("448
// (0x7e)").
std::string print(dropless_dtype dtype, const std::uint8_t* element);
std::string print_bits(dropless_dtype dtype, const std::uint8_t* element);  // "0x7e"
std::string print(double value);                                            // "%.9g"

}  // namespace dropless::conformance
