// SPDX-License-Identifier: Apache-2.0
// From an fp32 sum to an element of the output: alpha, bias, beta * C, and one rounding
// (GROUPED_GEMM-6).
#pragma once

#include <cuda_bf16.h>

#include "optimized/cuda/grouped_gemm_product.h"

namespace dropless::cuda {

__device__ __forceinline__ double load_element(const void* data, dropless_dtype dtype, Index at) {
  return dtype == DROPLESS_FP32
             ? static_cast<double>(static_cast<const float*>(data)[at])
             : static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]));
}

// The fp32 number that rounds to bf16 as `value` itself does: truncated, with a last bit that says
// that something was cut off (round to odd).
__device__ __forceinline__ float toward_bf16(double value) {
  const float cut = __double2float_rz(value);
  return static_cast<double>(cut) == value ? cut : __uint_as_float(__float_as_uint(cut) | 1U);
}

__device__ __forceinline__ void store_element(void* data, dropless_dtype dtype, Index at,
                                              double value) {
  if (dtype == DROPLESS_FP32) {
    static_cast<float*>(data)[at] = __double2float_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(toward_bf16(value));
  }
}

// What is added to a sum is found by these: beta * C and bias of one element.
struct GemmFinish {
  const GroupedProduct* product;
  Index group;

  __device__ double operator()(float sum, Index row, Index column) const {
    const GroupedProduct& p = *product;
    double value = p.alpha * static_cast<double>(sum);
    if (p.bias.data != nullptr) {
      value = fma(p.alpha, static_cast<double>(sum),
                  load_element(p.bias.data, p.bias.dtype,
                               group * p.bias.group_stride + column * p.bias.column_stride));
    }
    if (p.beta != 0) {
      value = fma(p.beta,
                  load_element(
                      p.c.data, p.c.dtype,
                      group * p.c.group_stride + row * p.c.row_stride + column * p.c.column_stride),
                  value);
    }
    return value;
  }
};

}  // namespace dropless::cuda
