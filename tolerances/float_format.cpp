// SPDX-License-Identifier: Apache-2.0
// The floating-point formats as numbers.
#include "tolerances/float_format.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace dropless::tolerances {

const FloatFormat& float_format(dropless_dtype dtype) {
  static const FloatFormat fp32{24, -126, 0x1.fffffep127, true, false};
  static const FloatFormat bf16{8, -126, 0x1.fep127, true, false};
  static const FloatFormat fp16{11, -14, 65504.0, true, false};
  static const FloatFormat e4m3{4, -6, 448.0, false, true};
  static const FloatFormat e5m2{3, -14, 57344.0, true, true};
  switch (dtype) {
    case DROPLESS_FP32:
      return fp32;
    case DROPLESS_BF16:
      return bf16;
    case DROPLESS_FP16:
      return fp16;
    case DROPLESS_E4M3:
      return e4m3;
    case DROPLESS_E5M2:
      return e5m2;
    default:
      throw std::logic_error("float_format: not a rounded floating-point format");
  }
}

double unit_roundoff(dropless_dtype dtype) {
  return std::ldexp(1.0, -float_format(dtype).precision);
}

double ulp(dropless_dtype dtype, double x) {
  const FloatFormat& format = float_format(dtype);
  if (std::isnan(x)) return x;
  const double magnitude = std::min(std::abs(x), format.largest);
  const int exponent =
      magnitude == 0 ? format.min_exponent : std::max(std::ilogb(magnitude), format.min_exponent);
  return std::ldexp(1.0, exponent - (format.precision - 1));
}

}  // namespace dropless::tolerances
