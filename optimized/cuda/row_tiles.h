// SPDX-License-Identifier: Apache-2.0
// Zones cut into tiles of 128 rows on the device: the unit in which MXFP8 is packed (MXFP8-7).
//
// A tile has up to four stripes of 32 rows, which are one row of column-wise blocks each. Tiles of
// all groups are numbered through; an empty group has none.
#pragma once

#include <cstdint>

#include "optimized/cuda/zones.h"

namespace dropless::cuda {

constexpr int tile_rows = 128;
constexpr int stripe_rows = 32;

struct RowTile {
  Index first;           // row of the matrix
  Index tiles_before;    // of the groups before
  Index stripes_before;  // of the groups before: rows of linear column-wise scales
  Index local;           // which tile of its group
  Index group_tiles;     // of its group
  int rows;              // of the zone in this tile, 1 .. 128
  int real;              // of them real ones, 0 .. 128
};

// Kernels take it by value.
struct RowTiles {
  const RowTile* table = nullptr;  // null: one group of `rows` real rows
  const Index* count = nullptr;
  Index rows = 0;
  Index most = 0;  // tiles that there can be

#ifdef __CUDACC__
  // False where there is no tile of that number, which is below `most`.
  [[nodiscard]] __device__ __forceinline__ bool get(Index number, RowTile& tile) const {
    if (table != nullptr) {
      tile = table[number];  // read whether it is there or not: one wait instead of two
      return number < *count;
    }
    const int here = static_cast<int>(min(rows - number * tile_rows, Index{tile_rows}));
    tile = {number * tile_rows, 0, 0, number, most, here, here};
    return here > 0;
  }
#endif
};

// What the scale tensors have room for.
struct TileLimits {
  Index tiles = INT64_MAX, stripes = INT64_MAX;
};

// Enqueues the making of the table where there are zones. More tiles or stripes than the limits
// allow are refused, on the device where zones are there.
RowTiles make_row_tiles(Call& call, const Zones& zones, const TileLimits& limits = {});

}  // namespace dropless::cuda
