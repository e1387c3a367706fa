// SPDX-License-Identifier: Apache-2.0
// Dense products of the layer, plain or with block scales.
#include "optimized/cuda/layer_dense.h"

#include "optimized/cuda/dense_gemm.h"
#include "optimized/cuda/layer_rows.h"
#include "optimized/cuda/layer_state.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

Index blocks_of(Index extent) {
  return (extent + DROPLESS_BLOCK_SIZE - 1) / DROPLESS_BLOCK_SIZE;
}

// The one matrix of a stack.
dropless_tensor matrix_of(const dropless_tensor& stack) {
  dropless_tensor matrix = describe(stack.data, stack.dtype, {stack.shape[1], stack.shape[2]});
  matrix.strides[0] = stack.strides[1], matrix.strides[1] = stack.strides[2];
  return matrix;
}

dropless_tensor turned(const dropless_tensor& matrix) {
  dropless_tensor other = describe(matrix.data, matrix.dtype, {matrix.shape[1], matrix.shape[0]});
  other.strides[0] = matrix.strides[1], other.strides[1] = matrix.strides[0];
  return other;
}

bool has_nothing(const dropless_tensor& a, const dropless_tensor& b) {
  return a.shape[0] == 0 || a.shape[1] == 0 || b.shape[0] == 0 || b.shape[1] == 0;
}

constexpr Index most_elements = Index{1} << 31;  // of a matrix: beyond, libraries count in 32 bits

// x without gaps, from a multiple of 256 bytes on: then the bits of a product do not depend on how
// its operands lie in memory (GENERAL-6). Its own memory where that is so, else a scratch copy.
DenseMatrix compact(Call& call, const dropless_tensor& x, dropless_dtype dtype) {
  if (dtype == DROPLESS_FP32) return {widened(call, view(x)), dtype, x.shape[1]};
  return {aligned_copy(call, view(x)), dtype, x.shape[1]};
}

template <class Enqueue>
bool unless_not_supported(const Enqueue& enqueue) {
  try {
    return enqueue();
  } catch (const Refusal& refusal) {
    if (refusal.status != DROPLESS_NOT_SUPPORTED) throw;
    return false;
  }
}

bool is_own(const Tensor& out) {
  return out.has_dense_rows() && (out.shape[0] <= 1 || out.strides[0] == out.shape[1]);
}

// out = a b with plain operands; out is the layer's own. bf16 operands are multiplied as they are,
// all others as fp32.
bool plain_product(Call& call, const dropless_tensor& a, bool a_transposed,
                   const dropless_tensor& b, bool b_transposed, const Tensor& out) {
  const ScratchScope scope(call);
  const bool narrow = a.dtype == DROPLESS_BF16 && b.dtype == DROPLESS_BF16;
  if (!is_own(out) || (!narrow && out.dtype != DROPLESS_FP32)) return false;
  for (const Index size : {view(a).size(), view(b).size(), out.size()}) {
    if (size >= most_elements) return false;
  }
  return unless_not_supported([&] {
    const dropless_dtype dtype = narrow ? DROPLESS_BF16 : DROPLESS_FP32;
    DenseProduct product;
    product.m = out.shape[0], product.n = out.shape[1];
    product.k = a.shape[a_transposed ? 0 : 1];
    product.a = compact(call, a, dtype), product.a_transposed = a_transposed;
    product.b = compact(call, b, dtype), product.b_transposed = b_transposed;
    product.out = {out.data, out.dtype, out.shape[1]};
    dense_gemm(call, product);
    return true;
  });
}

// A matrix [outer, contraction] as codes without gaps and packed scales, blocks along its rows.
struct ScaledOperand {
  dropless_tensor codes, scales;

  ScaledOperand(Call& call, const dropless_tensor& matrix, dropless_dtype format) {
    const Index outer = matrix.shape[0], contraction = matrix.shape[1];
    const Index bytes = (outer + 127) / 128 * 128 * ((blocks_of(contraction) + 3) / 4 * 4);
    codes = describe(call.scratch<std::uint8_t>(outer * contraction), format, {outer, contraction});
    scales = describe(call.scratch<std::uint8_t>(bytes), DROPLESS_E8M0, {bytes});
    const dropless_tensor zone = multiples(call, 1, outer);
    dropless_quantize_args args = {};
    args.x = &matrix, args.offsets = &zone;
    args.row_codes = &codes, args.row_scales = &scales;
    args.scale_layout = DROPLESS_SCALES_PACKED;
    quantize(call, args);
  }
};

// out = a b^T under the MXFP8 recipe. An infinity is coded as the largest number with the largest
// scale (MXFP8-4); tensor cores with block scales may not give it back as one.
bool scaled_product(Call& call, const dropless_tensor& a, dropless_dtype a_format,
                    const dropless_tensor& b, const Tensor& out) {
  ScaledProduct product;
  product.m = a.shape[0], product.n = b.shape[0], product.k = a.shape[1];
  for (const Index extent : {product.m, product.n, product.k}) {
    if (extent % 16 != 0) return false;  // asked before anything is quantised
  }
  if (!is_own(out) || !has_block_scales(call)) return false;
  const ScratchScope scope(call);
  return unless_not_supported([&] {
    const ScaledOperand left(call, a, a_format), right(call, b, DROPLESS_E4M3);
    product.a = left.codes.data, product.a_dtype = a_format, product.a_scales = left.scales.data;
    product.b = right.codes.data, product.b_scales = right.scales.data;
    product.out = {out.data, out.dtype, out.shape[1]};
    return scaled_gemm(call, product);
  });
}

}  // namespace

bool dense_forward(Call& call, const Linear& map, const dropless_tensor& x,
                   const dropless_tensor& y) {
  const dropless_tensor w = matrix_of(map.w);
  if (map.bias.rank > 0 || has_nothing(x, w)) return false;
  return map.mxfp8 ? scaled_product(call, x, DROPLESS_E4M3, w, view(y))
                   : plain_product(call, x, false, w, true, view(y));
}

bool dense_backward_input(Call& call, const Linear& map, const dropless_tensor& dy,
                          const dropless_tensor& dx) {
  const dropless_tensor w = matrix_of(map.w);
  if (has_nothing(dy, w)) return false;
  return map.mxfp8 ? scaled_product(call, dy, map.gradient_format, turned(w), view(dx))
                   : plain_product(call, dy, false, w, false, view(dx));
}

bool dense_backward_weight(Call& call, const Linear& map, const dropless_tensor& dy,
                           const dropless_tensor& x, const dropless_tensor& dw) {
  const bool narrow = dy.dtype == DROPLESS_BF16 && x.dtype == DROPLESS_BF16;
  if (map.mxfp8 ? !has_block_scales(call) : narrow) return false;
  if (has_nothing(dy, x)) return false;
  const ScratchScope scope(call);
  const Index out = dy.shape[1], in = x.shape[1];
  const dropless_tensor sums = make(call, call.workspace(), DROPLESS_FP32, {out, in});
  const bool done =
      map.mxfp8 ? scaled_product(call, turned(dy), map.gradient_format, turned(x), view(sums))
                : plain_product(call, dy, true, x, false, view(sums));
  if (done) add_parts(call, {{view(sums)}}, view(matrix_of(dw)));  // not when the call was refused
  return done;
}

}  // namespace dropless::cuda
