// SPDX-License-Identifier: Apache-2.0
// Operands of the grouped product: checks, and blocks as fp32.
#include "optimized/cpu/gemm_operand.h"

#include "optimized/cpu/mxfp8_elements.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Dtypes operand_dtypes = {DROPLESS_FP32, DROPLESS_BF16, DROPLESS_E4M3, DROPLESS_E5M2};

bool is_code(dropless_dtype dtype) {
  return dtype == DROPLESS_E4M3 || dtype == DROPLESS_E5M2;
}

// Codes need scales and plain values must not have any.
void check_scales(const dropless_operand& operand, dropless_dtype dtype, const std::string& name) {
  if (is_code(dtype) != (operand.scales != nullptr)) {
    refuse(name + (is_code(dtype) ? ": codes without scales" : ": scales on plain values"));
  }
  if (operand.scale_layout != DROPLESS_SCALES_LINEAR &&
      operand.scale_layout != DROPLESS_SCALES_PACKED) {
    refuse(name + ": unknown scale layout");
  }
}

}  // namespace

std::array<Index, 3> operand_shape(const dropless_operand* given, const char* name, int rank) {
  const dropless_operand operand = read_struct(given, name);
  const Tensor values = rank == 2 ? tensor(operand.values, name, operand_dtypes, {any, any})
                                  : tensor(operand.values, name, operand_dtypes, {any, any, any});
  return {values.shape[0], values.shape[1], values.shape[2]};
}

GemmOperand GemmOperand::rows(const dropless_operand* given, const char* name, bool column_wise,
                              Index rows, Index columns, const Zones& zones) {
  const dropless_operand operand = read_struct(given, name);
  const Tensor values = tensor(operand.values, name, operand_dtypes, {rows, columns});
  check_scales(operand, values.dtype, name);
  GemmOperand result;
  result.data_ = values.data;
  result.dtype_ = values.dtype;
  result.element_ = values.element;
  result.row_stride_ = values.strides[0];
  result.column_stride_ = values.inner_stride();
  for (Index g = 0; g < zones.groups(); ++g) {
    result.starts_.push_back(zones.first(g) * values.strides[0]);
  }
  if (operand.scales != nullptr) {
    result.scales_ = ScaleMap(operand.scales, (std::string(name) + " scales").c_str(), column_wise,
                              operand.scale_layout, rows, columns, zones);
  }
  return result;
}

GemmOperand GemmOperand::weights(const dropless_operand* given, const char* name, bool column_wise,
                                 Index experts, Index rows, Index columns) {
  const dropless_operand operand = read_struct(given, name);
  const Tensor values = tensor(operand.values, name, operand_dtypes, {experts, rows, columns});
  check_scales(operand, values.dtype, name);
  GemmOperand result;
  result.data_ = values.data;
  result.dtype_ = values.dtype;
  result.element_ = values.element;
  result.row_stride_ = values.strides[1];
  result.column_stride_ = values.inner_stride();
  for (Index e = 0; e < experts; ++e) result.starts_.push_back(e * values.strides[0]);
  if (operand.scales != nullptr) {
    result.scales_ = ScaleMap::stacked(operand.scales, (std::string(name) + " scales").c_str(),
                                       column_wise, operand.scale_layout, experts, rows, columns);
  }
  return result;
}

const float* GemmOperand::in_place(Index g, Index row, Index column) const {
  if (dtype_ != DROPLESS_FP32 || column_stride_ != 1) return nullptr;
  return reinterpret_cast<const float*>(address(g, row, column));
}

// Values of n dense codes under one scale, and under one scale each. The arrays are different
// objects, which the compiler cannot know of bytes by itself.
template <dropless_dtype dtype>
DROPLESS_INLINE void decode_run(const std::uint8_t* __restrict from, float scale, Index n,
                                float* __restrict to) {
  for (Index i = 0; i < n; ++i) to[i] = decode_element<dtype>(from[i]) * scale;
}
template <dropless_dtype dtype>
DROPLESS_INLINE void decode_run(const std::uint8_t* __restrict from, const float* __restrict scales,
                                Index n, float* __restrict to) {
  for (Index i = 0; i < n; ++i) to[i] = decode_element<dtype>(from[i]) * scales[i];
}

template <dropless_dtype dtype>
DROPLESS_INLINE void GemmOperand::load_row_wise(Index g, Index row, Index column, Index rows,
                                                Index columns, float* out, Index out_stride) const {
  constexpr Index width = DROPLESS_BLOCK_SIZE;
  for (Index i = 0; i < rows; ++i) {
    const std::uint8_t* from = reinterpret_cast<const std::uint8_t*>(address(g, row + i, column));
    const std::uint8_t* scales = scales_->at(g, row + i, 0);
    float* to = out + i * out_stride;
    for (Index j = 0; j < columns;) {
      // Pieces end where a block ends.
      const Index piece = std::min(columns - j, width - (column + j) % width);
      const float scale = scale_value(scales[scales_->block_step((column + j) / width)]);
      if (column_stride_ == 1 && piece == width) {
        __builtin_prefetch(from + j + 16 * width);
        decode_run<dtype>(from + j, scale, width, to + j);
      } else {
        for (Index l = 0; l < piece; ++l) {
          to[j + l] = decode_element<dtype>(from[(j + l) * column_stride_]) * scale;
        }
      }
      j += piece;
    }
  }
}

template <dropless_dtype dtype>
DROPLESS_INLINE void GemmOperand::load_column_wise(Index g, Index row, Index column, Index rows,
                                                   Index columns, float* out,
                                                   Index out_stride) const {
  constexpr Index width = 128;
  float scale[width];
  for (Index j = 0; j < columns; j += width) {
    const Index piece = std::min(columns - j, width);
    Index scaled_block = -1;
    for (Index i = 0; i < rows; ++i) {
      if ((row + i) / DROPLESS_BLOCK_SIZE != scaled_block) {
        scaled_block = (row + i) / DROPLESS_BLOCK_SIZE;
        for (Index l = 0; l < piece; ++l) {
          scale[l] = scale_value(*scales_->at(g, scaled_block, column + j + l));
        }
      }
      const std::uint8_t* from =
          reinterpret_cast<const std::uint8_t*>(address(g, row + i, column + j));
      float* to = out + i * out_stride + j;
      if (column_stride_ == 1) {
        decode_run<dtype>(from, scale, piece, to);
      } else {
        for (Index l = 0; l < piece; ++l) {
          to[l] = decode_element<dtype>(from[l * column_stride_]) * scale[l];
        }
      }
    }
  }
}

template <dropless_dtype dtype>
DROPLESS_INLINE void GemmOperand::load_codes(Index g, Index row, Index column, Index rows,
                                             Index columns, float* out, Index out_stride) const {
  if (scales_->column_wise()) {
    load_column_wise<dtype>(g, row, column, rows, columns, out, out_stride);
  } else {
    load_row_wise<dtype>(g, row, column, rows, columns, out, out_stride);
  }
}

void GemmOperand::load(Index g, Index row, Index column, Index rows, Index columns, float* out,
                       Index out_stride) const {
  if (rows <= 0 || columns <= 0) return;
  with_simd([=, this]() DROPLESS_INLINE_LAMBDA {
    if (dtype_ == DROPLESS_E4M3) {
      load_codes<DROPLESS_E4M3>(g, row, column, rows, columns, out, out_stride);
    } else if (dtype_ == DROPLESS_E5M2) {
      load_codes<DROPLESS_E5M2>(g, row, column, rows, columns, out, out_stride);
    } else {
      for (Index i = 0; i < rows; ++i) {
        load_run(address(g, row + i, column), dtype_, column_stride_, columns,
                 out + i * out_stride);
      }
    }
  });
}

}  // namespace dropless::cpu
