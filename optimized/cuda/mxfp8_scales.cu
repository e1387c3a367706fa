// SPDX-License-Identifier: Apache-2.0
// Shapes of scale tensors.
#include "optimized/cuda/mxfp8_scales.cuh"

namespace dropless::cuda {

ScaleBytes read_scales(const dropless_tensor* scales, const char* name, bool column_wise,
                       dropless_scale_layout layout, Index rows, Index columns,
                       TileLimits& limits) {
  ScaleBytes result;
  result.column_wise = column_wise;
  result.packed = layout == DROPLESS_SCALES_PACKED;
  result.column_tiles = ceil_div(columns, tile_columns);
  if (result.packed) {
    result.bytes = tensor(scales, name, {DROPLESS_E8M0}, {any});
    const Index of_row_tile = packed_tile_bytes * result.column_tiles;
    if (of_row_tile > 0) {
      limits.tiles = std::min(limits.tiles, result.bytes.shape[0] / of_row_tile);
    }
  } else if (column_wise) {
    result.bytes = tensor(scales, name, {DROPLESS_E8M0}, {any, columns});
    limits.stripes = std::min(limits.stripes, result.bytes.shape[0]);
  } else {
    result.bytes =
        tensor(scales, name, {DROPLESS_E8M0}, {rows, ceil_div(columns, DROPLESS_BLOCK_SIZE)});
  }
  return result;
}

}  // namespace dropless::cuda
