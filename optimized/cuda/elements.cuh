// SPDX-License-Identifier: Apache-2.0
// Elements of tensors in kernels: fp32 and bf16 as floats, eight neighbours at a time.
//
//     Eight values;
//     load_eight(x, row, column, columns - column, aligned, values);   // 16-byte loads where
//     aligned store_eight(y, row, column, columns - column, aligned, values);
#pragma once

#include <cuda_bf16.h>

#include "optimized/cuda/arguments.h"

namespace dropless::cuda {

constexpr int warp_size = 32;
constexpr unsigned whole_warp = 0xFFFFFFFFu;

[[nodiscard]] constexpr __host__ __device__ Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}

__device__ __forceinline__ float widen_bf16(std::uint32_t bits) {
  return __uint_as_float(bits << 16);
}
// Nearest even; NaN stays NaN.
__device__ __forceinline__ std::uint32_t round_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ std::uint32_t round_bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// One element of an fp32 or bf16 tensor.
__device__ __forceinline__ float load_float(const Tensor& t, Index i, Index j = 0) {
  return t.dtype == DROPLESS_FP32 ? t.as<float>(i, j) : widen_bf16(t.as<std::uint16_t>(i, j));
}
__device__ __forceinline__ void store_float(const Tensor& t, float value, Index i, Index j = 0) {
  if (t.dtype == DROPLESS_FP32) {
    t.as<float>(i, j) = value;
  } else {
    t.as<std::uint16_t>(i, j) = static_cast<std::uint16_t>(round_bf16(value));
  }
}

struct Eight {
  float value[8];
};

__device__ __forceinline__ void widen_eight(uint4 packed, Eight& out) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.value[2 * i] = __uint_as_float(words[i] << 16);
    out.value[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// Elements [column, column + 8) of a row, of which `left` exist; the others become 0. aligned:
// every row begins at a multiple of 16 bytes and has dense elements, column is a multiple of 8.
__device__ __forceinline__ void load_eight(const Tensor& t, Index row, Index column, Index left,
                                           bool aligned, Eight& out) {
  if (aligned && left >= 8) {
    const uint4* at =
        reinterpret_cast<const uint4*>(t.data + (row * t.strides[0] + column) * t.element);
    if (t.dtype == DROPLESS_BF16) {
      widen_eight(__ldg(at), out);
    } else {
      const uint4 low = __ldg(at), high = __ldg(at + 1);
      const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) out.value[i] = __uint_as_float(words[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out.value[i] = i < left ? load_float(t, row, column + i) : 0.0F;
}

__device__ __forceinline__ void store_eight(const Tensor& t, Index row, Index column, Index left,
                                            bool aligned, const Eight& values) {
  if (aligned && left >= 8) {
    uint4* at = reinterpret_cast<uint4*>(t.data + (row * t.strides[0] + column) * t.element);
    const float* v = values.value;
    if (t.dtype == DROPLESS_BF16) {
      *at = make_uint4(round_bf16_pair(v[0], v[1]), round_bf16_pair(v[2], v[3]),
                       round_bf16_pair(v[4], v[5]), round_bf16_pair(v[6], v[7]));
    } else {
      at[0] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                         __float_as_uint(v[3]));
      at[1] = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]),
                         __float_as_uint(v[7]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left) store_float(t, values.value[i], row, column + i);
  }
}

// Sums over a warp, the same in every lane; a butterfly, so that the order is always the same.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(whole_warp, value, step);
  }
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, step));
  }
  return value;
}

// Sum over a block, the same in every thread, in a fixed order. shared: one T per warp. All threads
// of the block take part; the block has whole warps.
template <class T>
__device__ T block_sum(T value, T* shared) {
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; ++w) sum += shared[w];
  return sum;
}
__device__ inline float block_max(float value, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  float most = shared[0];
  for (int w = 1; w < warps; ++w) most = fmaxf(most, shared[w]);
  return most;
}

// Rows are often fewer than a grid holds and sometimes more: blocks of a grid that strides.
[[nodiscard]] inline unsigned grid_size(Index work, Index most = 0x7FFFFFFF) {
  return static_cast<unsigned>(std::clamp<Index>(work, 1, most));
}
// Threads for `items` items of a row: whole warps, at most `most`.
[[nodiscard]] inline int block_size(Index items, int most) {
  const Index warps = std::max<Index>(ceil_div(items, warp_size), 1);
  return static_cast<int>(std::min<Index>(warps * warp_size, most));
}

}  // namespace dropless::cuda
