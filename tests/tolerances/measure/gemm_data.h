// SPDX-License-Identifier: Apache-2.0
// Operand pairs for the gate of the GEMM bounds: rows of a and b whose dot product is judged, made
// so that the faults of numerics can be planted in them (block scales, codes before rounding).
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace dropless::tolerances::models {

enum class Kind { same_sign, zero_mean, cancelling, one_hot, exact };
enum class Format { fp32, bf16, mxfp8 };

using Doubles = std::vector<double>;

struct Row {
  Doubles a, b;
  // mxfp8 only: a before it was quantised, and the scale of each block of 32.
  Doubles unquantised;
  Doubles scales;
  [[nodiscard]] double exact() const;  // correct to far below any bound here
  [[nodiscard]] double gauge() const;  // sum |a b|
  [[nodiscard]] double root() const;   // sqrt(sum (a b)^2)
};

Row make_row(Format format, Kind kind, int length, std::mt19937_64& random);

// Terms that lose nearly everything a legal accumulator may lose: for rounding to nearest, addends
// just below half an ulp of the sum; for truncation, addends just below two units.
Row worst_for_nearest(int length);
Row worst_for_truncation(int length, int chunk, int aligned_bits, int result_bits);

}  // namespace dropless::tolerances::models
