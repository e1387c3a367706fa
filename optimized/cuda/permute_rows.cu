// SPDX-License-Identifier: Apache-2.0
// Rows to their experts, byte for byte, and the zero rows of padding. PERMUTATION-3 and 4.
//
// A block per token reads the token once and writes it to each of its rows. Floor: T = 4096, K = 8,
// H = 7168 bf16: 59 MB read + 470 MB written, 123 us at 4.3 TB/s.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/row_map.cuh"

namespace dropless::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int pieces = 4;  // of a thread in flight
constexpr int slots = 8;   // rows of a token that are looked up at once

struct Copy {
  RowMap map;
  Padding padding;
  Bytes x, rows, scales, row_scales;
  int x_piece, scale_piece;
  Tensor weights, row_weights;
  const int* refusal;
};

// Row t of `from` to `count` rows of `to`.
template <class Piece>
__device__ __forceinline__ void spread(const Bytes& from, const Bytes& to, Index t,
                                       const Index* targets, int count) {
  const Index width = from.width / static_cast<Index>(sizeof(Piece));
  const Piece* in = reinterpret_cast<const Piece*>(from.data + t * from.row_stride);
  for (Index first = threadIdx.x; first < width; first += pieces * blockDim.x) {
    Piece held[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      const Index at = first + i * blockDim.x;
      if (at < width) held[i] = __ldg(in + at);
    }
    for (int j = 0; j < count; ++j) {
      Piece* out = reinterpret_cast<Piece*>(to.data + targets[j] * to.row_stride);
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
        const Index at = first + i * blockDim.x;
        if (at < width) __stcs(out + at, held[i]);  // read again only after all the others
      }
    }
  }
}

// Elements that are apart in memory.
__device__ inline void spread_elements(const Bytes& from, const Bytes& to, Index t,
                                       const Index* targets, int count) {
  const Index elements = from.width / from.element;
  for (Index i = threadIdx.x; i < elements * from.element; i += blockDim.x) {
    const Index element = i / from.element, byte = i % from.element;
    const std::byte value = from.data[t * from.row_stride + element * from.element_stride + byte];
    for (int j = 0; j < count; ++j) {
      to.data[targets[j] * to.row_stride + element * to.element_stride + byte] = value;
    }
  }
}

__device__ __forceinline__ void spread_row(const Bytes& from, const Bytes& to, int piece, Index t,
                                           const Index* targets, int count) {
  switch (piece) {
    case 16:
      return spread<uint4>(from, to, t, targets, count);
    case 8:
      return spread<unsigned long long>(from, to, t, targets, count);
    case 4:
      return spread<unsigned>(from, to, t, targets, count);
    case 2:
      return spread<unsigned short>(from, to, t, targets, count);
    case 1:
      return spread<unsigned char>(from, to, t, targets, count);
    default:
      return spread_elements(from, to, t, targets, count);
  }
}

// Blocks 0 .. T-1 copy tokens, the others look for padding.
__global__ void __launch_bounds__(most_threads, 4) permute_kernel(Copy c) {
  __shared__ Index targets[slots];
  __shared__ int count;
  if (*c.refusal != 0) return;
  const Index t = blockIdx.x;
  if (t >= c.map.tokens) {
    for_padding(c.padding, t - c.map.tokens, [&](Index row) {
      zero_row(c.rows, row);
      if (c.row_scales.given) zero_row(c.row_scales, row);
      if (c.row_weights.given && threadIdx.x == 0) c.row_weights.as<std::uint32_t>(row) = 0;
    });
    return;
  }
  for (Index first = 0; first < c.map.top_k; first += slots) {
    if (threadIdx.x < warp_size) {
      const Index slot = first + threadIdx.x;
      const Index row = threadIdx.x < slots && slot < c.map.top_k ? c.map(t, slot) : -1;
      const bool has_row = row >= 0 && row < c.map.rows;
      const unsigned those = __ballot_sync(whole_warp, has_row);
      if (has_row) {
        targets[__popc(those & ((1u << threadIdx.x) - 1))] = row;
        if (c.weights.given) {
          c.row_weights.as<std::uint32_t>(row) = c.weights.as<std::uint32_t>(t, slot);
        }
      }
      if (threadIdx.x == 0) count = __popc(those);
    }
    __syncthreads();
    spread_row(c.x, c.rows, c.x_piece, t, targets, count);
    if (c.scales.given) spread_row(c.scales, c.row_scales, c.scale_piece, t, targets, count);
    __syncthreads();
  }
}

}  // namespace

void permute_forward(Call& call, const dropless_permute_args& args) {
  const Tensor x = tensor(args.x, "x", any_dtype, {any, any});
  const Index tokens = x.shape[0], hidden = x.shape[1];
  const Tensor rows = tensor(args.rows, "rows", {x.dtype}, {any, hidden});
  const Index row_count = rows.shape[0];
  Copy c = {};
  const Tensor map_shape = tensor(args.row_map, "row_map", {DROPLESS_I64}, {tokens, any});
  c.weights =
      optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, map_shape.shape[1]});
  c.row_weights = optional_tensor(args.row_weights, "row_weights", {DROPLESS_FP32}, {row_count});
  const Tensor scales =
      optional_tensor(args.scales, "scales", {DROPLESS_U8, DROPLESS_E8M0}, {tokens, any});
  const Tensor row_scales =
      optional_tensor(args.row_scales, "row_scales", {DROPLESS_U8, DROPLESS_E8M0},
                      {row_count, scales.given ? scales.shape[1] : any});
  refuse_if(c.weights.given != c.row_weights.given, "weights and row_weights: only one given");
  refuse_if(scales.given != row_scales.given, "scales and row_scales: only one given");
  c.x = bytes_of(x);
  c.rows = bytes_of(rows);
  c.scales = bytes_of(scales);
  c.row_scales = bytes_of(row_scales);
  c.x_piece = piece_of(c.x, c.rows);
  c.scale_piece = scales.given ? piece_of(c.scales, c.row_scales) : 1;
  c.map = read_row_map(call, args.row_map, tokens, row_count);
  c.padding = read_padding(call, args.offsets, args.source, row_count);
  c.refusal = call.refusal_word();

  const Index scans = ceil_div(row_count, rows_per_scan);
  if (tokens + scans > 0) {
    const Index items = c.x.width / std::max(c.x_piece, 1);
    const int threads = block_size(ceil_div(std::max<Index>(items, 1), pieces), most_threads);
    permute_kernel<<<grid_size(tokens + scans), static_cast<unsigned>(threads), 0, call.stream()>>>(
        c);
    check_launch("permute_rows");
  }
  call.ran("permute");
}

}  // namespace dropless::cuda
