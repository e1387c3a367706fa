// SPDX-License-Identifier: Apache-2.0
// exp and the logistic function in double, without branches or calls, so that loops over them
// vectorise. Their relative error of about 1e-14 is far below what any fp32 result can show.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "optimized/cpu/simd.h"

namespace dropless::cpu {

// x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) by its series up to r^11 / 11!: error below
// 0.35^12 / 12! = 6e-15. Results below 2^-1021 become 0, those beyond the range infinity; NaN
// stays.
DROPLESS_INLINE double exp_accurate(double x) {
  constexpr double log2_e = 1.4426950408889634074;
  constexpr double ln2_high = 6.93147180369123816490e-01;  // few bits: n * ln2_high is exact
  constexpr double ln2_low = 1.90821492927058770002e-10;
  constexpr double to_integer = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double shifted = x * log2_e + to_integer;
  const double n = shifted - to_integer;
  const double r = (x - n * ln2_high) - n * ln2_low;
  double sum = 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const std::uint64_t exponent = std::bit_cast<std::uint64_t>(shifted) << 52;
  const double power = std::bit_cast<double>(exponent + std::bit_cast<std::uint64_t>(1.0));
  const double value = sum * power;
  const double bounded = x > 709.0 ? std::numeric_limits<double>::infinity() : value;
  return x < -707.0 ? 0.0 : bounded;
}

// 1 / (1 + exp(-x)) and 1 - that, each to full relative accuracy.
struct Logistic {
  double value, complement;
};
DROPLESS_INLINE Logistic logistic(double x) {
  const double e = exp_accurate(x < 0 ? x : -x);  // exp(-|x|); NaN stays
  const double large = 1.0 / (1.0 + e);
  const double small = e * large;
  return {x < 0 ? small : large, x < 0 ? large : small};
}

}  // namespace dropless::cpu
