// SPDX-License-Identifier: Apache-2.0
// The table of row tiles, made by one block.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/elements.cuh"
#include "optimized/cuda/row_tiles.h"

namespace dropless::cuda {
namespace {

constexpr int block_threads = 512;
constexpr int block_warps = block_threads / warp_size;

// Tiles and stripes of the groups before each group, [G + 1] of each.
struct Sums {
  Index* tiles;
  Index* stripes;
};

// This thread's sums over all threads before it; total: of all.
__device__ inline Index sum_before(Index own, Index* warp_sums, Index& total) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  Index inclusive = own;
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const Index below = __shfl_up_sync(whole_warp, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == warp_size - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  Index before = inclusive - own;
  total = 0;
  for (int w = 0; w < block_warps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return before;
}

__global__ void __launch_bounds__(block_threads)
    make_tiles(Zones zones, TileLimits limits, Sums sums, RowTile* table, Index most, Index* count,
               int* refusal) {
  __shared__ Index warp_sums[2][block_warps];
  if (*refusal != 0) {
    if (threadIdx.x == 0) *count = 0;
    for (Index i = threadIdx.x; i < most; i += block_threads) table[i] = RowTile{};
    return;
  }
  const Index each = ceil_div(zones.groups, block_threads);
  const Index begin = min(threadIdx.x * each, zones.groups), end = min(begin + each, zones.groups);
  Index tiles = 0, stripes = 0;
  for (Index g = begin; g < end; ++g) {
    const Index length = zones.end(g) - zones.first(g);
    tiles += ceil_div(length, tile_rows);
    stripes += ceil_div(length, stripe_rows);
  }
  Index all_tiles, all_stripes;
  Index tiles_before = sum_before(tiles, warp_sums[0], all_tiles);
  Index stripes_before = sum_before(stripes, warp_sums[1], all_stripes);
  for (Index g = begin; g < end; ++g) {
    const Index length = zones.end(g) - zones.first(g);
    sums.tiles[g] = tiles_before;
    sums.stripes[g] = stripes_before;
    tiles_before += ceil_div(length, tile_rows);
    stripes_before += ceil_div(length, stripe_rows);
  }
  if (threadIdx.x == 0) *count = all_tiles;
  // Kernels read the entry of a tile together with the count, before they know that it is there.
  for (Index i = all_tiles + threadIdx.x; i < most; i += block_threads) table[i] = RowTile{};
  if (all_tiles > limits.tiles || all_stripes > limits.stripes) {
    if (threadIdx.x == 0) refuse_on_device(refusal, DeviceReason::scales_too_short);
    return;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (Index g = threadIdx.x / warp_size; g < zones.groups; g += block_warps) {
    const Index first = zones.first(g), length = zones.end(g) - first;
    const Index real = zones.real_end(g) - first, group_tiles = ceil_div(length, tile_rows);
    for (Index local = lane; local < group_tiles; local += warp_size) {
      const Index start = local * tile_rows;
      RowTile tile;
      tile.first = first + start;
      tile.tiles_before = sums.tiles[g];
      tile.stripes_before = sums.stripes[g];
      tile.local = local;
      tile.group_tiles = group_tiles;
      tile.rows = static_cast<int>(min(length - start, Index{tile_rows}));
      tile.real = static_cast<int>(min(max(real - start, Index{0}), Index{tile_rows}));
      table[sums.tiles[g] + local] = tile;
    }
  }
}

}  // namespace

RowTiles make_row_tiles(Call& call, const Zones& zones, const TileLimits& limits) {
  RowTiles tiles;
  tiles.rows = zones.rows;
  if (zones.offsets == nullptr && zones.counts == nullptr) {
    tiles.most = ceil_div(zones.rows, tile_rows);
    refuse_if(tiles.most > limits.tiles || ceil_div(zones.rows, stripe_rows) > limits.stripes,
              "scales: too short");
    return tiles;
  }
  // Every zone that is not empty adds at most one tile that is not full.
  tiles.most = zones.rows / tile_rows + std::min(zones.groups, zones.rows);
  const Sums sums = {call.scratch<Index>(zones.groups), call.scratch<Index>(zones.groups)};
  auto* table = call.scratch<RowTile>(tiles.most);
  auto* count = call.scratch<Index>(1);
  make_tiles<<<1, block_threads, 0, call.stream()>>>(zones, limits, sums, table, tiles.most, count,
                                                     call.refusal_word());
  check_launch("make_tiles");
  tiles.table = table;
  tiles.count = count;
  return tiles;
}

}  // namespace dropless::cuda
