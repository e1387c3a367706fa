// SPDX-License-Identifier: Apache-2.0
// From the accumulators of a warpgroup (64 x 256, fp32) to memory. Rows behind the zone are not
// written, whatever the tile holds.
//
// wgmma leaves 2 neighbouring columns of every 8 in a thread. A warp's 16 rows go through a small
// piece of shared memory of its own, so that neighbouring threads store 128 neighbouring bytes.
// Slower on an H200: keeping a tile in registers and storing it among the products of the next one
// (stores and products want the same memory), and whole tiles in shared memory for the copy engine
// (they take the place of a stage).
#pragma once

#include "optimized/cuda/grouped_gemm_ptx.cuh"
#include "optimized/cuda/grouped_gemm_store.cuh"

namespace dropless::cuda {

// 16 rows of 32 columns, padded so that neither side meets a bank twice; or 2 KiB in other shapes.
struct alignas(128) GemmStaging {
  float sums[16][40];
};

// What is the same for all tiles of a launch.
struct GemmEpilogue {
  bool vectors;  // bf16, alpha 1, nothing added, and rows that may be written by 16-byte stores
  bool fp32;     // fp32, alpha 1, no bias, and beta 0 or 1 with an fp32 C
  bool adds;     // beta is not 0
  bool quads;    // fp32, and rows of out (and of C) that may be accessed by 16 bytes
};

// Where a warpgroup's sums go: `row` and `column` are those of its first element, in the group.
struct GemmTarget {
  int group, first, rows, real, row, column;
};

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// 16 bytes by one instruction, which the compiler does not promise for an assignment.
template <class Word>
__device__ __forceinline__ void store_piece(Word* to, uint4 piece) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.x), "r"(piece.y),
               "r"(piece.z), "r"(piece.w)
               : "memory");
}

__device__ __forceinline__ Index output_start(const GroupedProduct& p, const GemmTarget& at) {
  return p.ragged_k() ? at.group * p.out.group_stride : at.first * p.out.row_stride;
}

// bf16, 64 columns at a time. A row of the piece is 128 bytes of shared memory; its 16-byte parts
// change places with the row (xor), so that neither side meets a bank twice.
template <bool ragged_k>
__device__ __forceinline__ void store_bf16(const GroupedProduct& p, const GemmTarget& at,
                                           const float (&sums)[128], GemmStaging& staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t memory = ptx::shared_address(&staged);
  const std::uint32_t put = memory + lane % 16 * 128 + ((lane / 16) ^ (lane % 8)) * 16;
  const std::uint32_t get = memory + lane / 8 * 128 + ((lane % 8) ^ (lane / 8)) * 16;
  const int row = at.row + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 8;
  const int columns = static_cast<int>(p.n) - at.column - lane % 8 * 8;
  auto* to = static_cast<__nv_bfloat16*>(p.out.data) + output_start(p, at) +
             row * p.out.row_stride + at.column + lane % 8 * 8;
#pragma unroll
  for (int piece = 0; piece < 4; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = &sums[32 * piece + 8 * i];
      ptx::store_matrices(put ^ (32 * i), pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                          pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
    }
    __syncwarp();
    uint4 parts[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[i] = ptx::load_shared((get ^ (i % 2 * 64)) + 512 * i);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + 4 * i;
      if (!ragged_k && r >= at.real) parts[i] = make_uint4(0, 0, 0, 0);  // GROUPED_GEMM-2
      if (r < at.rows && columns > 64 * piece) {
        store_piece(to + 4 * i * p.out.row_stride + 64 * piece, parts[i]);
      }
    }
  }
}

// fp32, with C added where there is one, 32 columns at a time.
template <bool ragged_k, bool adds>
__device__ __forceinline__ void store_fp32(const GroupedProduct& p, const GemmTarget& at,
                                           const float (&sums)[128], GemmStaging& staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t memory = ptx::shared_address(&staged);
  const std::uint32_t put =
      memory + lane / 4 * 128 + ((lane % 4 / 2) ^ (lane / 4 % 4 * 2)) * 16 + lane % 2 * 8;
  const std::uint32_t get = memory + lane / 8 * 128 + ((lane % 8) ^ (lane / 8 * 2)) * 16;
  const int row = at.row + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 8;
  const int columns = static_cast<int>(p.n) - at.column - lane % 8 * 4;
  auto* to = static_cast<float*>(p.out.data) + output_start(p, at) + row * p.out.row_stride +
             at.column + lane % 8 * 4;
  const auto* c = static_cast<const float*>(p.c.data) + at.group * p.c.group_stride +
                  row * p.c.row_stride + at.column + lane % 8 * 4;
#pragma unroll
  for (int piece = 0; piece < 8; ++piece) {
    float4 added[4];
    if constexpr (adds) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        added[i] = make_float4(0, 0, 0, 0);
        if (row + 4 * i < at.rows && columns > 32 * piece) {
          added[i] = *reinterpret_cast<const float4*>(c + 4 * i * p.c.row_stride + 32 * piece);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = &sums[16 * piece + 4 * i];
      ptx::store_shared(put ^ (32 * i), from[0], from[1]);
      ptx::store_shared((put ^ (32 * i)) + 1024, from[2], from[3]);
    }
    __syncwarp();
    uint4 parts[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[i] = ptx::load_shared(get + 512 * i);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + 4 * i;
      if constexpr (adds) {
        parts[i].x = __float_as_uint(__uint_as_float(parts[i].x) + added[i].x);
        parts[i].y = __float_as_uint(__uint_as_float(parts[i].y) + added[i].y);
        parts[i].z = __float_as_uint(__uint_as_float(parts[i].z) + added[i].z);
        parts[i].w = __float_as_uint(__uint_as_float(parts[i].w) + added[i].w);
      }
      if (!ragged_k && r >= at.real) parts[i] = make_uint4(0, 0, 0, 0);  // GROUPED_GEMM-2
      if (r < at.rows && columns > 32 * piece) {
        store_piece(to + 4 * i * p.out.row_stride + 32 * piece, parts[i]);
      }
    }
  }
}

// 16 rows of one column, read from `staged`, a warp side by side.
__device__ __forceinline__ void store_column(const GroupedProduct& p, const GemmEpilogue& how,
                                             const GemmTarget& at, int row, int column,
                                             const GemmStaging& staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (column >= p.n) return;
  const int rows = min(16, at.rows - row);
  const Index start = output_start(p, at) + column * p.out.column_stride;
  if (how.fp32) {
    auto* to = static_cast<float*>(p.out.data) + start;
    const auto* c = static_cast<const float*>(p.c.data) + at.group * p.c.group_stride +
                    column * p.c.column_stride;
#pragma unroll 1
    for (int i = 0; i < rows; i += 8) {
      float added[8] = {};
      if (how.adds) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (i + j < rows) added[j] = c[(row + i + j) * p.c.row_stride];
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int r = row + i + j;
        const bool padding = !p.ragged_k() && r >= at.real;
        const float sum = staged.sums[i + j][lane];
        if (i + j < rows) {
          to[r * p.out.row_stride] = padding ? 0.0F : how.adds ? sum + added[j] : sum;
        }
      }
    }
    return;
  }
  const GemmFinish finish{&p, at.group};
#pragma unroll 1
  for (int i = 0; i < rows; ++i) {
    const int r = row + i;
    const bool padding = !p.ragged_k() && r >= at.real;
    store_element(p.out.data, p.out.dtype, start + r * p.out.row_stride,
                  padding ? 0.0 : finish(staged.sums[i][lane], r, column));
  }
}

template <bool ragged_k>
__device__ __forceinline__ void store_sums(const GroupedProduct& p, const GemmEpilogue& how,
                                           const GemmTarget& at, const float (&sums)[128],
                                           GemmStaging& staged) {
  if (how.vectors) return store_bf16<ragged_k>(p, at, sums, staged);
  if (how.quads) {
    return how.adds ? store_fp32<ragged_k, true>(p, at, sums, staged)
                    : store_fp32<ragged_k, false>(p, at, sums, staged);
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = at.row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
  for (int q = 0; q < 8; ++q) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float* from = &sums[16 * q + 4 * b];
      float* to = &staged.sums[lane / 4][8 * b + lane % 4 * 2];
      *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
      *reinterpret_cast<float2*>(to + 8 * 40) = make_float2(from[2], from[3]);
    }
    __syncwarp();
    store_column(p, how, at, row, at.column + 32 * q + lane, staged);
    __syncwarp();
  }
}

}  // namespace dropless::cuda
