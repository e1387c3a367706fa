// SPDX-License-Identifier: Apache-2.0
// Runs of fp32 and bf16 elements as floats: exact widening, rounding to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "optimized/cpu/arguments.h"
#include "optimized/cpu/simd.h"

namespace dropless::cpu {

DROPLESS_INLINE float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Without branches, so that loops over it vectorise. NaN stays NaN.
DROPLESS_INLINE std::uint16_t round_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

DROPLESS_INLINE void widen_run(const std::uint16_t* from, Index n, float* to) {
  for (Index i = 0; i < n; ++i) to[i] = widen_bf16(from[i]);
}
DROPLESS_INLINE void round_run(const float* from, Index n, std::uint16_t* to) {
  for (Index i = 0; i < n; ++i) to[i] = round_bf16(from[i]);
}

// n elements from `from` on, `stride` elements apart, dtype fp32 or bf16. To be called inside
// with_simd.
DROPLESS_INLINE void load_run(const std::byte* from, dropless_dtype dtype, Index stride, Index n,
                              float* to) {
  if (dtype == DROPLESS_FP32) {
    const float* values = reinterpret_cast<const float*>(from);
    if (stride == 1) {
      std::memcpy(to, values, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (Index i = 0; i < n; ++i) to[i] = values[i * stride];
    }
  } else {
    const std::uint16_t* values = reinterpret_cast<const std::uint16_t*>(from);
    if (stride == 1) {
      widen_run(values, n, to);
    } else {
      for (Index i = 0; i < n; ++i) to[i] = widen_bf16(values[i * stride]);
    }
  }
}

DROPLESS_INLINE void store_run(const float* from, Index n, std::byte* to, dropless_dtype dtype,
                               Index stride) {
  if (dtype == DROPLESS_FP32) {
    float* values = reinterpret_cast<float*>(to);
    if (stride == 1) {
      std::memcpy(values, from, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (Index i = 0; i < n; ++i) values[i * stride] = from[i];
    }
  } else {
    std::uint16_t* values = reinterpret_cast<std::uint16_t*>(to);
    if (stride == 1) {
      round_run(from, n, values);
    } else {
      for (Index i = 0; i < n; ++i) values[i * stride] = round_bf16(from[i]);
    }
  }
}

// One element.
inline float load_float(const Tensor& t, Index i, Index j = 0, Index k = 0) {
  return t.dtype == DROPLESS_FP32 ? t.as<float>(i, j, k) : widen_bf16(t.as<std::uint16_t>(i, j, k));
}
inline void store_float(const Tensor& t, float value, Index i, Index j = 0, Index k = 0) {
  if (t.dtype == DROPLESS_FP32) {
    t.as<float>(i, j, k) = value;
  } else {
    t.as<std::uint16_t>(i, j, k) = round_bf16(value);
  }
}

}  // namespace dropless::cpu
