// SPDX-License-Identifier: Apache-2.0
// Where the scale byte of a block lies: linear and packed layouts (MXFP8-6, MXFP8-7).
#pragma once

#include <vector>

#include "optimized/cpu/arguments.h"

namespace dropless::cpu {

[[nodiscard]] constexpr Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}

// 128 x 4 tiles of 512 bytes, tiles of one row of tiles next to each other (MXFP8-7).
[[nodiscard]] constexpr Index packed_offset(Index outer, Index block, Index blocks) {
  return 512 * (outer / 128 * ceil_div(blocks, 4) + block / 4) + outer % 32 * 16 +
         outer % 128 / 32 * 4 + block % 4;
}
[[nodiscard]] constexpr Index packed_bytes(Index outer, Index blocks) {
  return 512 * ceil_div(outer, 128) * ceil_div(blocks, 4);
}

// The scales of one direction of a matrix [rows, columns] whose rows are cut into zones.
class ScaleMap {
 public:
  // Checks the shape of the tensor (GENERAL-3): linear [rows, blocks] or, column-wise, at least
  // [blocks of all zones, columns]; packed: rank 1, long enough.
  ScaleMap(const dropless_tensor* scales, const char* name, bool column_wise,
           dropless_scale_layout layout, Index rows, Index columns, const Zones& zones);
  // One matrix of E stacked weights [E, rows, columns], linear scales being rank 3.
  static ScaleMap stacked(const dropless_tensor* scales, const char* name, bool column_wise,
                          dropless_scale_layout layout, Index experts, Index rows, Index columns);

  [[nodiscard]] bool column_wise() const { return column_wise_; }
  [[nodiscard]] bool packed() const { return packed_; }
  // Packed: writes 0 into every byte of group g, its padding included (MXFP8-7).
  void clear_group(Index g) const;
  // Address of the scale of (row of the group, column block) row-wise, or (row block, column)
  // column-wise.
  [[nodiscard]] std::uint8_t* at(Index g, Index row, Index column) const {
    if (packed_) {
      const Index offset = column_wise_ ? packed_offset(column, row, blocks_[index(g)])
                                        : packed_offset(row, column, blocks_[index(g)]);
      return base_ + (starts_[index(g)] + offset) * strides_[0];
    }
    return base_ + (starts_[index(g)] + row * strides_[0] + column * strides_[1]);
  }
  // Row-wise: distance from the scale of a row's first block to that of another block.
  [[nodiscard]] Index block_step(Index block) const {
    return packed_ ? (block / 4 * 512 + block % 4) * strides_[0] : block * strides_[1];
  }

 private:
  ScaleMap() = default;
  static std::size_t index(Index g) { return static_cast<std::size_t>(g); }

  std::uint8_t* base_ = nullptr;
  bool column_wise_ = false, packed_ = false;
  Index strides_[2] = {1, 1};
  std::vector<Index> starts_;  // of each group: byte offset (linear) or packed position
  std::vector<Index> blocks_;  // blocks along the contraction of each group
  std::vector<Index> outer_;   // extent across the contraction of each group
};

}  // namespace dropless::cpu
