// SPDX-License-Identifier: Apache-2.0
// The second implementation of MXFP8 quantisation.
#include "tests/oracles/block_oracle.h"

#include <cmath>
#include <limits>

#include "tests/oracles/scale_rules.h"

namespace dropless::oracles {
namespace {

bool row_wise(const BlockProblem& problem) {
  return problem.direction == DROPLESS_BLOCKS_ROW_WISE;
}

Index group_count(const BlockProblem& problem) {
  return problem.offsets.empty() ? 1 : static_cast<Index>(problem.offsets.size()) - 1;
}
Index first_row(const BlockProblem& problem, Index group) {
  return problem.offsets.empty() ? 0 : problem.offsets.at(static_cast<std::size_t>(group));
}
Index zone_size(const BlockProblem& problem, Index group) {
  if (problem.offsets.empty()) return problem.rows;
  return problem.offsets.at(static_cast<std::size_t>(group + 1)) - first_row(problem, group);
}
Index real_rows(const BlockProblem& problem, Index group) {
  return problem.counts.empty() ? zone_size(problem, group)
                                : problem.counts.at(static_cast<std::size_t>(group));
}

Index blocks_in(Index length) {
  return (length + 31) / 32;
}

// Outer extent and number of blocks along the contraction of a group's scale matrix.
Index outer_extent(const BlockProblem& problem, Index group) {
  return row_wise(problem) ? zone_size(problem, group) : problem.columns;
}
Index block_extent(const BlockProblem& problem, Index group) {
  return blocks_in(row_wise(problem) ? problem.columns : zone_size(problem, group));
}

struct BlockContents {
  double amax = 0;  // over the real elements that are not NaN
  bool has_nan = false, has_infinity = false;
};

BlockContents look_at(const BlockProblem& problem, const BlockPlace& place) {
  // Half-open ranges of rows (in the group) and columns that share the scale.
  Index row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  if (row_wise(problem)) {
    row_begin = problem.square_tiles ? place.outer / 32 * 32 : place.outer;
    row_end = problem.square_tiles ? row_begin + 32 : row_begin + 1;
    column_begin = place.block * 32;
    column_end = column_begin + 32;
  } else {
    row_begin = place.block * 32;
    row_end = row_begin + 32;
    column_begin = problem.square_tiles ? place.outer / 32 * 32 : place.outer;
    column_end = problem.square_tiles ? column_begin + 32 : column_begin + 1;
  }
  BlockContents contents;
  for (Index r = row_begin; r < row_end && r < real_rows(problem, place.group); ++r) {
    for (Index c = column_begin; c < column_end && c < problem.columns; ++c) {
      const Index index = (first_row(problem, place.group) + r) * problem.columns + c;
      const double value = problem.x.at(static_cast<std::size_t>(index));
      if (std::isnan(value)) {
        contents.has_nan = true;
      } else if (std::fabs(value) > contents.amax) {
        contents.amax = std::fabs(value);
      }
      contents.has_infinity = contents.has_infinity || std::isinf(value);
    }
  }
  return contents;
}

std::uint8_t byte_of(const BlockProblem& problem, const BlockPlace& place) {
  if (row_wise(problem) && place.outer >= real_rows(problem, place.group)) return 0;  // MXFP8-8
  const BlockContents contents = look_at(problem, place);
  const bool special = contents.has_nan || contents.has_infinity;
  if (special && problem.special_values == DROPLESS_SPECIAL_BLOCK) return 255;
  return scale_byte(contents.amax, problem.format, problem.scale_rule);
}

// MXFP8-7, read backwards: which (outer, block) stands at byte `position` of a 512-byte tile.
struct TilePlace {
  Index outer, block;
};
TilePlace inside_tile(Index position) {
  const Index line = position / 16;         // 32 lines of 16 bytes
  const Index quarter = position % 16 / 4;  // four times 32 outer indices
  return {quarter * 32 + line, position % 4};
}

void append_packed(const BlockProblem& problem, Index group, std::vector<ScaleSlot>& slots) {
  const Index outer = outer_extent(problem, group);
  const Index blocks = block_extent(problem, group);
  for (Index tile_row = 0; tile_row * 128 < outer; ++tile_row) {
    for (Index tile_column = 0; tile_column * 4 < blocks; ++tile_column) {
      for (Index position = 0; position < 512; ++position) {
        const TilePlace inside = inside_tile(position);
        const BlockPlace place = {group, tile_row * 128 + inside.outer,
                                  tile_column * 4 + inside.block};
        const bool exists = place.outer < outer && place.block < blocks;
        slots.push_back({exists ? std::optional(place) : std::nullopt});
      }
    }
  }
}

}  // namespace

RowPlace place_of_row(const BlockProblem& problem, Index row) {
  for (Index group = 0; group < group_count(problem); ++group) {
    const Index inside = row - first_row(problem, group);
    if (inside >= 0 && inside < zone_size(problem, group)) {
      return {group, inside, inside < real_rows(problem, group)};
    }
  }
  return {};
}

std::vector<ScaleSlot> scale_slots(const BlockProblem& problem) {
  std::vector<ScaleSlot> slots;
  if (problem.scale_layout == DROPLESS_SCALES_PACKED) {
    for (Index group = 0; group < group_count(problem); ++group) {
      append_packed(problem, group, slots);
    }
  } else if (row_wise(problem)) {
    for (Index row = 0; row < problem.rows; ++row) {
      const RowPlace place = place_of_row(problem, row);
      for (Index block = 0; block < blocks_in(problem.columns); ++block) {
        slots.push_back({BlockPlace{place.group, place.row_in_group, block}});
      }
    }
  } else {
    for (Index group = 0; group < group_count(problem); ++group) {
      for (Index block = 0; block < block_extent(problem, group); ++block) {
        for (Index column = 0; column < problem.columns; ++column) {
          slots.push_back({BlockPlace{group, column, block}});
        }
      }
    }
  }
  return slots;
}

std::vector<std::optional<std::uint8_t>> expected_scales(const BlockProblem& problem) {
  std::vector<std::optional<std::uint8_t>> bytes;
  for (const ScaleSlot& slot : scale_slots(problem)) {
    if (!slot.place) {
      bytes.emplace_back(problem.padding_byte);
    } else if (slot.place->group < 0) {
      bytes.emplace_back(std::nullopt);
    } else {
      bytes.emplace_back(byte_of(problem, *slot.place));
    }
  }
  return bytes;
}

std::vector<ExpectedCode> expected_codes(const BlockProblem& problem) {
  using Kind = ExpectedCode::Kind;
  std::vector<ExpectedCode> codes;
  for (Index row = 0; row < problem.rows; ++row) {
    const RowPlace place = place_of_row(problem, row);
    for (Index column = 0; column < problem.columns; ++column) {
      if (place.group < 0) {
        codes.push_back({Kind::not_judged});
        continue;
      }
      if (!place.real) {
        codes.push_back({Kind::zero});
        continue;
      }
      const BlockPlace block = row_wise(problem)
                                   ? BlockPlace{place.group, place.row_in_group, column / 32}
                                   : BlockPlace{place.group, column, place.row_in_group / 32};
      const std::uint8_t byte = byte_of(problem, block);
      if (byte == 255) {
        codes.push_back({Kind::not_judged});
        continue;
      }
      const double x = problem.x.at(static_cast<std::size_t>(row * problem.columns + column));
      const auto code = encode(x, byte, problem.format);
      codes.push_back({code.nan ? Kind::any_nan : Kind::exactly,
                       static_cast<std::uint8_t>(code.nan ? 0 : code.code)});
    }
  }
  return codes;
}

Index expected_position(const BlockProblem& problem, const std::vector<ScaleSlot>& slots, Index row,
                        Index column) {
  const RowPlace place = place_of_row(problem, row);
  if (place.group < 0) return -1;
  const Index outer = row_wise(problem) ? place.row_in_group : column;
  const Index block = (row_wise(problem) ? column : place.row_in_group) / 32;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto& at = slots[i].place;
    if (at && at->group == place.group && at->outer == outer && at->block == block) {
      return static_cast<Index>(i);
    }
  }
  return -2;
}

}  // namespace dropless::oracles
