// SPDX-License-Identifier: Apache-2.0
// The IEEE fields of a float or a double, and their rounding to a narrower format, on integers
// only.
//
// No libm, no floating-point arithmetic: the result depends neither on the rounding mode nor on
// flush-to-zero settings, and a double is rounded once, never by way of fp32.
#pragma once

#include <cstdint>

#include "dropless/formats/host_device.h"

namespace dropless::formats {

// IEEE 754 binary32 and binary64: |x| = significand * 2^(exponent - mantissa_bits).
template <typename Source>
struct SourceLayout;

template <>
struct SourceLayout<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_mask = 0xFF;
  static constexpr int bias = 127;
};

template <>
struct SourceLayout<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_mask = 0x7FF;
  static constexpr int bias = 1023;
};

template <typename Source>
struct SourceBits {
  using Layout = SourceLayout<Source>;
  using Bits = typename Layout::Bits;

  Bits significand;  // with the hidden bit of normal numbers
  int exponent;      // of the hidden bit; subnormals share that of the smallest normal number
  bool negative, is_infinite, is_nan;

  DROPLESS_HOST_DEVICE static constexpr SourceBits of(Source x) {
    const Bits bits = __builtin_bit_cast(Bits, x);
    const Bits hidden = Bits{1} << Layout::mantissa_bits;
    const Bits mantissa = bits & (hidden - 1);
    const int field = static_cast<int>(bits >> Layout::mantissa_bits) & Layout::exponent_mask;
    const bool special = field == Layout::exponent_mask;
    return {field == 0 ? mantissa : (mantissa | hidden), (field == 0 ? 1 : field) - Layout::bias,
            (bits >> (8 * sizeof(Bits) - 1)) != 0, special && mantissa == 0,
            special && mantissa != 0};
  }
};

// Round |x|, finite, to the nearest multiple of the spacing that a format with `target_mantissa`
// mantissa bits and smallest normal exponent `target_emin` has there; ties go to the even code.
// Returns the code without sign as if the format had unlimited exponents: the caller compares it
// with its largest finite code. Codes of neighbouring values are neighbouring integers, so a carry
// out of the mantissa needs no extra step.
template <typename Source>
DROPLESS_HOST_DEVICE constexpr std::uint32_t nearest_code(const SourceBits<Source>& x,
                                                          int target_mantissa, int target_emin) {
  using Bits = typename SourceBits<Source>::Bits;
  constexpr int source_mantissa = SourceLayout<Source>::mantissa_bits;
  const int scale = x.exponent > target_emin ? x.exponent : target_emin;
  const int dropped = source_mantissa - target_mantissa + (scale - x.exponent);
  if (dropped >= source_mantissa + 2) return 0;  // below half of the smallest subnormal
  const Bits kept = x.significand >> dropped;
  const Bits rest = x.significand & ((Bits{1} << dropped) - 1);
  const Bits half = Bits{1} << (dropped - 1);
  const bool up = rest > half || (rest == half && (kept & 1) != 0);
  return (static_cast<std::uint32_t>(scale - target_emin) << target_mantissa) +
         static_cast<std::uint32_t>(kept) + (up ? 1u : 0u);
}

}  // namespace dropless::formats
