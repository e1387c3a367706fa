// SPDX-License-Identifier: Apache-2.0
// Groups of rows, and the linear and packed order of scale bytes: MXFP8-6 and 7.
#include "reference/mxfp8_layout.h"

#include "reference/checks.h"

namespace dropless::reference {
namespace {

constexpr Index kTileOuter = 128;  // a packed tile holds 128 x 4 scales
constexpr Index kTileBlocks = 4;
constexpr Index kTileBytes = kTileOuter * kTileBlocks;

void check_zone(const Zone& zone, Index rows, std::size_t group) {
  const std::string where = "group " + std::to_string(group);
  if (zone.end < zone.first) {
    throw Refused("offsets fall from " + std::to_string(zone.first) + " to " +
                  std::to_string(zone.end) + " at " + where);
  }
  if (zone.end > rows) {
    throw Refused("offset " + std::to_string(zone.end) + " of " + where + " is beyond the " +
                  std::to_string(rows) + " rows of the buffer");
  }
  if (zone.real_end < zone.first || zone.real_end > zone.end) {
    throw Refused("count " + std::to_string(zone.real_end - zone.first) + " of " + where +
                  " is outside its zone of " + std::to_string(zone.end - zone.first) + " rows");
  }
}

}  // namespace

std::vector<Zone> zones(Index rows, const Groups& groups) {
  if (rows < 0) throw Refused("negative number of rows");
  if (groups.offsets.empty()) {
    if (groups.counts.empty()) return {{0, rows, rows}};
    check_size(groups.counts.size(), 1, "counts");
    const Zone whole{0, groups.counts[0], rows};
    check_zone(whole, rows, 0);
    return {whole};
  }
  const std::size_t count = groups.offsets.size() - 1;
  if (!groups.counts.empty()) check_size(groups.counts.size(), static_cast<Index>(count), "counts");
  if (groups.offsets[0] != 0) {
    throw Refused("offsets begin with " + std::to_string(groups.offsets[0]) + ", not with 0");
  }
  std::vector<Zone> result;
  for (std::size_t g = 0; g < count; ++g) {
    const Index first = groups.offsets[g];
    const Index end = groups.offsets[g + 1];
    const Zone zone{first, groups.counts.empty() ? end : first + groups.counts[g], end};
    check_zone(zone, rows, g);
    result.push_back(zone);
  }
  return result;
}

std::vector<Index> weight_offsets(Index num_experts, Index out) {
  std::vector<Index> offsets;
  for (Index e = 0; e <= num_experts; ++e) offsets.push_back(e * out);
  return offsets;
}

Index packed_offset(Index outer, Index block, Index blocks) {
  const Index tile = outer / kTileOuter * ceil_div(blocks, kTileBlocks) + block / kTileBlocks;
  return kTileBytes * tile + (outer % 32) * 16 + (outer % kTileOuter) / 32 * 4 +
         block % kTileBlocks;
}

Index packed_bytes(Index outer, Index blocks) {
  return kTileBytes * ceil_div(outer, kTileOuter) * ceil_div(blocks, kTileBlocks);
}

ScaleLayout::ScaleLayout(int direction, int scale_layout, Index rows, Index columns,
                         const Groups& groups)
    : row_wise_(direction == DROPLESS_BLOCKS_ROW_WISE),
      packed_(scale_layout == DROPLESS_SCALES_PACKED),
      columns_(columns) {
  if (!row_wise_ && direction != DROPLESS_BLOCKS_COLUMN_WISE) throw Refused("unknown direction");
  if (!packed_ && scale_layout != DROPLESS_SCALES_LINEAR) throw Refused("unknown scale layout");
  if (columns < 0) throw Refused("negative number of columns");
  for (const Zone& zone : zones(rows, groups)) {
    groups_.push_back({zone, bytes_});
    bytes_ += group_bytes(zone);
  }
  // Linear row-wise scales have the rows of the matrix, those beyond the last zone included.
  if (row_wise_ && !packed_) bytes_ = rows * ceil_div(columns, kBlock);
}

Index ScaleLayout::group_bytes(const Zone& zone) const {
  const Index zone_rows = zone.end - zone.first;
  const Index outer = row_wise_ ? zone_rows : columns_;
  const Index blocks = ceil_div(row_wise_ ? columns_ : zone_rows, kBlock);
  return packed_ ? packed_bytes(outer, blocks) : outer * blocks;
}

Index ScaleLayout::position(const ScaleGroup& group, Index row, Index column) const {
  const Index zone_row = row - group.zone.first;
  if (row_wise_) {
    const Index blocks = ceil_div(columns_, kBlock);
    if (packed_) return group.base + packed_offset(zone_row, column / kBlock, blocks);
    return group.base + zone_row * blocks + column / kBlock;
  }
  const Index block = zone_row / kBlock;
  if (!packed_) return group.base + block * columns_ + column;
  const Index blocks = ceil_div(group.zone.end - group.zone.first, kBlock);
  return group.base + packed_offset(column, block, blocks);
}

Index scale_tensor_bytes(int direction, int scale_layout, Index rows, Index columns,
                         const Groups& groups) {
  return ScaleLayout(direction, scale_layout, rows, columns, groups).bytes();
}

Index scale_position(int direction, int scale_layout, Index rows, Index columns, Index row,
                     Index column, const Groups& groups) {
  const ScaleLayout layout(direction, scale_layout, rows, columns, groups);
  for (const ScaleGroup& group : layout.groups()) {
    if (row >= group.zone.first && row < group.zone.end) return layout.position(group, row, column);
  }
  return -1;
}

}  // namespace dropless::reference
