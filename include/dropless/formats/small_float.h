// SPDX-License-Identifier: Apache-2.0
// A signed binary floating-point format of at most 16 bits, described by a layout; the named
// formats Bf16, Fp16, E4m3 and E5m2 are instances of it.
//
// A value is its raw bits and nothing else: trivially copyable, no constructors, as large as its
// storage, so that arrays of them can lie over any buffer.
//
//     constexpr E4m3 c = E4m3::from_float(0.3f);                  // nearest even, saturating
//     constexpr E4m3 n = E4m3::from_float(1e9f, Overflow::propagate);   // NaN: no infinities
//     constexpr Bf16 b = Bf16::from_double(1.0 / 3);              // one rounding, not two
//     float back = c.to_float();                                  // exact
#pragma once

#include <cstdint>

#include "dropless/formats/host_device.h"
#include "dropless/formats/source_bits.h"

namespace dropless {

// What happens to a finite value that rounds beyond the largest finite one, and to infinity.
enum class Overflow {
  saturate,  // both become the largest finite value of that sign (MXFP8-3)
  propagate  // both become infinity, or NaN where the format has no infinity
};

// Layout: Storage, exponent_bits, mantissa_bits, bias, max_code (largest finite), infinity_code (0
// where there is none), nan_code (the NaN that conversions produce), default_overflow.
template <typename Layout>
struct SmallFloat {
  using Storage = typename Layout::Storage;
  Storage bits;

  static constexpr int exponent_bits = Layout::exponent_bits;
  static constexpr int mantissa_bits = Layout::mantissa_bits;
  static constexpr int bias = Layout::bias;
  static constexpr int emin = 1 - bias;  // exponent of the smallest normal value
  static constexpr int emax = (Layout::max_code >> mantissa_bits) - bias;  // of the largest value
  static constexpr std::uint32_t sign_bit = 1u << (exponent_bits + mantissa_bits);
  static constexpr bool has_infinity = Layout::infinity_code != 0;

  DROPLESS_HOST_DEVICE static constexpr SmallFloat from_bits(std::uint32_t raw) {
    return SmallFloat{static_cast<Storage>(raw)};
  }

  // Nearest value, ties to the even code. NaN gives a NaN whose sign means nothing.
  DROPLESS_HOST_DEVICE static constexpr SmallFloat from_float(
      float x, Overflow overflow = Layout::default_overflow) {
    return from_source(x, overflow);
  }
  DROPLESS_HOST_DEVICE static constexpr SmallFloat from_double(
      double x, Overflow overflow = Layout::default_overflow) {
    return from_source(x, overflow);
  }

  // Exact for every code; all NaN codes give the quiet NaN of fp32 with the code's sign.
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr float to_float() const {
    const std::uint32_t sign = is_negative() ? 0x80000000u : 0u;
    if (is_nan()) return __builtin_bit_cast(float, sign | 0x7FC00000u);
    if (is_infinite()) return __builtin_bit_cast(float, sign | 0x7F800000u);
    const std::uint32_t code = magnitude();
    if constexpr (exponent_bits == 8) {  // fp32 without its lower mantissa bits
      return __builtin_bit_cast(float, sign | (code << (23 - mantissa_bits)));
    } else {
      if (code < (1u << mantissa_bits)) {  // a few units of the smallest subnormal, normal in fp32
        constexpr int unit_field = emin - mantissa_bits + 127;
        const float unit = __builtin_bit_cast(float, sign | (std::uint32_t{unit_field} << 23));
        return static_cast<float>(code) * unit;
      }
      const std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << 23;
      return __builtin_bit_cast(float, sign | ((code << (23 - mantissa_bits)) + rebias));
    }
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr double to_double() const {
    return static_cast<double>(to_float());
  }

  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr std::uint32_t magnitude() const {
    return bits & (sign_bit - 1);
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_negative() const {
    return (bits & sign_bit) != 0;
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_infinite() const {
    return has_infinity && magnitude() == Layout::infinity_code;
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_nan() const {
    return magnitude() > Layout::max_code && !is_infinite();
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_finite() const {
    return magnitude() <= Layout::max_code;
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_zero() const { return magnitude() == 0; }
  [[nodiscard]] DROPLESS_HOST_DEVICE constexpr bool is_subnormal() const {
    return magnitude() != 0 && magnitude() < (1u << mantissa_bits);
  }

  DROPLESS_HOST_DEVICE static constexpr SmallFloat max() { return from_bits(Layout::max_code); }
  DROPLESS_HOST_DEVICE static constexpr SmallFloat min_normal() {
    return from_bits(1u << mantissa_bits);
  }
  DROPLESS_HOST_DEVICE static constexpr SmallFloat min_subnormal() { return from_bits(1u); }
  DROPLESS_HOST_DEVICE static constexpr SmallFloat nan() { return from_bits(Layout::nan_code); }
  DROPLESS_HOST_DEVICE static constexpr SmallFloat infinity() requires(has_infinity) {
    return from_bits(Layout::infinity_code);
  }

 private:
  template <typename Source>
  DROPLESS_HOST_DEVICE static constexpr SmallFloat from_source(Source x, Overflow overflow) {
    const auto source = formats::SourceBits<Source>::of(x);
    if (source.is_nan) return nan();
    const std::uint32_t sign = source.negative ? sign_bit : 0u;
    const std::uint32_t code = source.is_infinite
                                   ? Layout::max_code + 1u
                                   : formats::nearest_code(source, mantissa_bits, emin);
    if (code <= Layout::max_code) return from_bits(sign | code);
    if (overflow == Overflow::saturate) return from_bits(sign | Layout::max_code);
    return from_bits(sign | (has_infinity ? Layout::infinity_code : Layout::nan_code));
  }
};

}  // namespace dropless
