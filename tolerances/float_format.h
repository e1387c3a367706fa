// SPDX-License-Identifier: Apache-2.0
// The floating-point formats as numbers: precision, exponent range, largest value. Everything the
// bounds and the judge know about rounding comes from these four numbers, never from the bit tricks
// of a codec, so that a wrong codec cannot hide behind the same mistake here.
#pragma once

#include <dropless/contract.h>

namespace dropless::tolerances {

struct FloatFormat {
  int precision;      // significant bits, the implicit one included (fp32: 24)
  int min_exponent;   // exponent of the smallest normal number (fp32: -126)
  double largest;     // largest finite value
  bool has_infinity;  // false for E4M3: NaN only
  bool saturates;     // conversions clamp to the largest value (MXFP8-3), fp8 only
};

// fp32, bf16, fp16, e4m3 or e5m2; throws std::logic_error for any other dtype.
const FloatFormat& float_format(dropless_dtype dtype);

// Unit roundoff of round to nearest: 2^-precision.
double unit_roundoff(dropless_dtype dtype);

// Distance between neighbouring values of the format at |x| (0: the smallest subnormal; beyond the
// largest finite value: the spacing there; NaN: NaN).
double ulp(dropless_dtype dtype, double x);

}  // namespace dropless::tolerances
