// SPDX-License-Identifier: Apache-2.0
// Shapes and group bases of scale tensors.
#include "optimized/cpu/scales.h"

namespace dropless::cpu {
namespace {

constexpr Dtypes scale_dtypes = {DROPLESS_E8M0};

}  // namespace

ScaleMap::ScaleMap(const dropless_tensor* scales, const char* name, bool column_wise,
                   dropless_scale_layout layout, Index rows, Index columns, const Zones& zones)
    : column_wise_(column_wise), packed_(layout == DROPLESS_SCALES_PACKED) {
  Index linear_rows = 0, packed_total = 0;
  const Index row_blocks = ceil_div(columns, DROPLESS_BLOCK_SIZE);
  for (Index g = 0; g < zones.groups(); ++g) {
    const Index zone = zones.end(g) - zones.first(g);
    const Index zone_blocks = ceil_div(zone, DROPLESS_BLOCK_SIZE);
    blocks_.push_back(column_wise ? zone_blocks : row_blocks);
    outer_.push_back(column_wise ? columns : zone);
    starts_.push_back(packed_ ? packed_total : column_wise ? linear_rows : zones.first(g));
    linear_rows += zone_blocks;
    packed_total += packed_bytes(outer_.back(), blocks_.back());
  }
  if (packed_) {
    const Tensor given = tensor(scales, name, scale_dtypes, {any});
    if (given.shape[0] < packed_total) refuse(std::string(name) + ": too short for packed scales");
    base_ = reinterpret_cast<std::uint8_t*>(given.data);
    strides_[0] = given.strides[0];
    return;
  }
  const Tensor given = column_wise ? tensor(scales, name, scale_dtypes, {any, columns})
                                   : tensor(scales, name, scale_dtypes, {rows, row_blocks});
  if (column_wise && given.shape[0] < linear_rows) {
    refuse(std::string(name) + ": too few rows of column-wise scales");
  }
  base_ = reinterpret_cast<std::uint8_t*>(given.data);
  strides_[0] = given.strides[0];
  strides_[1] = given.strides[1];
  for (Index& start : starts_) start *= strides_[0];
}

ScaleMap ScaleMap::stacked(const dropless_tensor* scales, const char* name, bool column_wise,
                           dropless_scale_layout layout, Index experts, Index rows, Index columns) {
  ScaleMap map;
  map.column_wise_ = column_wise;
  map.packed_ = layout == DROPLESS_SCALES_PACKED;
  const Index across = column_wise ? columns : rows;
  const Index blocks = ceil_div(column_wise ? rows : columns, DROPLESS_BLOCK_SIZE);
  const Index bytes = packed_bytes(across, blocks);
  Index step = bytes;
  if (map.packed_) {
    const Tensor given = tensor(scales, name, scale_dtypes, {any});
    if (given.shape[0] < bytes * experts) {
      refuse(std::string(name) + ": too short for packed scales");
    }
    map.base_ = reinterpret_cast<std::uint8_t*>(given.data);
    map.strides_[0] = given.strides[0];
  } else {
    const Tensor given = column_wise
                             ? tensor(scales, name, scale_dtypes, {experts, blocks, columns})
                             : tensor(scales, name, scale_dtypes, {experts, rows, blocks});
    map.base_ = reinterpret_cast<std::uint8_t*>(given.data);
    step = given.strides[0];
    map.strides_[0] = given.strides[1];
    map.strides_[1] = given.strides[2];
  }
  for (Index e = 0; e < experts; ++e) {
    map.starts_.push_back(e * step);
    map.blocks_.push_back(blocks);
    map.outer_.push_back(across);
  }
  return map;
}

void ScaleMap::clear_group(Index g) const {
  const Index bytes = packed_bytes(outer_[index(g)], blocks_[index(g)]);
  std::uint8_t* first = base_ + starts_[index(g)] * strides_[0];
  for (Index i = 0; i < bytes; ++i) first[i * strides_[0]] = 0;
}

}  // namespace dropless::cpu
