// SPDX-License-Identifier: Apache-2.0
// bfloat16: fp32 with 7 mantissa bits; overflow gives infinity unless asked otherwise.
#pragma once

#include <cstdint>

#include "dropless/formats/small_float.h"

namespace dropless {

struct Bf16Layout {
  using Storage = std::uint16_t;
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 7;
  static constexpr int bias = 127;
  static constexpr std::uint32_t max_code = 0x7F7F;
  static constexpr std::uint32_t infinity_code = 0x7F80;
  static constexpr std::uint32_t nan_code = 0x7FC0;
  static constexpr Overflow default_overflow = Overflow::propagate;
};

using Bf16 = SmallFloat<Bf16Layout>;
static_assert(sizeof(Bf16) == sizeof(Bf16Layout::Storage));

}  // namespace dropless
