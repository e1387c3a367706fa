// SPDX-License-Identifier: Apache-2.0
// Portable kernels of the matrix product, and the choice between the sets.
#include "optimized/cpu/gemm_kernels.h"

namespace dropless::cpu {
namespace {

constexpr Index tile_rows = 4;
constexpr Index tile_columns = 8;

template <Index rows>
void multiply_rows(Index depth, const float* a, const float* b, float* c, Index c_stride,
                   bool first) {
  float sums[rows][tile_columns] = {};
  if (!first) {
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < tile_columns; ++j) sums[i][j] = c[i * c_stride + j];
    }
  }
  for (Index k = 0; k < depth; ++k) {
    for (Index i = 0; i < rows; ++i) {
      const float factor = a[i * gemm_a_stride + k];
      for (Index j = 0; j < tile_columns; ++j) sums[i][j] += factor * b[k * tile_columns + j];
    }
  }
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < tile_columns; ++j) c[i * c_stride + j] = sums[i][j];
  }
}

void multiply(Index rows, Index depth, const float* a, const float* b, float* c, Index c_stride,
              bool first) {
  switch (rows) {
    case 1:
      return multiply_rows<1>(depth, a, b, c, c_stride, first);
    case 2:
      return multiply_rows<2>(depth, a, b, c, c_stride, first);
    case 3:
      return multiply_rows<3>(depth, a, b, c, c_stride, first);
    default:
      return multiply_rows<4>(depth, a, b, c, c_stride, first);
  }
}

void transpose(const float* in, Index in_stride, Index rows, Index columns, float* out,
               Index out_stride) {
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) out[j * out_stride + i] = in[i * in_stride + j];
  }
}

void pack(const float* in, Index in_stride, Index rows, Index columns, Index depth, float* out) {
  pack_panels<tile_columns>(in, in_stride, rows, columns, depth, out);
}

}  // namespace

const GemmKernels gemm_kernels_scalar = {tile_rows, tile_columns, multiply, transpose, pack};

const GemmKernels& gemm_kernels() {
#if DROPLESS_CPU_X86
  if (isa() == Isa::avx512) return gemm_kernels_avx512;
  if (isa() == Isa::avx2) return gemm_kernels_avx2;
#endif
  return gemm_kernels_scalar;
}

}  // namespace dropless::cpu
