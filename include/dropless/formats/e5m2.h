// SPDX-License-Identifier: Apache-2.0
// OCP OFP8 E5M2: largest value 57344, with infinities; saturating by default (MXFP8-3).
#pragma once

#include <cstdint>

#include "dropless/formats/small_float.h"

namespace dropless {

struct E5m2Layout {
  using Storage = std::uint8_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 2;
  static constexpr int bias = 15;
  static constexpr std::uint32_t max_code = 0x7B;
  static constexpr std::uint32_t infinity_code = 0x7C;
  static constexpr std::uint32_t nan_code = 0x7F;
  static constexpr Overflow default_overflow = Overflow::saturate;
};

using E5m2 = SmallFloat<E5m2Layout>;
static_assert(sizeof(E5m2) == sizeof(E5m2Layout::Storage));

}  // namespace dropless
