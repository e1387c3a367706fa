// SPDX-License-Identifier: Apache-2.0
// Linear maps of the layer: grouped products, with operands quantised on the way under MXFP8.
#include "optimized/cpu/layer_linear.h"

#include "optimized/cpu/operations.h"
#include "optimized/cpu/scales.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

// What a product reads: a plain tensor, or codes and scales made from it.
class Operand {
 public:
  explicit Operand(const dropless_tensor& values) : values_(values) {}

  // A matrix [rows, columns] with zones, quantised in one direction.
  static Operand quantized(Call& call, const dropless_tensor& matrix,
                           const dropless_tensor* offsets, int direction, dropless_dtype format) {
    const Index rows = matrix.shape[0], columns = matrix.shape[1];
    Operand result(matrix);
    result.codes_ = Buffer(format, {rows, columns});
    const Index groups = offsets->shape[0] - 1;
    result.scales_ = direction == DROPLESS_BLOCKS_ROW_WISE
                         ? Buffer(DROPLESS_E8M0, {rows, ceil_div(columns, DROPLESS_BLOCK_SIZE)})
                         : Buffer(DROPLESS_E8M0, {rows / DROPLESS_BLOCK_SIZE + groups, columns});
    dropless_quantize_args args = {};
    args.x = &matrix;
    args.offsets = offsets;
    if (direction == DROPLESS_BLOCKS_ROW_WISE) {
      args.row_codes = result.codes_.get();
      args.row_scales = result.scales_.get();
    } else {
      args.column_codes = result.codes_.get();
      args.column_scales = result.scales_.get();
    }
    quantize(call, args);
    result.values_ = *result.codes_;
    result.scale_view_ = *result.scales_;
    return result;
  }

  // Weights [E,O,I]: every expert is a group of rows of the matrix [E*O, I].
  static Operand quantized_weights(Call& call, const dropless_tensor& w, int direction) {
    const Index experts = w.shape[0], out = w.shape[1], in = w.shape[2];
    const Buffer dense = dense_copy(w);
    const dropless_tensor matrix = describe(dense.data<std::byte>(), w.dtype, {experts * out, in});
    const Buffer offsets(DROPLESS_I64, {experts + 1});
    for (Index e = 0; e <= experts; ++e) offsets.data<std::int64_t>()[e] = e * out;
    Operand result = quantized(call, matrix, offsets.get(), direction, DROPLESS_E4M3);
    result.values_ = describe(result.codes_.data<std::byte>(), DROPLESS_E4M3, {experts, out, in});
    const Index blocks =
        ceil_div(direction == DROPLESS_BLOCKS_ROW_WISE ? in : out, DROPLESS_BLOCK_SIZE);
    void* scales = result.scales_.data<std::byte>();
    result.scale_view_ = direction == DROPLESS_BLOCKS_ROW_WISE
                             ? describe(scales, DROPLESS_E8M0, {experts, out, blocks})
                             : describe(scales, DROPLESS_E8M0, {experts, blocks, in});
    return result;
  }

  // Valid as long as this object stays where it is.
  [[nodiscard]] dropless_operand get() const {
    dropless_operand operand = {};
    operand.struct_size = sizeof operand;
    operand.struct_version = DROPLESS_STRUCT_VERSION;
    operand.values = &values_;
    operand.scales = codes_.get()->rank > 0 ? &scale_view_ : nullptr;
    return operand;
  }

 private:
  static Buffer dense_copy(const dropless_tensor& w) {
    const Tensor source = tensor(&w, "weight", floats, {w.shape[0], w.shape[1], w.shape[2]});
    Buffer copy(w.dtype, {w.shape[0], w.shape[1], w.shape[2]});
    const Tensor to = tensor(copy.get(), "copy", floats, {w.shape[0], w.shape[1], w.shape[2]});
    for (Index e = 0; e < w.shape[0]; ++e) {
      for (Index o = 0; o < w.shape[1]; ++o) {
        for (Index i = 0; i < w.shape[2]; ++i) {
          std::memcpy(to.at(e, o, i), source.at(e, o, i), static_cast<std::size_t>(to.element));
        }
      }
    }
    return copy;
  }

  dropless_tensor values_, scale_view_ = {};
  Buffer codes_, scales_;
};

}  // namespace

void Linear::forward(Call& call, const dropless_tensor& x, const dropless_tensor& y) const {
  const Operand a =
      mxfp8 ? Operand::quantized(call, x, offsets, DROPLESS_BLOCKS_ROW_WISE, DROPLESS_E4M3)
            : Operand(x);
  forward(call, a.get(), y);
}

void Linear::forward(Call& call, const dropless_operand& x, const dropless_tensor& y) const {
  const Operand b =
      mxfp8 ? Operand::quantized_weights(call, w, DROPLESS_BLOCKS_ROW_WISE) : Operand(w);
  const dropless_operand b_operand = b.get();
  dropless_gemm_fprop_args args = {};
  args.alpha = 1;
  args.x = &x;
  args.w = &b_operand;
  args.bias = bias.rank > 0 ? &bias : nullptr;
  args.offsets = offsets;
  args.y = &y;
  gemm_fprop(call, args);
}

void Linear::backward_input(Call& call, const dropless_tensor& dy,
                            const dropless_tensor& dx) const {
  const Operand a =
      mxfp8 ? Operand::quantized(call, dy, offsets, DROPLESS_BLOCKS_ROW_WISE, gradient_format)
            : Operand(dy);
  const Operand b =
      mxfp8 ? Operand::quantized_weights(call, w, DROPLESS_BLOCKS_COLUMN_WISE) : Operand(w);
  const dropless_operand a_operand = a.get(), b_operand = b.get();
  dropless_gemm_dgrad_args args = {};
  args.alpha = 1;
  args.dy = &a_operand;
  args.w = &b_operand;
  args.offsets = offsets;
  args.dx = &dx;
  gemm_dgrad(call, args);
}

void Linear::backward_weight(Call& call, const dropless_tensor& dy, const dropless_tensor& x,
                             const dropless_tensor& dw) const {
  const Operand a =
      mxfp8 ? Operand::quantized(call, dy, offsets, DROPLESS_BLOCKS_COLUMN_WISE, gradient_format)
            : Operand(dy);
  const Operand b =
      mxfp8 ? Operand::quantized(call, x, offsets, DROPLESS_BLOCKS_COLUMN_WISE, DROPLESS_E4M3)
            : Operand(x);
  const dropless_operand a_operand = a.get(), b_operand = b.get();
  dropless_gemm_wgrad_args args = {};
  args.alpha = 1;
  args.dy = &a_operand;
  args.x = &b_operand;
  args.offsets = offsets;
  args.dw = &dw;
  gemm_wgrad(call, args);
}

void Linear::backward_bias(Call& call, const dropless_tensor& dy, const dropless_tensor& db) const {
  constexpr Index piece = 256;
  const Tensor from = tensor(&dy, "dy", floats, {any, any});
  const Tensor to = tensor(&db, "db", floats, {any, from.shape[1]});
  const Zones zones = read_zones(offsets, nullptr, from.shape[0], to.shape[0]);
  const Index width = from.shape[1], pieces = ceil_div(width, piece);
  parallel_for(call.threads(), zones.groups() * pieces, [&](Index task) {
    const Index e = task / pieces, column = task % pieces * piece;
    const Index n = std::min(piece, width - column);
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      double sums[piece] = {};
      float row[piece];
      for (Index r = zones.first(e); r < zones.end(e); ++r) {
        load_run(from.at(r, column), from.dtype, from.inner_stride(), n, row);
        for (Index i = 0; i < n; ++i) sums[i] += static_cast<double>(row[i]);
      }
      for (Index i = 0; i < n; ++i) row[i] = static_cast<float>(sums[i]);
      store_run(row, n, to.at(e, column), to.dtype, to.inner_stride());
    });
  });
}

}  // namespace dropless::cpu
