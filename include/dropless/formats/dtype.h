// SPDX-License-Identifier: Apache-2.0
// Elements whose format is known only at run time: sizes, and value <-> raw bits by dtype.
#pragma once

#include <cstdint>

#include "dropless/contract/types.h"
#include "dropless/formats/bf16.h"
#include "dropless/formats/e4m3.h"
#include "dropless/formats/e5m2.h"
#include "dropless/formats/e8m0.h"
#include "dropless/formats/fp16.h"

namespace dropless {

// Bytes of one element; 0 for an unknown dtype.
[[nodiscard]] constexpr int element_bytes(dropless_dtype dtype) {
  switch (dtype) {
    case DROPLESS_E4M3:
    case DROPLESS_E5M2:
    case DROPLESS_E8M0:
    case DROPLESS_U8:
      return 1;
    case DROPLESS_BF16:
    case DROPLESS_FP16:
      return 2;
    case DROPLESS_FP32:
    case DROPLESS_I32:
      return 4;
    case DROPLESS_I64:
      return 8;
    default:
      return 0;
  }
}

[[nodiscard]] constexpr bool is_floating_point(dropless_dtype dtype) {
  return dtype >= DROPLESS_FP32 && dtype <= DROPLESS_E8M0;
}
[[nodiscard]] constexpr bool is_integer(dropless_dtype dtype) {
  return dtype == DROPLESS_I32 || dtype == DROPLESS_I64 || dtype == DROPLESS_U8;
}

// Exact value of the raw bits of a floating-point dtype; NaN for any other dtype.
[[nodiscard]] constexpr double decode_bits(dropless_dtype dtype, std::uint32_t bits) {
  switch (dtype) {
    case DROPLESS_FP32:
      return static_cast<double>(__builtin_bit_cast(float, bits));
    case DROPLESS_BF16:
      return Bf16::from_bits(bits).to_double();
    case DROPLESS_FP16:
      return Fp16::from_bits(bits).to_double();
    case DROPLESS_E4M3:
      return E4m3::from_bits(bits).to_double();
    case DROPLESS_E5M2:
      return E5m2::from_bits(bits).to_double();
    case DROPLESS_E8M0:
      return E8m0::from_bits(bits).to_double();
    default:
      return E8m0::nan().to_double();
  }
}

// Raw bits of x rounded once to nearest even: fp32, bf16 and fp16 overflow to infinity, E4M3, E5M2
// and E8M0 saturate. 0 for a dtype that is not floating point.
[[nodiscard]] inline std::uint32_t encode_bits(dropless_dtype dtype, double x) {
  switch (dtype) {
    case DROPLESS_FP32:
      return __builtin_bit_cast(std::uint32_t, static_cast<float>(x));
    case DROPLESS_BF16:
      return Bf16::from_double(x).bits;
    case DROPLESS_FP16:
      return Fp16::from_double(x).bits;
    case DROPLESS_E4M3:
      return E4m3::from_double(x).bits;
    case DROPLESS_E5M2:
      return E5m2::from_double(x).bits;
    case DROPLESS_E8M0:
      return E8m0::from_double(x).bits;
    default:
      return 0;
  }
}

// x as an element of this dtype would hold it.
[[nodiscard]] inline double round_to(dropless_dtype dtype, double x) {
  return decode_bits(dtype, encode_bits(dtype, x));
}

}  // namespace dropless
