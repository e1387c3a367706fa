// SPDX-License-Identifier: Apache-2.0
// OCP MX block scale E8M0: byte b stands for 2^(b - 127), 255 for NaN; there is no zero and no
// sign.
//
// Byte 0 is 2^-127, a subnormal number of fp32 (MXFP8-5): flushing it to zero is a known fault.
// Which byte a block gets (MXFP8-2) is the business of the implementations, not of this header.
#pragma once

#include <cstdint>

#include "dropless/formats/host_device.h"
#include "dropless/formats/small_float.h"
#include "dropless/formats/source_bits.h"

namespace dropless {

struct E8m0 {
  using Storage = std::uint8_t;
  Storage bits;

  static constexpr int bias = 127;
  static constexpr int mantissa_bits = 0;
  static constexpr int emin = -127;  // exponents of the smallest and the largest value
  static constexpr int emax = 127;
  static constexpr std::uint32_t max_code = 254;
  static constexpr std::uint32_t nan_code = 255;

  DROPLESS_HOST_DEVICE static constexpr E8m0 from_bits(std::uint32_t raw) {
    return E8m0{static_cast<Storage>(raw)};
  }
  // The scale 2^k, k clamped to what the format can hold.
  DROPLESS_HOST_DEVICE static constexpr E8m0 from_exponent(int k) {
    return from_bits(static_cast<std::uint32_t>((k < emin ? emin : k > emax ? emax : k) + bias));
  }
  // Nearest power of two; halfway (1.5 * 2^k) goes up, as in ml_dtypes. Positive values below
  // 2^-127 give byte 0; negative values and NaN give NaN. Zero and too large values: the nearest
  // scale under saturate, NaN under propagate.
  DROPLESS_HOST_DEVICE static constexpr E8m0 from_float(float x,
                                                        Overflow overflow = Overflow::saturate) {
    return from_source(x, overflow);
  }
  DROPLESS_HOST_DEVICE static constexpr E8m0 from_double(double x,
                                                         Overflow overflow = Overflow::saturate) {
    return from_source(x, overflow);
  }

  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_nan() const { return bits == nan_code; }
  // k of 2^k; meaningless for NaN.
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr int exponent() const {
    return static_cast<int>(bits) - bias;
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr float to_float() const {
    const std::uint32_t raw = bits;
    if (raw == 255) return __builtin_bit_cast(float, 0x7FC00000u);
    return __builtin_bit_cast(float, raw == 0 ? 0x00400000u : raw << 23);
  }
  // By its bits, so that no flush-to-zero mode can touch byte 0.
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr double to_double() const {
    if (is_nan()) return __builtin_bit_cast(double, std::uint64_t{0x7FF8000000000000u});
    return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent() + 1023) << 52);
  }

  DROPLESS_HOST_DEVICE static constexpr E8m0 max() { return from_bits(max_code); }
  DROPLESS_HOST_DEVICE static constexpr E8m0 min() { return from_bits(0); }
  DROPLESS_HOST_DEVICE static constexpr E8m0 nan() { return from_bits(nan_code); }

 private:
  template <typename Source>
  DROPLESS_HOST_DEVICE static constexpr E8m0 from_source(Source x, Overflow overflow) {
    using Bits = typename formats::SourceBits<Source>::Bits;
    const auto source = formats::SourceBits<Source>::of(x);
    const bool is_zero = source.significand == 0;
    if (source.is_nan || (source.negative && !is_zero)) return nan();
    if (is_zero) return overflow == Overflow::saturate ? min() : nan();
    int k = source.exponent;
    Bits significand = source.significand;
    const Bits hidden = Bits{1} << formats::SourceLayout<Source>::mantissa_bits;
    for (; significand < hidden; significand <<= 1) --k;  // a subnormal source
    const Bits halfway = hidden | (hidden >> 1);
    if (significand >= halfway) ++k;
    if (k > emax || source.is_infinite) return overflow == Overflow::saturate ? max() : nan();
    return from_exponent(k);
  }
};

static_assert(sizeof(E8m0) == 1);

}  // namespace dropless
