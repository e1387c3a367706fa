// SPDX-License-Identifier: Apache-2.0
// Models of accumulators, legal and broken, written from their description: the bounds are measured
// with them, and honest variants of the grouped GEMM compute with them. Operands are exact doubles;
// results are fp32 values.
//
//     const Dot dot = [](Values a, Values b) { return tensor_core(hopper_bf16, a, b); };
//     float y = dot(row_of_x, row_of_w);
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace dropless::accumulators {

using Values = std::span<const double>;
using Dot = std::function<float(Values, Values)>;

// Every product and every partial sum rounded to fp32, left to right.
float sequential(Values a, Values b);
// The same from the right end.
float reversed(Values a, Values b);
// Products rounded, then added as a balanced tree.
float pairwise(Values a, Values b);
// One rounding per product and addition.
float fused(Values a, Values b);

// One unit of a tensor core: `length` products and the accumulator are aligned to the largest
// exponent among them (products are not renormalised), each truncated to `aligned_bits` fraction
// bits, added exactly, and the sum truncated to `result_bits` fraction bits.
struct Unit {
  int length, aligned_bits, result_bits;
};
inline constexpr Unit hopper_bf16{16, 25, 23};
inline constexpr Unit blackwell_fp8{32, 25, 23};
inline constexpr Unit hopper_fp8{32, 13, 13};
// Finite operands only.
double step(const Unit& unit, double accumulator, Values a, Values b);
// period > 0: the accumulator is added to an fp32 sum and cleared after so many products. NaN and
// infinities give what adding them up gives.
float tensor_core(const Unit& unit, Values a, Values b, int period = 0);
// The same for fp32 operands: every product is rounded to fp32 first.
float tensor_core_of_products(const Unit& unit, Values a, Values b);

// `parts` contiguous parts, each by `inner`, added in fp32; bf16_partials rounds every part first.
float split(int parts, const Dot& inner, bool bf16_partials, Values a, Values b);
// Every partial sum rounded to bf16.
float all_bf16(Values a, Values b);

}  // namespace dropless::accumulators
