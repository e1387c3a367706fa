// SPDX-License-Identifier: Apache-2.0
// AVX2 kernels of the matrix product: tiles of 6 x 16, 12 of the 16 registers being sums.
#include "optimized/cpu/gemm_kernels.h"

#if DROPLESS_CPU_X86
#include <immintrin.h>

#include <array>
#include <utility>

namespace dropless::cpu {
namespace {

constexpr Index tile_rows = 6;
constexpr Index tile_columns = 16;

template <int rows>
DROPLESS_AVX2 void multiply_rows(Index depth, const float* a, const float* b, float* c,
                                 Index c_stride, bool first) {
  __m256 low[rows], high[rows];
  if (first) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) low[i] = high[i] = _mm256_setzero_ps();
  } else {
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      low[i] = _mm256_loadu_ps(c + i * c_stride);
      high[i] = _mm256_loadu_ps(c + i * c_stride + 8);
    }
  }
  for (Index k = 0; k < depth; ++k) {
    const __m256 b_low = _mm256_loadu_ps(b);
    const __m256 b_high = _mm256_loadu_ps(b + 8);
    b += tile_columns;
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m256 factor = _mm256_broadcast_ss(a + i * gemm_a_stride + k);
      low[i] = _mm256_fmadd_ps(factor, b_low, low[i]);
      high[i] = _mm256_fmadd_ps(factor, b_high, high[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    _mm256_storeu_ps(c + i * c_stride, low[i]);
    _mm256_storeu_ps(c + i * c_stride + 8, high[i]);
  }
}

using Multiply = void (*)(Index, const float*, const float*, float*, Index, bool);

template <int... zero_based>
constexpr std::array<Multiply, tile_rows> by_rows(std::integer_sequence<int, zero_based...>) {
  return {multiply_rows<zero_based + 1>...};
}

void multiply(Index rows, Index depth, const float* a, const float* b, float* c, Index c_stride,
              bool first) {
  static constexpr auto table = by_rows(std::make_integer_sequence<int, tile_rows>{});
  table[static_cast<std::size_t>(rows - 1)](depth, a, b, c, c_stride, first);
}

// 8 x 8: pairs of floats, pairs of doubles, then the two 128-bit lanes.
DROPLESS_AVX2 void transpose_8(const float* in, Index in_stride, float* out, Index out_stride) {
  __m256 r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * in_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(out + j * out_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
    _mm256_storeu_ps(out + (4 + j) * out_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
  }
}

void transpose(const float* in, Index in_stride, Index rows, Index columns, float* out,
               Index out_stride) {
  const Index full_rows = rows / 8 * 8, full_columns = columns / 8 * 8;
  for (Index i = 0; i < full_rows; i += 8) {
    for (Index j = 0; j < full_columns; j += 8) {
      transpose_8(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
    }
  }
  const auto rest = gemm_kernels_scalar.transpose;
  rest(in + full_columns, in_stride, full_rows, columns - full_columns,
       out + full_columns * out_stride, out_stride);
  rest(in + full_rows * in_stride, in_stride, rows - full_rows, columns, out + full_rows,
       out_stride);
}

DROPLESS_AVX2 void pack(const float* in, Index in_stride, Index rows, Index columns, Index depth,
                        float* out) {
  pack_panels<tile_columns>(in, in_stride, rows, columns, depth, out);
}

}  // namespace

const GemmKernels gemm_kernels_avx2 = {tile_rows, tile_columns, multiply, transpose, pack};

}  // namespace dropless::cpu
#endif
