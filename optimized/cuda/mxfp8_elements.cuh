// SPDX-License-Identifier: Apache-2.0
// One MXFP8 element and one scale in kernels: MXFP8-2 to 5. Everything is on bits or exact.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "optimized/cuda/elements.cuh"

namespace dropless::cuda {

// MXFP8-2, as declared in the profile.
constexpr int scale_rule = DROPLESS_SCALE_RCEIL;

// The byte of a block whose largest magnitude has these fp32 bits; any NaN counts as 0, an infinity
// gives 254 (MXFP8-4, policy "element").
__device__ __forceinline__ std::uint32_t scale_byte(std::uint32_t amax, bool e5m2) {
  const std::uint32_t mantissa = amax & 0x7FFFFFu;
  bool up = false;
  if constexpr (scale_rule == DROPLESS_SCALE_RCEIL) up = mantissa > 0x600000u;  // s > 1.75
  if constexpr (scale_rule == DROPLESS_SCALE_CEIL) up = mantissa > 0;
  if constexpr (scale_rule == DROPLESS_SCALE_EVEN) up = mantissa >= (e5m2 ? 0x700000u : 0x780000u);
  // Subnormal amaxes have exponent field 0 and fall below byte 0 whatever their mantissa.
  const int byte = static_cast<int>(amax >> 23) - (e5m2 ? 15 : 8) + (up ? 1 : 0);
  if (amax > 0x7F800000u) return 0;
  return amax == 0x7F800000u ? 254u : static_cast<std::uint32_t>(max(byte, 0));
}

// Four scale bytes 0 .. 254 as 254 - byte: the exponent fields of their inverses.
__device__ __forceinline__ std::uint32_t inverse_bytes(std::uint32_t bytes) {
  return 0xFEFEFEFEu - bytes;
}
// 2^-(byte - 127) of one of them, exact: byte 254 gives the subnormal 2^-127.
template <int k>
__device__ __forceinline__ float inverse_scale(std::uint32_t inverses) {
  const std::uint32_t moved = k == 3 ? inverses >> 1 : inverses << (23 - 8 * k);
  return __uint_as_float(max(moved & 0x7F800000u, 0x00400000u));
}
// 2^(byte - 127): byte 0 is a subnormal fp32 number, 255 is NaN (MXFP8-5).
__device__ __forceinline__ float scale_value(std::uint32_t byte) {
  return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

// Nearest even, saturating, any NaN gives a NaN code (MXFP8-3); and values of codes, exact in fp32.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
template <bool e5m2>
__device__ __forceinline__ std::uint32_t encode_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                  e5m2 ? __NV_E5M2 : __NV_E4M3);
}
template <bool e5m2>
__device__ __forceinline__ std::uint32_t encode_words(float a, float b, float c, float d) {
  return encode_pair<e5m2>(a, b) | encode_pair<e5m2>(c, d) << 16;
}
template <bool e5m2>
__device__ __forceinline__ float2 decode_pair(std::uint32_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes),
                                                      e5m2 ? __NV_E5M2 : __NV_E4M3);
  return __half22float2(__half2(pair));
}
#else
// Without the instructions: integers round normal codes, one addition rounds subnormal ones.
template <bool e5m2>
__device__ __forceinline__ std::uint32_t encode_one(float x) {
  constexpr int dropped = e5m2 ? 21 : 20;  // mantissa bits that go
  constexpr std::uint32_t rebias = e5m2 ? 112u << 2 : 120u << 3;
  constexpr float smallest = e5m2 ? 0x1p-16F : 0x1p-9F;  // unit of the subnormal codes
  constexpr float least_normal = e5m2 ? 0x1p-14F : 0x1p-6F;
  constexpr std::uint32_t largest = e5m2 ? 0x7Bu : 0x7Eu;
  const std::uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t half = (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
  std::uint32_t code = ((magnitude + half) >> dropped) - rebias;
  const float size = __uint_as_float(magnitude), rounder = smallest * 0x1p23F;
  if (size < least_normal) code = __float_as_uint(size + rounder) - __float_as_uint(rounder);
  code = magnitude > 0x7F800000u ? 0x7Fu : min(code, largest);
  return code | (bits >> 24 & 0x80u);
}
// Called, not inlined: a quantiser encodes hundreds of elements a thread.
template <bool e5m2>
__device__ __noinline__ std::uint32_t encode_words(float a, float b, float c, float d) {
  return encode_one<e5m2>(a) | encode_one<e5m2>(b) << 8 | encode_one<e5m2>(c) << 16 |
         encode_one<e5m2>(d) << 24;
}
// The code's bits as a small fp32 number, subnormal for subnormal codes, times a power of two.
template <bool e5m2>
__device__ __forceinline__ float decode_one(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  float value = e5m2 ? __uint_as_float(magnitude << 21) * 0x1p112F
                     : __uint_as_float(magnitude << 20) * 0x1p120F;
  if (e5m2 && magnitude >= 0x7Cu) value = magnitude == 0x7Cu ? INFINITY : NAN;
  if (!e5m2 && magnitude == 0x7Fu) value = NAN;
  return (code & 0x80u) != 0 ? -value : value;
}
template <bool e5m2>
__device__ __forceinline__ float2 decode_pair(std::uint32_t codes) {
  return make_float2(decode_one<e5m2>(codes & 0xFFu), decode_one<e5m2>(codes >> 8 & 0xFFu));
}
#endif

template <bool e5m2>
__device__ __forceinline__ std::uint32_t encode_four(const float (&x)[4]) {
  return encode_words<e5m2>(x[0], x[1], x[2], x[3]);
}

}  // namespace dropless::cuda
