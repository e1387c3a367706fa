// SPDX-License-Identifier: Apache-2.0
// MXFP8 codes back to values: exact in fp32 but for overflow, then rounded to bf16 where that is
// asked for. MXFP8-5 to 8.
//
// A block of four warps owns 128 rows x 128 columns of a group, a warp 32 rows of them, a lane four
// columns. Floor: 32768 x 7168 to bf16: 235 MB + 7 MB read, 470 MB written, 166 us at 4.3 TB/s.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/mxfp8_elements.cuh"
#include "optimized/cuda/mxfp8_scales.cuh"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

constexpr int block_threads = 128;
constexpr int lane_columns = 4;
constexpr int rows_at_once = 8;

struct Dequantize {
  Tensor codes, y;
  ScaleBytes scales;
  RowTiles tiles;
  bool e5m2, wide;
  const int* refusal;
};

// Scale byte of (row of the tile, column of the matrix).
__device__ __forceinline__ std::uint32_t byte_at(const ScaleBytes& s, const RowTile& tile,
                                                 Index packed_base, int row, Index column) {
  if (s.packed) {
    const int inside = static_cast<int>(column % tile_columns);
    const int place = s.column_wise ? packed_place(inside, row / stripe_rows)
                                    : packed_place(row, inside / DROPLESS_BLOCK_SIZE);
    return s.packed_byte(packed_base + place);
  }
  if (s.column_wise) {
    const Index stripe = tile.stripes_before + tile.local * 4 + row / stripe_rows;
    return s.bytes.as<std::uint8_t>(stripe, column);
  }
  return s.bytes.as<std::uint8_t>(tile.first + row, column / DROPLESS_BLOCK_SIZE);
}

__device__ __forceinline__ void store_four(const Tensor& y, Index row, Index column,
                                           const float (&v)[4]) {
  std::byte* at = y.data + (row * y.strides[0] + column) * y.element;
  if (y.dtype == DROPLESS_BF16) {
    *reinterpret_cast<uint2*>(at) =
        make_uint2(round_bf16_pair(v[0], v[1]), round_bf16_pair(v[2], v[3]));
  } else {
    *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
  }
}

__global__ void __launch_bounds__(block_threads) dequantize_kernel(Dequantize d) {
  if (*d.refusal != 0) return;
  const Index columns = d.y.shape[1], column_tiles = ceil_div(columns, tile_columns);
  RowTile tile;
  if (!d.tiles.get(blockIdx.x / column_tiles, tile)) return;
  const Index column_tile = blockIdx.x % column_tiles;
  const Index column = column_tile * tile_columns + threadIdx.x % warp_size * lane_columns;
  if (column >= columns) return;
  const Index packed_base = d.scales.packed ? d.scales.packed_tile(tile, column_tile) : 0;
  const int first = static_cast<int>(threadIdx.x) / warp_size * stripe_rows;
  const int end = min(first + stripe_rows, tile.rows);
  const int wanted = static_cast<int>(min(columns - column, Index{lane_columns}));
  float scale[lane_columns] = {};  // column-wise blocks: the same for all rows of the stripe
#pragma unroll
  for (int k = 0; k < lane_columns; ++k) {
    if (d.scales.column_wise && first < end && k < wanted) {
      scale[k] = scale_value(byte_at(d.scales, tile, packed_base, first, column + k));
    }
  }
#pragma unroll 1
  for (int start = first; start < end; start += rows_at_once) {
    std::uint32_t words[rows_at_once] = {}, bytes[rows_at_once] = {};
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      const int row = start + i;
      if (row >= min(end, tile.real)) continue;
      if (d.wide) {
        words[i] = *reinterpret_cast<const std::uint32_t*>(
            d.codes.data + (tile.first + row) * d.codes.strides[0] + column);
      } else {
#pragma unroll
        for (int k = 0; k < lane_columns; ++k) {
          if (k >= wanted) continue;
          const std::uint32_t code = d.codes.as<std::uint8_t>(tile.first + row, column + k);
          words[i] |= code << (8 * k);
        }
      }
      if (!d.scales.column_wise) bytes[i] = byte_at(d.scales, tile, packed_base, row, column);
    }
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      const int row = start + i;
      if (row >= end) continue;
      float v[lane_columns] = {};
      if (row < tile.real) {
        const float of_row = scale_value(bytes[i]);
#pragma unroll
        for (int k = 0; k < lane_columns; ++k) {
          v[k] = decode(words[i] >> (8 * k), d.e5m2) * (d.scales.column_wise ? scale[k] : of_row);
        }
      }
      if (d.wide) {
        store_four(d.y, tile.first + row, column, v);
      } else {
#pragma unroll
        for (int k = 0; k < lane_columns; ++k) {
          if (k < wanted) store_float(d.y, v[k], tile.first + row, column + k);
        }
      }
    }
  }
}

}  // namespace

void dequantize(Call& call, const dropless_dequantize_args& args) {
  Dequantize d = {};
  d.codes = tensor(args.codes, "codes", code_dtypes, {any, any});
  const Index rows = d.codes.shape[0], columns = d.codes.shape[1];
  refuse_if(
      args.direction != DROPLESS_BLOCKS_ROW_WISE && args.direction != DROPLESS_BLOCKS_COLUMN_WISE,
      "direction: unknown");
  refuse_if(
      args.scale_layout != DROPLESS_SCALES_LINEAR && args.scale_layout != DROPLESS_SCALES_PACKED,
      "scale_layout: unknown");
  d.y = tensor(args.y, "y", floats, {rows, columns});
  TileLimits limits;
  d.scales = read_scales(args.scales, "scales", args.direction == DROPLESS_BLOCKS_COLUMN_WISE,
                         args.scale_layout, rows, columns, limits);
  d.e5m2 = d.codes.dtype == DROPLESS_E5M2;
  d.wide = columns % lane_columns == 0 && d.codes.rows_aligned_to(lane_columns) &&
           d.y.rows_aligned_to(lane_columns * d.y.element);
  const Zones zones = read_zones(call, args.offsets, args.counts, rows);
  d.tiles = make_row_tiles(call, zones, limits);
  d.refusal = call.refusal_word();
  if (d.codes.size() > 0) {
    const unsigned blocks = grid_size(d.tiles.most * ceil_div(columns, tile_columns));
    dequantize_kernel<<<blocks, block_threads, 0, call.stream()>>>(d);
    check_launch("dequantize");
  }
  call.ran("mxfp8");
}

}  // namespace dropless::cuda
