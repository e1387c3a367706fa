// SPDX-License-Identifier: Apache-2.0
// MXFP8 quantisation, both directions from one read of the tensor. MXFP8-1 to 4 and 6 to 8.
//
// A block of four warps owns 128 rows x 128 columns of a group; a warp one stripe of 32 rows, a
// lane four columns of it, all in registers. Column-wise maxima stay in the lane; row-wise ones are
// exchanged among the eight lanes of a block of 32 columns, half of the rows at a time, until every
// lane holds the maxima of four rows.
//
// Floor: 32768 x 7168 bf16 both directions: 470 MB read, 470 MB codes and 15 MB scales written, 222
// us at 4.3 TB/s.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/mxfp8_elements.cuh"
#include "optimized/cuda/mxfp8_scales.cuh"
#include "optimized/cuda/operations.h"

namespace dropless::cuda {
namespace {

constexpr int block_threads = 128;
constexpr int lane_columns = 4;
constexpr int block_lanes = DROPLESS_BLOCK_SIZE / lane_columns;  // lanes of one row-wise block

struct Direction {
  Tensor codes;
  ScaleBytes scales;
  bool wanted = false, e5m2 = false, wide_scales = false;
};

struct Quantize {
  Tensor x;
  RowTiles tiles;
  Direction row, column;
  bool square;
  const int* refusal;
};

// Four neighbouring elements of a row, fp32 or bf16.
struct Float4 {
  float4 v;
  __device__ __forceinline__ void clear() { v = make_float4(0, 0, 0, 0); }
  __device__ __forceinline__ void load(const std::byte* at) {
    v = __ldg(reinterpret_cast<const float4*>(at));
  }
  __device__ __forceinline__ void set(int k, const std::byte* at) {
    const float value = *reinterpret_cast<const float*>(at);
    (k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w) = value;
  }
  __device__ __forceinline__ void get(float (&out)[4]) const {
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  }
};
struct Bfloat4 {
  uint2 v;
  __device__ __forceinline__ void clear() { v = make_uint2(0, 0); }
  __device__ __forceinline__ void load(const std::byte* at) {
    v = __ldg(reinterpret_cast<const uint2*>(at));
  }
  __device__ __forceinline__ void set(int k, const std::byte* at) {
    const std::uint32_t value = *reinterpret_cast<const std::uint16_t*>(at);
    std::uint32_t& word = k < 2 ? v.x : v.y;
    word |= value << (k % 2 * 16);
  }
  __device__ __forceinline__ void get(float (&out)[4]) const {
    out[0] = __uint_as_float(v.x << 16), out[1] = __uint_as_float(v.x & 0xFFFF0000u);
    out[2] = __uint_as_float(v.y << 16), out[3] = __uint_as_float(v.y & 0xFFFF0000u);
  }
};

// Larger magnitude of two bf16 pairs; a NaN loses against a number, so that it takes no part.
__device__ __forceinline__ std::uint32_t larger_pair(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 most = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                      *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&most);
}

// Lanes that differ in one bit share the rows between them: each keeps one half, its own and what
// the other has of it.
template <int mask, int half, class T, int n, class Larger>
__device__ __forceinline__ void exchange(T (&row)[n], int lane, const Larger& larger) {
  const bool upper = (lane & mask) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const T sent = upper ? row[i] : row[i + half];
    row[i] = larger(upper ? row[i + half] : row[i], __shfl_xor_sync(whole_warp, sent, mask));
  }
}

// fp32 bits of the maxima: of this lane's four columns, and of rows 4 (lane % 8) to + 3 of its
// block.
struct Maxima {
  std::uint32_t column[4], row[4];
};

__device__ __forceinline__ Maxima maxima_of(const Float4 (&x)[stripe_rows], int lane) {
  Maxima result;
  float column[4] = {}, row[stripe_rows];
#pragma unroll
  for (int i = 0; i < stripe_rows; ++i) {
    float v[4];
    x[i].get(v);
#pragma unroll
    for (int k = 0; k < 4; ++k) column[k] = fmaxf(column[k], fabsf(v[k]));
    row[i] = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  }
  exchange<4, 16>(row, lane, [](float a, float b) { return fmaxf(a, b); });
  exchange<2, 8>(row, lane, [](float a, float b) { return fmaxf(a, b); });
  exchange<1, 4>(row, lane, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    result.column[k] = __float_as_uint(column[k]);
    result.row[k] = __float_as_uint(row[k]);
  }
  return result;
}

__device__ __forceinline__ Maxima maxima_of(const Bfloat4 (&x)[stripe_rows], int lane) {
  constexpr std::uint32_t no_signs = 0x7FFF7FFFu;
  constexpr int pairs = stripe_rows / 2;
  Maxima result;
  std::uint32_t column[2] = {}, row[pairs];  // row: two rows each
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    std::uint32_t most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t low = x[2 * i + r].v.x & no_signs, high = x[2 * i + r].v.y & no_signs;
      column[0] = larger_pair(column[0], low);
      column[1] = larger_pair(column[1], high);
      most[r] = larger_pair(low, high);
    }
    row[i] =
        larger_pair(__byte_perm(most[0], most[1], 0x5410), __byte_perm(most[0], most[1], 0x7632));
  }
  exchange<4, 8>(row, lane, larger_pair);
  exchange<2, 4>(row, lane, larger_pair);
  exchange<1, 2>(row, lane, larger_pair);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int shift = k % 2 == 0 ? 16 : 0;
    result.column[k] = column[k / 2] << shift & 0xFFFF0000u;
    result.row[k] = row[k / 2] << shift & 0xFFFF0000u;
  }
  return result;
}

__device__ __forceinline__ std::uint32_t byte_of(std::uint32_t word, int k) {
  return word >> (8 * k) & 0xFFu;
}

// Where a warp stands.
struct Place {
  int lane, stripe;       // stripe of the tile
  int rows, real;         // of the zone in the stripe, and of them real ones
  int read, written;      // of them in this lane: 0 beyond the columns
  Index first;            // row of the matrix
  Index column, columns;  // this lane's first column, and all there are
  Index column_tile;
};

// The maximum of a 32 x 32 tile replaces those of its real rows and columns (MXFP8-6); what is
// padding keeps 0 (MXFP8-8).
__device__ __forceinline__ void make_square(Maxima& maxima, const Place& p) {
  std::uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (maxima.row[k] <= 0x7F800000u) most = max(most, maxima.row[k]);
  }
#pragma unroll
  for (int mask = block_lanes / 2; mask > 0; mask /= 2) {
    most = max(most, __shfl_xor_sync(whole_warp, most, mask));
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    maxima.row[k] = p.lane % block_lanes * 4 + k < p.real ? most : 0;
    maxima.column[k] = p.column + k < p.columns ? most : 0;
  }
}

// Rows of codes, one after the other.
template <bool wide>
struct CodeRows {
  std::byte* at;
  Index row_bytes, column_bytes;
  int columns;  // of this lane, 0 .. 4

  __device__ __forceinline__ CodeRows(const Tensor& codes, const Place& p)
      : at(codes.data + p.first * codes.strides[0] + p.column * (wide ? 1 : codes.strides[1])),
        row_bytes(codes.strides[0]),
        column_bytes(wide ? 1 : codes.strides[1]),
        columns(static_cast<int>(min(max(p.columns - p.column, Index{0}), Index{4}))) {}

  __device__ __forceinline__ void store(bool there, std::uint32_t word) {
    if constexpr (wide) {
      if (there) *reinterpret_cast<std::uint32_t*>(at) = word;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (there && k < columns) {
          *reinterpret_cast<std::uint8_t*>(at + k * column_bytes) =
              static_cast<std::uint8_t>(byte_of(word, k));
        }
      }
    }
    at += row_bytes;
  }
};

template <bool e5m2, class Four>
__device__ __forceinline__ std::uint32_t encode(const Four& x, const float (&inverse)[4]) {
  float v[4];
  x.get(v);
#pragma unroll
  for (int k = 0; k < 4; ++k) v[k] *= inverse[k];
  return encode_four<e5m2>(v);
}

template <bool wide, bool e5m2, class Four>
__device__ __forceinline__ void encode_rows(const Quantize& q, const Four (&x)[stripe_rows],
                                            const Place& p, std::uint32_t bytes) {
  CodeRows<wide> rows(q.row.codes, p);
  const std::uint32_t inverses = inverse_bytes(bytes);
#pragma unroll
  for (int i = 0; i < stripe_rows; i += 4) {
    // Lane i / 4 of the block holds the bytes of rows i to i + 3.
    const std::uint32_t word =
        __shfl_sync(whole_warp, inverses, (p.lane & ~(block_lanes - 1)) | i / 4);
    const float scale[4] = {inverse_scale<0>(word), inverse_scale<1>(word), inverse_scale<2>(word),
                            inverse_scale<3>(word)};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float all[4] = {scale[k], scale[k], scale[k], scale[k]};
      rows.store(i + k < p.written, encode<e5m2>(x[i + k], all));
    }
  }
}

template <bool wide, bool e5m2, class Four>
__device__ __forceinline__ void encode_columns(const Quantize& q, const Four (&x)[stripe_rows],
                                               const Place& p, std::uint32_t bytes) {
  CodeRows<wide> rows(q.column.codes, p);
  const std::uint32_t inverses = inverse_bytes(bytes);
  const float scale[4] = {inverse_scale<0>(inverses), inverse_scale<1>(inverses),
                          inverse_scale<2>(inverses), inverse_scale<3>(inverses)};
#pragma unroll
  for (int i = 0; i < stripe_rows; ++i) rows.store(i < p.written, encode<e5m2>(x[i], scale));
}

// Packed: into the square's tile in shared memory; linear: to where they belong.
__device__ __forceinline__ void store_row_scales(const Direction& d, const Place& p,
                                                 std::uint32_t bytes, std::uint8_t* packed) {
  const int block = p.lane / block_lanes, row = p.lane % block_lanes * 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (d.scales.packed) {
      packed[packed_place(p.stripe * stripe_rows + row + k, block)] =
          static_cast<std::uint8_t>(byte_of(bytes, k));
    } else if (row + k < p.rows && p.column_tile * 4 + block < d.scales.bytes.shape[1]) {
      d.scales.bytes.as<std::uint8_t>(p.first + row + k, p.column_tile * 4 + block) =
          static_cast<std::uint8_t>(byte_of(bytes, k));
    }
  }
}
__device__ __forceinline__ void store_column_scales(const Direction& d, const RowTile& tile,
                                                    const Place& p, std::uint32_t bytes,
                                                    std::uint8_t* packed) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (d.scales.packed) {
      packed[packed_place(p.lane * lane_columns + k, p.stripe)] =
          static_cast<std::uint8_t>(byte_of(bytes, k));
    } else if (p.rows > 0 && p.column + k < p.columns) {
      d.scales.bytes.as<std::uint8_t>(tile.stripes_before + tile.local * 4 + p.stripe,
                                      p.column + k) = static_cast<std::uint8_t>(byte_of(bytes, k));
    }
  }
}

// The whole tile of 512 bytes, padding included: it is 0 since what is not there counts as 0.
__device__ __forceinline__ void store_packed(const Direction& d, const RowTile& tile,
                                             const Place& p, const std::uint8_t* packed) {
  const Index first = d.scales.packed_tile(tile, p.column_tile) + threadIdx.x * 4;
  if (d.wide_scales) {
    *reinterpret_cast<std::uint32_t*>(d.scales.bytes.data + first) =
        *reinterpret_cast<const std::uint32_t*>(packed + threadIdx.x * 4);
  } else {
    for (int k = 0; k < 4; ++k) d.scales.packed_byte(first + k) = packed[threadIdx.x * 4 + k];
  }
}

template <class Four, bool wide>
__global__ void __launch_bounds__(block_threads) quantize_kernel(Quantize q) {
  __shared__ alignas(16) std::uint8_t packed[2][packed_tile_bytes];
  const bool refused = *q.refusal != 0;  // looked at together with the tile, not before it
  const unsigned column_tiles = static_cast<unsigned>(ceil_div(q.x.shape[1], tile_columns));
  RowTile tile;
  const bool there = q.tiles.get(blockIdx.x / column_tiles, tile);
  if (refused || !there) return;
  Place p;
  p.lane = static_cast<int>(threadIdx.x) % warp_size;
  p.stripe = static_cast<int>(threadIdx.x) / warp_size;
  p.rows = max(tile.rows - p.stripe * stripe_rows, 0);
  p.first = tile.first + p.stripe * stripe_rows;
  p.column_tile = blockIdx.x % column_tiles;
  p.column = p.column_tile * tile_columns + p.lane * lane_columns;
  p.columns = q.x.shape[1];
  p.written = p.column < p.columns ? p.rows : 0;
  p.real = max(tile.real - p.stripe * stripe_rows, 0);
  p.read = min(p.written, p.real);

  Four x[stripe_rows];
  const Index row_bytes = q.x.strides[0] * q.x.element;
  const Index column_bytes = wide ? q.x.element : q.x.strides[1] * q.x.element;
  const std::byte* at = q.x.data + p.first * row_bytes + p.column * column_bytes;
#pragma unroll
  for (int i = 0; i < stripe_rows; ++i) {
    x[i].clear();
    if constexpr (wide) {
      if (i < p.read) x[i].load(at);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (i < p.read && p.column + k < p.columns) x[i].set(k, at + k * column_bytes);
      }
    }
    at += row_bytes;
  }
  Maxima maxima = maxima_of(x, p.lane);
  if (q.square) make_square(maxima, p);
  std::uint32_t row_scales = 0, column_scales = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    row_scales |= scale_byte(maxima.row[k], q.row.e5m2) << (8 * k);
    column_scales |= scale_byte(maxima.column[k], q.column.e5m2) << (8 * k);
  }
  if (q.row.wanted) {
    if (q.row.e5m2) {
      encode_rows<wide, true>(q, x, p, row_scales);
    } else {
      encode_rows<wide, false>(q, x, p, row_scales);
    }
    store_row_scales(q.row, p, row_scales, packed[0]);
  }
  if (q.column.wanted) {
    if (q.column.e5m2) {
      encode_columns<wide, true>(q, x, p, column_scales);
    } else {
      encode_columns<wide, false>(q, x, p, column_scales);
    }
    store_column_scales(q.column, tile, p, column_scales, packed[1]);
  }
  __syncthreads();
  if (q.row.wanted && q.row.scales.packed) store_packed(q.row, tile, p, packed[0]);
  if (q.column.wanted && q.column.scales.packed) store_packed(q.column, tile, p, packed[1]);
}

Direction read_direction(const dropless_tensor* codes, const dropless_tensor* scales,
                         const char* codes_name, const char* scales_name, bool column_wise,
                         dropless_scale_layout layout, const Tensor& x, TileLimits& limits) {
  Direction d;
  d.wanted = codes != nullptr;
  if (d.wanted != (scales != nullptr)) {
    refuse(std::string(codes_name) + " and " + scales_name + ": only one given");
  }
  if (!d.wanted) return d;
  d.codes = tensor(codes, codes_name, code_dtypes, {x.shape[0], x.shape[1]});
  d.scales = read_scales(scales, scales_name, column_wise, layout, x.shape[0], x.shape[1], limits);
  d.e5m2 = d.codes.dtype == DROPLESS_E5M2;
  d.wide_scales = d.scales.packed && d.scales.bytes.rows_aligned_to(4);
  return d;
}

template <class Four>
void launch(Call& call, const Quantize& q, bool wide) {
  const unsigned blocks = grid_size(q.tiles.most * ceil_div(q.x.shape[1], tile_columns));
  if (wide) {
    quantize_kernel<Four, true><<<blocks, block_threads, 0, call.stream()>>>(q);
  } else {
    quantize_kernel<Four, false><<<blocks, block_threads, 0, call.stream()>>>(q);
  }
  check_launch("quantize");
}

}  // namespace

void quantize(Call& call, const dropless_quantize_args& args) {
  Quantize q = {};
  q.x = tensor(args.x, "x", floats, {any, any});
  refuse_if(
      args.scale_layout != DROPLESS_SCALES_LINEAR && args.scale_layout != DROPLESS_SCALES_PACKED,
      "scale_layout: unknown");
  TileLimits limits;
  q.row = read_direction(args.row_codes, args.row_scales, "row_codes", "row_scales", false,
                         args.scale_layout, q.x, limits);
  q.column = read_direction(args.column_codes, args.column_scales, "column_codes", "column_scales",
                            true, args.scale_layout, q.x, limits);
  const Zones zones = read_zones(call, args.offsets, args.counts, q.x.shape[0]);
  q.tiles = make_row_tiles(call, zones, limits);
  q.square = args.square_tiles != 0;
  q.refusal = call.refusal_word();
  if (q.x.size() > 0 && (q.row.wanted || q.column.wanted)) {
    const bool wide = q.x.shape[1] % lane_columns == 0 &&
                      q.x.rows_aligned_to(lane_columns * q.x.element) &&
                      (!q.row.wanted || q.row.codes.rows_aligned_to(lane_columns)) &&
                      (!q.column.wanted || q.column.codes.rows_aligned_to(lane_columns));
    if (q.x.dtype == DROPLESS_FP32) {
      launch<Float4>(call, q, wide);
    } else {
      launch<Bfloat4>(call, q, wide);
    }
  }
  call.ran("mxfp8");
}

}  // namespace dropless::cuda
