// SPDX-License-Identifier: Apache-2.0
// Tensors of rows as they are offered to other ranks, and the copies and sums at the other end.
#pragma once

#include "optimized/cpu/exchange/handle.h"

namespace dropless::cpu::exchange {

// Rows of a tensor [rows, columns]; one whose columns are not next to each other is copied to
// `dense` first.
class RowSource {
 public:
  RowSource(const Tensor& tensor, Bytes& dense);
  // The rows of these tokens, these rows, or `rows` rows from `first` on.
  [[nodiscard]] Section chosen(const std::vector<LinkToken>& tokens) const;
  [[nodiscard]] Section chosen(const std::vector<std::int32_t>& rows) const;
  [[nodiscard]] Section range(Index first, Index rows) const;

 private:
  const std::byte* data_;
  Index row_bytes_, stride_;
};

// Sizes that are expected of a section.
[[nodiscard]] inline Section sized(Index rows, Index row_bytes) {
  Section section;
  section.rows = rows, section.row_bytes = rows == 0 ? 0 : row_bytes;
  return section;
}

// Writes `bytes` of a packed row into row `row` of a tensor, whatever its strides.
void store_row(const std::byte* from, const Tensor& to, Index row);

// Writes zero into the padding of the zones and, where the profile says so, beyond them
// (EXCHANGE-3, PERMUTATION-8).
void zero_unused(const Handle& handle, const Tensor& rows);
void fill_unused(const Handle& handle, const Tensor& integers, std::int32_t value);

// True when the plan lets rows move; false when nothing is to be written (EXCHANGE-11). Throws
// Refusal without a plan, after an overflow, and on a failed handle.
[[nodiscard]] bool may_move(const Handle& handle);
// tensor.shape[0] >= the rows of the plan.
void check_rows(const Handle& handle, const Tensor& rows, const char* name);
// "cpu/exchange/threads".
[[nodiscard]] std::string path_text(const Handle& handle);

}  // namespace dropless::cpu::exchange
