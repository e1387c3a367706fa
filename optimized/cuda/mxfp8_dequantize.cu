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

// Where a lane stands: up to 32 rows x 4 columns.
struct Place {
  Index first;  // row of the matrix
  int stripe;   // of the tile
  int rows, real;
  Index column, column_tile;
  int columns;  // 1 .. 4
};

// First scale byte of the lane, and the steps to the next row or column.
struct ScalePlace {
  const std::uint8_t* at;
  Index step;

  __device__ ScalePlace(const ScaleBytes& s, const RowTile& tile, const Place& p) {
    const std::uint8_t* data = reinterpret_cast<const std::uint8_t*>(s.bytes.data);
    const int inside = static_cast<int>(p.column % tile_columns);
    if (s.packed) {
      const int place = s.column_wise
                            ? packed_place(inside, p.stripe)
                            : packed_place(p.stripe * stripe_rows, inside / DROPLESS_BLOCK_SIZE);
      at = data + (s.packed_tile(tile, p.column_tile) + place) * s.bytes.strides[0];
      step = 16 * s.bytes.strides[0];  // to the next of 32 rows, or of 32 columns
    } else if (s.column_wise) {
      const Index stripe = tile.stripes_before + tile.local * 4 + p.stripe;
      at = data + stripe * s.bytes.strides[0] + p.column * s.bytes.strides[1];
      step = s.bytes.strides[1];
    } else {
      at =
          data + p.first * s.bytes.strides[0] + p.column / DROPLESS_BLOCK_SIZE * s.bytes.strides[1];
      step = s.bytes.strides[0];
    }
  }
};

template <bool wide>
__device__ __forceinline__ void store_four(dropless_dtype dtype, std::byte* at, Index column_bytes,
                                           int columns, const float (&v)[lane_columns]) {
  if constexpr (wide) {
    if (dtype == DROPLESS_BF16) {
      *reinterpret_cast<uint2*>(at) =
          make_uint2(round_bf16_pair(v[0], v[1]), round_bf16_pair(v[2], v[3]));
    } else {
      *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < lane_columns; ++k) {
      std::byte* to = at + k * column_bytes;
      if (k >= columns) continue;
      if (dtype == DROPLESS_BF16) {
        *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(round_bf16(v[k]));
      } else {
        *reinterpret_cast<float*>(to) = v[k];
      }
    }
  }
}

template <bool wide>
__device__ __forceinline__ std::uint32_t load_codes(const std::byte* at, Index column_bytes,
                                                    int columns) {
  std::uint32_t word = 0;
  if constexpr (wide) {
    word = __ldg(reinterpret_cast<const std::uint32_t*>(at));
  } else {
#pragma unroll
    for (int k = 0; k < lane_columns; ++k) {
      if (k < columns) {
        word |= static_cast<std::uint32_t>(
                    *reinterpret_cast<const std::uint8_t*>(at + k * column_bytes))
                << (8 * k);
      }
    }
  }
  return word;
}

template <bool e5m2, bool wide>
__device__ __forceinline__ void dequantize_rows(const Dequantize& d, const RowTile& tile,
                                                const Place& p) {
  const Index code_columns = d.codes.strides[1], y_columns = d.y.strides[1] * d.y.element;
  const Index code_row = d.codes.strides[0], y_row = d.y.strides[0] * d.y.element;
  const std::byte* codes = d.codes.data + p.first * code_row + p.column * (wide ? 1 : code_columns);
  std::byte* y = d.y.data + p.first * y_row + p.column * (wide ? d.y.element : y_columns);
  const ScalePlace scales(d.scales, tile, p);
  const std::uint8_t* scale_at = scales.at;
  const bool column_wise = d.scales.column_wise;
  float scale[lane_columns] = {};  // column-wise blocks: the same for all rows of the stripe
#pragma unroll
  for (int k = 0; k < lane_columns; ++k) {
    if (column_wise && k < p.columns) scale[k] = scale_value(__ldg(scale_at + k * scales.step));
  }
#pragma unroll 1
  for (int start = 0; start < p.rows; start += rows_at_once) {
    std::uint32_t words[rows_at_once], bytes[rows_at_once];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      words[i] = bytes[i] = 0;
      if (start + i < p.real) {
        words[i] = load_codes<wide>(codes, code_columns, p.columns);
        if (!column_wise) bytes[i] = __ldg(scale_at);
      }
      codes += code_row;
      scale_at += scales.step;
    }
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      if (!column_wise) scale[0] = scale[1] = scale[2] = scale[3] = scale_value(bytes[i]);
      const float2 low = decode_pair<e5m2>(words[i]), high = decode_pair<e5m2>(words[i] >> 16);
      float v[lane_columns] = {low.x * scale[0], low.y * scale[1], high.x * scale[2],
                               high.y * scale[3]};
      if (start + i >= p.real) {  // a scale of NaN must not reach the zero of padding
#pragma unroll
        for (int k = 0; k < lane_columns; ++k) v[k] = 0;
      }
      if (start + i < p.rows) store_four<wide>(d.y.dtype, y, y_columns, p.columns, v);
      y += y_row;
    }
  }
}

__global__ void __launch_bounds__(block_threads) dequantize_kernel(Dequantize d) {
  const bool refused = *d.refusal != 0;
  const unsigned column_tiles = static_cast<unsigned>(ceil_div(d.y.shape[1], tile_columns));
  RowTile tile;
  const bool there = d.tiles.get(blockIdx.x / column_tiles, tile);
  if (refused || !there) return;
  Place p;
  p.stripe = static_cast<int>(threadIdx.x) / warp_size;
  p.first = tile.first + p.stripe * stripe_rows;
  p.rows = min(tile.rows - p.stripe * stripe_rows, stripe_rows);
  p.real = min(tile.real - p.stripe * stripe_rows, stripe_rows);
  p.column_tile = blockIdx.x % column_tiles;
  p.column = p.column_tile * tile_columns + threadIdx.x % warp_size * lane_columns;
  p.columns = static_cast<int>(min(d.y.shape[1] - p.column, Index{lane_columns}));
  if (p.columns <= 0 || p.rows <= 0) return;
  if (d.e5m2) {
    d.wide ? dequantize_rows<true, true>(d, tile, p) : dequantize_rows<true, false>(d, tile, p);
  } else {
    d.wide ? dequantize_rows<false, true>(d, tile, p) : dequantize_rows<false, false>(d, tile, p);
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
