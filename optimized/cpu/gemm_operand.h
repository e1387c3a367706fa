// SPDX-License-Identifier: Apache-2.0
// An operand of a grouped product as fp32 blocks: plain fp32, bf16 widened exactly, or MXFP8 codes
// times their scales (GROUPED_GEMM-7).
#pragma once

#include <array>
#include <optional>

#include "optimized/cpu/scales.h"

namespace dropless::cpu {

class GemmOperand {
 public:
  // Rows [N_max, columns] cut into zones. column_wise: which scales MXFP8 codes must bring.
  static GemmOperand rows(const dropless_operand* given, const char* name, bool column_wise,
                          Index rows, Index columns, const Zones& zones);
  // Weights [E, rows, columns].
  static GemmOperand weights(const dropless_operand* given, const char* name, bool column_wise,
                             Index experts, Index rows, Index columns);
  // out[i * out_stride + j] = element (row + i, column + j) of group g, rows counted from the
  // group's first one.
  void load(Index g, Index row, Index column, Index rows, Index columns, float* out,
            Index out_stride) const;
  // The element's address when blocks can be read in place (fp32, dense rows); else null.
  [[nodiscard]] const float* in_place(Index g, Index row, Index column) const;
  [[nodiscard]] Index row_stride() const { return row_stride_; }

 private:
  [[nodiscard]] const std::byte* address(Index g, Index row, Index column) const {
    return data_ +
           (starts_[static_cast<std::size_t>(g)] + row * row_stride_ + column * column_stride_) *
               element_;
  }
  template <dropless_dtype dtype>
  void load_codes(Index g, Index row, Index column, Index rows, Index columns, float* out,
                  Index out_stride) const;
  template <dropless_dtype dtype>
  void load_row_wise(Index g, Index row, Index column, Index rows, Index columns, float* out,
                     Index out_stride) const;
  template <dropless_dtype dtype>
  void load_column_wise(Index g, Index row, Index column, Index rows, Index columns, float* out,
                        Index out_stride) const;

  const std::byte* data_ = nullptr;
  dropless_dtype dtype_ = DROPLESS_FP32;
  Index element_ = 4, row_stride_ = 0, column_stride_ = 1;
  std::vector<Index> starts_;  // element offset of each group
  std::optional<ScaleMap> scales_;
};

// Extents of an operand's values, before the other shapes are known. Throws Refusal for another
// rank.
std::array<Index, 3> operand_shape(const dropless_operand* given, const char* name, int rank);

}  // namespace dropless::cpu
