// SPDX-License-Identifier: Apache-2.0
// Linear maps of the layer: grouped products, with operands quantised on the way under MXFP8.
#include "optimized/cuda/layer_linear.h"

#include "optimized/cuda/dense_gemm.h"
#include "optimized/cuda/layer_dense.h"
#include "optimized/cuda/layer_rows.h"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

Index blocks_of(Index extent) {
  return (extent + DROPLESS_BLOCK_SIZE - 1) / DROPLESS_BLOCK_SIZE;
}

// What a product reads: a plain tensor, or codes and linear scales made from it. Points into
// itself, so it stays where it is.
class Operand {
 public:
  explicit Operand(const dropless_tensor& plain) : values_(plain) { connect(nullptr); }
  explicit Operand(const QuantizedRows& rows) : values_(rows.codes), scales_(rows.scales) {
    connect(&scales_);
  }
  // A matrix [rows, columns] with zones.
  Operand(Call& call, const dropless_tensor& matrix, const dropless_tensor& offsets, int direction,
          dropless_dtype format) {
    quantize_matrix(call, matrix, offsets, direction, format);
    connect(&scales_);
  }
  // Weights [E,O,I]: every expert is a zone of O rows of the matrix [E*O, I].
  Operand(Call& call, const dropless_tensor& w, int direction) {
    const Index experts = w.shape[0], out = w.shape[1], in = w.shape[2];
    const dropless_tensor matrix = describe(dense(call, w), w.dtype, {experts * out, in});
    const dropless_tensor offsets = multiples(call, experts, out);
    quantize_matrix(call, matrix, offsets, direction, DROPLESS_E4M3);
    values_ = describe(values_.data, DROPLESS_E4M3, {experts, out, in});
    scales_ = direction == DROPLESS_BLOCKS_ROW_WISE
                  ? describe(scales_.data, DROPLESS_E8M0, {experts, out, blocks_of(in)})
                  : describe(scales_.data, DROPLESS_E8M0, {experts, blocks_of(out), in});
    connect(&scales_);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  [[nodiscard]] const dropless_operand* get() const { return &operand_; }

 private:
  void connect(const dropless_tensor* scales) {
    operand_.struct_size = sizeof operand_;
    operand_.struct_version = DROPLESS_STRUCT_VERSION;
    operand_.values = &values_;
    operand_.scales = scales;
  }

  void quantize_matrix(Call& call, const dropless_tensor& matrix, const dropless_tensor& offsets,
                       int direction, dropless_dtype format) {
    const Index rows = matrix.shape[0], columns = matrix.shape[1];
    const bool by_rows = direction == DROPLESS_BLOCKS_ROW_WISE;
    const Index groups = offsets.shape[0] - 1;
    const Index scale_rows = by_rows ? rows : rows / DROPLESS_BLOCK_SIZE + groups;
    const Index scale_columns = by_rows ? blocks_of(columns) : columns;
    values_ = describe(call.scratch<std::uint8_t>(rows * columns), format, {rows, columns});
    scales_ = describe(call.scratch<std::uint8_t>(scale_rows * scale_columns), DROPLESS_E8M0,
                       {scale_rows, scale_columns});
    dropless_quantize_args args = {};
    args.x = &matrix, args.offsets = &offsets;
    (by_rows ? args.row_codes : args.column_codes) = &values_;
    (by_rows ? args.row_scales : args.column_scales) = &scales_;
    quantize(call, args);
  }

  dropless_tensor values_, scales_ = {};
  dropless_operand operand_ = {};
};

Operand row_operand(Call& call, const Linear& map, const dropless_tensor& rows, int direction,
                    dropless_dtype format) {
  return map.mxfp8 ? Operand(call, rows, *map.offsets, direction, format) : Operand(rows);
}
Operand weight_operand(Call& call, const Linear& map, int direction) {
  return map.mxfp8 ? Operand(call, map.w, direction) : Operand(map.w);
}

}  // namespace

dropless_tensor stacked(const dropless_tensor& given) {
  const dropless_tensor tensor = read_struct(&given, "tensor");
  dropless_tensor stack = tensor;
  stack.struct_size = sizeof stack;
  stack.rank = tensor.rank + 1;
  stack.shape[0] = 1, stack.strides[0] = tensor.shape[0] * tensor.strides[0];
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    stack.shape[axis + 1] = tensor.shape[axis], stack.strides[axis + 1] = tensor.strides[axis];
  }
  return stack;
}

bool Linear::wants_quantized_rows(Call& call) const {
  return mxfp8 && !(dense && has_block_scales(call));
}

void Linear::forward(Call& call, const dropless_tensor& x, const dropless_tensor& y,
                     const QuantizedRows* quantized) const {
  if (dense && dense_forward(call, *this, x, y)) return;
  const ScratchScope scope(call);
  const Operand a = quantized != nullptr
                        ? Operand(*quantized)
                        : row_operand(call, *this, x, DROPLESS_BLOCKS_ROW_WISE, DROPLESS_E4M3);
  const Operand b = weight_operand(call, *this, DROPLESS_BLOCKS_ROW_WISE);
  dropless_gemm_fprop_args args = {};
  args.alpha = 1;
  args.x = a.get(), args.w = b.get();
  args.bias = bias.rank > 0 ? &bias : nullptr;
  args.offsets = offsets, args.y = &y;
  gemm_fprop(call, args);
}

void Linear::backward_input(Call& call, const dropless_tensor& dy,
                            const dropless_tensor& dx) const {
  if (dense && dense_backward_input(call, *this, dy, dx)) return;
  const ScratchScope scope(call);
  const Operand a = row_operand(call, *this, dy, DROPLESS_BLOCKS_ROW_WISE, gradient_format);
  const Operand b = weight_operand(call, *this, DROPLESS_BLOCKS_COLUMN_WISE);
  dropless_gemm_dgrad_args args = {};
  args.alpha = 1;
  args.dy = a.get(), args.w = b.get();
  args.offsets = offsets, args.dx = &dx;
  gemm_dgrad(call, args);
}

void Linear::backward_weight(Call& call, const dropless_tensor& dy, const dropless_tensor& x,
                             const dropless_tensor* dw) const {
  if (dw == nullptr) return;
  if (dense && dense_backward_weight(call, *this, dy, x, *dw)) return;
  const ScratchScope scope(call);
  const Operand a = row_operand(call, *this, dy, DROPLESS_BLOCKS_COLUMN_WISE, gradient_format);
  const Operand b = row_operand(call, *this, x, DROPLESS_BLOCKS_COLUMN_WISE, DROPLESS_E4M3);
  dropless_gemm_wgrad_args args = {};
  args.alpha = 1;
  args.dy = a.get(), args.x = b.get();
  args.offsets = offsets, args.dw = dw;
  gemm_wgrad(call, args);
}

void Linear::backward_bias(Call& call, const dropless_tensor& dy, const dropless_tensor* db) const {
  if (db == nullptr) return;
  const Zones zones = read_zones(call, offsets, nullptr, dy.shape[0]);
  sum_rows(call, zones, tensor(&dy, "dy", floats, {any, any}), nullptr,
           tensor(db, "db", floats, {zones.groups, dy.shape[1]}));
}

}  // namespace dropless::cuda
