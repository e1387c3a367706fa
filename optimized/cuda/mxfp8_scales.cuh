// SPDX-License-Identifier: Apache-2.0
// Where the scale bytes of a row tile lie. MXFP8-6 and 7.
//
// 128 rows and 128 columns of a group share exactly one packed tile of 512 bytes row-wise (128 rows
// x 4 blocks) and one column-wise (128 columns x 4 blocks), so that whoever owns such a square owns
// all bytes of both, padding included.
#pragma once

#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/row_tiles.h"

namespace dropless::cuda {

constexpr int tile_columns = 128;
constexpr int packed_tile_bytes = 512;

struct ScaleBytes {
  Tensor bytes;
  bool column_wise = false, packed = false;
  Index column_tiles = 0;  // ceil(columns / 128)

  // The packed tile of (row tile, column tile), as an index of its first byte.
  [[nodiscard]] __device__ __forceinline__ Index packed_tile(const RowTile& tile,
                                                             Index column_tile) const {
    const Index number =
        column_wise ? column_tiles * tile.tiles_before + column_tile * tile.group_tiles + tile.local
                    : (tile.tiles_before + tile.local) * column_tiles + column_tile;
    return number * packed_tile_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint8_t& packed_byte(Index at) const {
    return *reinterpret_cast<std::uint8_t*>(bytes.data + at * bytes.strides[0]);
  }
};

// Inside a packed tile: outer is the row (the column, column-wise), block the other way.
__device__ __forceinline__ int packed_place(int outer, int block) {
  return outer % 32 * 16 + outer / 32 * 4 + block;
}

// The scales of one direction of a matrix [rows, columns] in zones. Throws Refusal for wrong shapes
// and lowers the limits to what fits.
ScaleBytes read_scales(const dropless_tensor* scales, const char* name, bool column_wise,
                       dropless_scale_layout layout, Index rows, Index columns, TileLimits& limits);

}  // namespace dropless::cuda
