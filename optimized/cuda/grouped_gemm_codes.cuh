// SPDX-License-Identifier: Apache-2.0
// MXFP8 codes and scales as numbers (MXFP8-5).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "optimized/cuda/grouped_gemm_product.h"

namespace dropless::cuda {

// 2^(byte - 127); byte 0 is a subnormal number, byte 255 is NaN.
__device__ __forceinline__ float scale_value(std::uint8_t byte) {
  if (byte == 255) return __uint_as_float(0x7FC00000U);
  return __uint_as_float(byte == 0 ? 0x00400000U : static_cast<unsigned>(byte) << 23);
}

__device__ __forceinline__ float code_value(std::uint8_t code, dropless_dtype dtype) {
  const __half_raw half =
      __nv_cvt_fp8_to_halfraw(code, dtype == DROPLESS_E4M3 ? __NV_E4M3 : __NV_E5M2);
  return __half2float(__half(half));
}

// Every code times this scale is a bf16 number.
__device__ __forceinline__ bool always_exact_in_bf16(std::uint8_t byte, dropless_dtype dtype) {
  return dtype == DROPLESS_E4M3 ? byte >= 3 && byte <= 246 : byte >= 10 && byte <= 239;
}

}  // namespace dropless::cuda
