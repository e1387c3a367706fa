// SPDX-License-Identifier: Apache-2.0
// One MXFP8 element and one scale, without branches so that loops over them vectorise: MXFP8-2
// to 5.
#pragma once

#include <dropless/contract.h>

#include <bit>
#include <cstdint>

#include "optimized/cpu/simd.h"

namespace dropless::cpu {

// What the arithmetic needs to know about E4M3 and E5M2.
template <dropless_dtype dtype>
struct CodeFormat;
template <>
struct CodeFormat<DROPLESS_E4M3> {
  static constexpr int mantissa_bits = 3, bias = 7, largest_exponent = 8;
  static constexpr std::uint32_t largest = 0x7E, nan = 0x7F;
  static constexpr float smallest = 0x1p-9f;  // the unit of the subnormal numbers
};
template <>
struct CodeFormat<DROPLESS_E5M2> {
  static constexpr int mantissa_bits = 2, bias = 15, largest_exponent = 15;
  static constexpr std::uint32_t largest = 0x7B, nan = 0x7F;
  static constexpr float smallest = 0x1p-16f;
};

// 2^(byte - 127): byte 0 is a subnormal fp32 number, 255 is NaN (MXFP8-5).
DROPLESS_INLINE float scale_value(std::uint8_t byte) {
  const std::uint32_t wide = byte;
  const std::uint32_t bits = wide == 0 ? 0x00400000u : wide == 255 ? 0x7FC00000u : wide << 23;
  return std::bit_cast<float>(bits);
}

// 2^-(byte - 127) for bytes 0 .. 254, exact: byte 254 gives the subnormal 2^-127.
DROPLESS_INLINE float inverse_scale(std::uint32_t byte) {
  return std::bit_cast<float>(byte == 254 ? 0x00400000u : (254 - byte) << 23);
}

// The code's value, exact in fp32.
template <dropless_dtype dtype>
DROPLESS_INLINE float decode_element(std::uint8_t code) {
  using Format = CodeFormat<dtype>;
  const std::uint32_t wide = code;
  const std::uint32_t magnitude = wide & 0x7Fu;
  const std::uint32_t sign = (wide & 0x80u) << 24;
  const std::uint32_t shifted = magnitude << (23 - Format::mantissa_bits);
  const std::uint32_t normal = shifted + (static_cast<std::uint32_t>(127 - Format::bias) << 23);
  const float few = static_cast<float>(static_cast<std::int32_t>(magnitude)) * Format::smallest;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(few);
  // Infinity of E5M2 and the NaNs keep their mantissa under an exponent of all ones.
  const std::uint32_t special = dtype == DROPLESS_E4M3 ? 0x7FC00000u : 0x7F800000u | shifted;
  const std::uint32_t finite = magnitude < (1u << Format::mantissa_bits) ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude > Format::largest ? special : finite));
}

// Nearest even code of x * inverse, saturating; any NaN gives a NaN code (MXFP8-3). The product is
// exact unless it is far below the smallest code.
template <dropless_dtype dtype>
DROPLESS_INLINE std::uint8_t encode_element(float x, float inverse) {
  using Format = CodeFormat<dtype>;
  constexpr int dropped = 23 - Format::mantissa_bits;
  constexpr float smallest_normal = Format::smallest * (1 << Format::mantissa_bits);
  // Adding this number rounds to a multiple of Format::smallest, the distance of its neighbours.
  constexpr float rounder = Format::smallest * 0x1p23f;
  const float scaled = x * inverse;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t half = (1u << (dropped - 1)) - 1;
  const std::uint32_t rounded = (magnitude + half + ((magnitude >> dropped) & 1u)) >> dropped;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - Format::bias)
                                   << Format::mantissa_bits;
  const std::int32_t normal = static_cast<std::int32_t>(rounded - rebias);
  const float sum = std::bit_cast<float>(magnitude) + rounder;
  const std::int32_t subnormal = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(sum) -
                                                           std::bit_cast<std::uint32_t>(rounder));
  constexpr std::uint32_t smallest_normal_bits = std::bit_cast<std::uint32_t>(smallest_normal);
  const std::int32_t unbounded = magnitude < smallest_normal_bits ? subnormal : normal;
  constexpr std::int32_t largest = static_cast<std::int32_t>(Format::largest);
  const std::int32_t saturated = unbounded > largest ? largest : unbounded;
  const std::int32_t code =
      magnitude > 0x7F800000u ? static_cast<std::int32_t>(Format::nan) : saturated;
  return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(code));
}

// The declared scale rule, RCEIL: the smallest 2^k with amax <= largest value * 2^k, on the bits of
// the fp32 amax; both largest values are 1.75 * 2^largest_exponent (MXFP8-2). An infinite amax
// gives byte 254 (MXFP8-4). amax is not NaN.
template <dropless_dtype dtype>
DROPLESS_INLINE std::uint32_t scale_byte(std::uint32_t amax_bits) {
  // Subnormal amaxes have exponent field 0 and fall below byte 0 whatever their mantissa.
  const std::int32_t exponent = static_cast<std::int32_t>(amax_bits >> 23);
  const std::int32_t up = (amax_bits & 0x7FFFFFu) > 0x600000u ? 1 : 0;
  const std::int32_t byte = exponent - CodeFormat<dtype>::largest_exponent + up;
  const std::int32_t clamped = byte < 0 ? 0 : byte;
  return static_cast<std::uint32_t>(amax_bits >= 0x7F800000u ? 254 : clamped);
}

}  // namespace dropless::cpu
