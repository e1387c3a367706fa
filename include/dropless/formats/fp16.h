// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16; overflow gives infinity unless asked otherwise.
#pragma once

#include <cstdint>

#include "dropless/formats/small_float.h"

namespace dropless {

struct Fp16Layout {
  using Storage = std::uint16_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 10;
  static constexpr int bias = 15;
  static constexpr std::uint32_t max_code = 0x7BFF;
  static constexpr std::uint32_t infinity_code = 0x7C00;
  static constexpr std::uint32_t nan_code = 0x7E00;
  static constexpr Overflow default_overflow = Overflow::propagate;
};

using Fp16 = SmallFloat<Fp16Layout>;
static_assert(sizeof(Fp16) == sizeof(Fp16Layout::Storage));

}  // namespace dropless
