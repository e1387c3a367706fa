// SPDX-License-Identifier: Apache-2.0
// Dense products through cuBLASLt: of the router and the shared expert (layer_dense.h).
//
// Which algorithm runs depends on the GPU, types, extents and strides alone, not on addresses: all
// operands and outputs begin at multiples of 256 bytes.
#pragma once

#include "optimized/cuda/call.h"

namespace dropless::cuda {

// A row-major matrix in device memory: rows of `stride` elements, fp32 or bf16.
struct DenseMatrix {
  void* data = nullptr;
  dropless_dtype dtype = DROPLESS_BF16;
  Index stride = 0;
};

// out [m,n] = alpha * a b + beta * out with fp32 sums. a is [m,k], or [k,m] where a_transposed; b
// is [k,n], or [n,k] where b_transposed. fp32 operands are multiplied as fp32, never as TF32.
struct DenseProduct {
  Index m = 0, n = 0, k = 0;
  DenseMatrix a, b, out;  // a and b of one dtype
  bool a_transposed = false, b_transposed = false;
  float alpha = 1, beta = 0;
};

// Enqueues the product on the call's stream; scratch memory comes from the call. Partial sums are
// fp32 (GROUPED_GEMM-6). Throws Refusal: NOT_SUPPORTED without cuBLASLt or for what it refuses.
void dense_gemm(Call& call, const DenseProduct& product);

// An MXFP8 product out [m,n] = a b^T with packed scales (MXFP8-7) on tensor cores that know them:
// codes a [m,k], b [n,k], both without gaps, E4M3 or E5M2 but not both E5M2.
struct ScaledProduct {
  Index m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr;
  dropless_dtype a_dtype = DROPLESS_E4M3, b_dtype = DROPLESS_E4M3;
  const void *a_scales = nullptr, *b_scales = nullptr;
  DenseMatrix out;
};

// Whether cuBLASLt has products with a scale per 32 elements for this GPU (VEC32_UE8M0). Hopper
// refuses; Blackwell takes them.
[[nodiscard]] bool has_block_scales(Call& call);

// False where the chip or the library refuses the product: nothing was enqueued, the caller widens
// the codes instead. True after it was enqueued. Untested on Blackwell.
[[nodiscard]] bool scaled_gemm(Call& call, const ScaledProduct& product);

}  // namespace dropless::cuda
