// SPDX-License-Identifier: Apache-2.0
// OCP OFP8 E4M3: largest value 448, no infinities, NaN is S.1111.111; saturating by default
// (MXFP8-3).
#pragma once

#include <cstdint>

#include "dropless/formats/small_float.h"

namespace dropless {

struct E4m3Layout {
  using Storage = std::uint8_t;
  static constexpr int exponent_bits = 4;
  static constexpr int mantissa_bits = 3;
  static constexpr int bias = 7;
  static constexpr std::uint32_t max_code = 0x7E;
  static constexpr std::uint32_t infinity_code = 0;
  static constexpr std::uint32_t nan_code = 0x7F;
  static constexpr Overflow default_overflow = Overflow::saturate;
};

using E4m3 = SmallFloat<E4m3Layout>;
static_assert(sizeof(E4m3) == sizeof(E4m3Layout::Storage));

}  // namespace dropless
