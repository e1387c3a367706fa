// SPDX-License-Identifier: Apache-2.0
// Inner kernels of the fp32 matrix product, one set per instruction set.
//
// Every element of the result is one chain of additions over the contraction index, in ascending
// order, whatever block, tile or position it falls into. That is what makes an expert's result
// independent of all other rows and of the thread count, bit by bit (GROUPED_GEMM-3, 9). OpenBLAS
// was measured and does not have this property: its result for a row changes with the row's
// position, on some machines even among calls of one fixed size.
#pragma once

#include "optimized/cpu/simd.h"
#include "optimized/cpu/threads.h"

namespace dropless::cpu {

// Contraction indices that one pass of a kernel handles at most.
inline constexpr Index gemm_depth = 320;
// Floats between rows of a panel of A: more than gemm_depth, so that rows fall into different
// cache sets.
inline constexpr Index gemm_a_stride = gemm_depth + 16;

struct GemmKernels {
  Index tile_rows;     // rows of a panel of A that one call multiplies
  Index tile_columns;  // columns of a panel of B
  // c[rows, tile_columns] = (first ? 0 : c) + a[rows, depth] * b[depth, tile_columns], with
  // 1 <= rows <= tile_rows; a has gemm_a_stride floats a row, b tile_columns, c c_stride.
  void (*multiply)(Index rows, Index depth, const float* a, const float* b, float* c,
                   Index c_stride, bool first);
  // out[j * out_stride + i] = in[i * in_stride + j] for i < rows, j < columns.
  void (*transpose)(const float* in, Index in_stride, Index rows, Index columns, float* out,
                    Index out_stride);
  // Rows [rows, columns] into panels of tile_columns columns, each of which holds `depth` rows: row
  // i goes to row i of every panel. Columns beyond the last one are zero.
  void (*pack)(const float* in, Index in_stride, Index rows, Index columns, Index depth,
               float* out);
};

template <Index width>
DROPLESS_INLINE void pack_panels(const float* in, Index in_stride, Index rows, Index columns,
                                 Index depth, float* out) {
  const Index full = columns / width * width;
  for (Index i = 0; i < rows; ++i) {
    const float* from = in + i * in_stride;
    float* to = out + i * width;
    for (Index j = 0; j < full; j += width) {
      for (Index l = 0; l < width; ++l) to[j * depth + l] = from[j + l];
    }
    if (full < columns) {
      for (Index l = 0; l < width; ++l) {
        to[full * depth + l] = full + l < columns ? from[full + l] : 0.0F;
      }
    }
  }
}

extern const GemmKernels gemm_kernels_scalar;
#if DROPLESS_CPU_X86
extern const GemmKernels gemm_kernels_avx2;
extern const GemmKernels gemm_kernels_avx512;
#endif

// The set for isa().
[[nodiscard]] const GemmKernels& gemm_kernels();

}  // namespace dropless::cpu
