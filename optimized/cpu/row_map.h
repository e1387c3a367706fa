// SPDX-License-Identifier: Apache-2.0
// The map between (token, slot) and rows, checked once, and copies of whole rows. PERMUTATION-2, 4.
#pragma once

#include "optimized/cpu/arguments.h"
#include "optimized/cpu/scales.h"

namespace dropless::cpu {

// row_map [T,K] with entries -1 .. rows - 1. Throws Refusal otherwise.
class RowMap {
 public:
  RowMap(const dropless_tensor* row_map, Index tokens, Index top_k, Index rows);

  [[nodiscard]] Index tokens() const { return map_.shape[0]; }
  [[nodiscard]] Index top_k() const { return map_.shape[1]; }
  [[nodiscard]] Index operator()(Index token, Index slot) const {
    return map_.as<std::int64_t>(token, slot);
  }

 private:
  Tensor map_;
};

// Rows below offsets[E] that stand for no pair: source is -1 there.
class Padding {
 public:
  // Checks offsets [E+1] and source [N_max] with entries -1 .. pairs - 1 below offsets[E].
  Padding(const dropless_tensor* offsets, const dropless_tensor* source, Index rows, Index pairs);
  [[nodiscard]] const std::vector<Index>& rows() const { return rows_; }

 private:
  std::vector<Index> rows_;
};

// Byte for byte (PERMUTATION-4).
void copy_row(const Tensor& from, Index from_row, const Tensor& to, Index to_row);
void zero_row(const Tensor& to, Index row);

}  // namespace dropless::cpu
