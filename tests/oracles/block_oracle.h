// SPDX-License-Identifier: Apache-2.0
// MXFP8 quantisation of whole matrices, a second implementation from MXFP8-1 to 8: each element
// looks at its own block from scratch, and each byte of a scale tensor is found by walking the
// tensor in memory order and asking what stands there.
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dropless::oracles {

using Index = std::int64_t;

struct BlockProblem {
  Index rows = 0, columns = 0;
  std::vector<double> x;
  std::vector<Index> offsets, counts;  // empty: one group, full zones
  int direction = DROPLESS_BLOCKS_ROW_WISE;
  int scale_layout = DROPLESS_SCALES_LINEAR;
  dropless_dtype format = DROPLESS_E4M3;
  int scale_rule = DROPLESS_SCALE_RCEIL;
  int special_values = DROPLESS_SPECIAL_ELEMENT;
  bool square_tiles = false;
  std::uint8_t padding_byte = 0;
};

// A block along the contraction: `outer` is the row (row-wise) or the column (column-wise), `block`
// counts the blocks of its row or of its column inside the group.
struct BlockPlace {
  Index group, outer, block;
};

// What stands at every byte of the scale tensor; nothing for padding inside packed tiles.
struct ScaleSlot {
  std::optional<BlockPlace> place;  // group -1: a row beyond offsets[G], not judged
};
std::vector<ScaleSlot> scale_slots(const BlockProblem& problem);

struct ExpectedCode {
  enum class Kind { exactly, any_nan, zero, not_judged } kind;
  std::uint8_t code = 0;
};
std::vector<ExpectedCode> expected_codes(const BlockProblem& problem);

// Byte at each slot; nothing where it is not judged.
std::vector<std::optional<std::uint8_t>> expected_scales(const BlockProblem& problem);

// Position in the scale tensor of the scale of an element, -1 beyond offsets[G].
Index expected_position(const BlockProblem& problem, const std::vector<ScaleSlot>& slots, Index row,
                        Index column);

// Group of a row and whether the row is real.
struct RowPlace {
  Index group = -1, row_in_group = -1;
  bool real = false;
};
RowPlace place_of_row(const BlockProblem& problem, Index row);

}  // namespace dropless::oracles
