// SPDX-License-Identifier: Apache-2.0
// From the accumulators of a warpgroup (64 x 256, fp32) to memory. Rows behind the zone are not
// written, whatever the tile holds.
//
// Plain bf16 and fp32 go straight from registers: wgmma leaves 2 neighbouring columns of every 8 in
// a thread; the threads that share a row exchange them, so that each stores 16 bytes. All else goes
// through a small piece of shared memory per warp, 32 columns at a time.
#pragma once

#include "optimized/cuda/grouped_gemm_store.cuh"

namespace dropless::cuda {

// 16 rows of 32 columns, padded so that neither side meets a bank twice.
struct GemmStaging {
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
__device__ __forceinline__ void store_piece(Word* to, unsigned x, unsigned y, unsigned z,
                                            unsigned w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// Thread t of a quad brings word b of block b; it leaves with all four words of block t.
__device__ __forceinline__ void transpose_quad(unsigned (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned got = __shfl_xor_sync(~0U, t & 1 ? w[i] : w[i + 1], 1);
    w[i] = t & 1 ? got : w[i];
    w[i + 1] = t & 1 ? w[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned got = __shfl_xor_sync(~0U, t & 2 ? w[i] : w[i + 2], 2);
    w[i] = t & 2 ? got : w[i];
    w[i + 2] = t & 2 ? w[i + 2] : got;
  }
}

__device__ __forceinline__ Index output_start(const GroupedProduct& p, const GemmTarget& at) {
  return p.ragged_k() ? at.group * p.out.group_stride : at.first * p.out.row_stride;
}

__device__ __forceinline__ void store_vectors(const GroupedProduct& p, const GemmTarget& at,
                                              const float (&sums)[128]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = at.row + warp * 16 + lane / 4 + 8 * h;
    const bool padding = !p.ragged_k() && row >= at.real;  // GROUPED_GEMM-2
    auto* to = static_cast<__nv_bfloat16*>(p.out.data) + output_start(p, at) +
               row * p.out.row_stride + at.column + 8 * t;
    const int columns = row < at.rows ? static_cast<int>(p.n) - at.column - 8 * t : 0;
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      unsigned words[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int i = 16 * q + 4 * b + 2 * h;
        words[b] = padding ? 0U : pack_bf16(sums[i], sums[i + 1]);
      }
      transpose_quad(words, t);
      if (columns > 32 * q) {
        store_piece(to + 32 * q, words[0], words[1], words[2], words[3]);
      }
    }
  }
}

// fp32, with C added where there is one. Of two blocks of 8 columns a thread keeps the one that has
// its parity and gets the other half of its 4 columns from its neighbour: 64 bytes a row at a time.
template <bool adds>
__device__ __forceinline__ void store_quads(const GroupedProduct& p, const GemmTarget& at,
                                            const float (&sums)[128]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const bool odd = t % 2 != 0;
  const int offset = odd ? 8 + 2 * (t - 1) : 2 * t;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = at.row + warp * 16 + lane / 4 + 8 * h;
    const bool padding = !p.ragged_k() && row >= at.real;  // GROUPED_GEMM-2
    auto* to = static_cast<float*>(p.out.data) + output_start(p, at) + row * p.out.row_stride +
               at.column + offset;
    const auto* c = static_cast<const float*>(p.c.data) + at.group * p.c.group_stride +
                    row * p.c.row_stride + at.column + offset;
    const int columns = row < at.rows ? static_cast<int>(p.n) - at.column - offset : 0;
#pragma unroll
    for (int q = 0; q < 16; q += 4) {
      float4 added[4];
      if constexpr (adds) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          added[j] = make_float4(0, 0, 0, 0);
          if (columns > 16 * (q + j)) {
            added[j] = *reinterpret_cast<const float4*>(c + 16 * (q + j));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* even_block = &sums[8 * (q + j) + 2 * h];
        const float* odd_block = even_block + 4;
        const float first = __shfl_xor_sync(~0U, odd ? even_block[0] : odd_block[0], 1);
        const float second = __shfl_xor_sync(~0U, odd ? even_block[1] : odd_block[1], 1);
        float4 sum = odd ? make_float4(first, second, odd_block[0], odd_block[1])
                         : make_float4(even_block[0], even_block[1], first, second);
        if constexpr (adds) {
          sum.x += added[j].x, sum.y += added[j].y, sum.z += added[j].z, sum.w += added[j].w;
        }
        if (padding) sum = make_float4(0, 0, 0, 0);
        if (columns > 16 * (q + j)) {
          store_piece(to + 16 * (q + j), __float_as_uint(sum.x), __float_as_uint(sum.y),
                      __float_as_uint(sum.z), __float_as_uint(sum.w));
        }
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

__device__ __forceinline__ void store_sums(const GroupedProduct& p, const GemmEpilogue& how,
                                           const GemmTarget& at, const float (&sums)[128],
                                           GemmStaging& staged) {
  if (how.vectors) return store_vectors(p, at, sums);
  if (how.quads) {
    return how.adds ? store_quads<true>(p, at, sums) : store_quads<false>(p, at, sums);
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
