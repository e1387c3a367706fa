// SPDX-License-Identifier: Apache-2.0
// Rows back to their tokens, and the gradients of both directions. Sums run in slot order, in fp32,
// with one rounding. PERMUTATION-6 and 7.
//
// A block per token. Floors for T = 4096, K = 8, H = 7168 bf16 at 4.3 TB/s: unpermute and the
// backward pass of permute 470 MB read + 59 MB written, 123 us; the backward pass of unpermute 470
// MB + 59 MB read, 470 MB written, 232 us.
#include "optimized/cuda/device_refusal.h"
#include "optimized/cuda/operations.h"
#include "optimized/cuda/row_map.cuh"

namespace dropless::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int columns_per_thread = 8;
constexpr int slots = 8;  // rows of a token that are read at once

struct Sum {
  RowMap map;
  Tensor rows, weights, y;        // weights optional
  Tensor row_weights, d_weights;  // the weights' own way back, optional
  bool aligned, wide;             // wide: bf16 rows in aligned vectors
  const int* refusal;
};

// Eight columns of all rows, so that the loads are in flight together; zeros where there is none.
__device__ __forceinline__ void load_rows(const Tensor& rows, const Index* targets, Index column,
                                          uint4* held) {
#pragma unroll
  for (int j = 0; j < slots; ++j) {
    const Index row = targets[j];
    const std::byte* at = rows.data + (max(row, Index{0}) * rows.strides[0] + column) * 2;
    held[j] = make_uint4(0, 0, 0, 0);
    if (row >= 0) held[j] = __ldg(reinterpret_cast<const uint4*>(at));
  }
}

__device__ __forceinline__ void add_row(const Eight& row, float factor, Eight& sum) {
#pragma unroll
  for (int i = 0; i < columns_per_thread; ++i) {
    sum.value[i] = __fmaf_rn(factor, row.value[i], sum.value[i]);
  }
}

__global__ void __launch_bounds__(most_threads) sum_slots_kernel(Sum s) {
  __shared__ Index targets[slots];
  __shared__ float factors[slots];
  if (*s.refusal != 0) return;
  const Index t = blockIdx.x, width = s.y.shape[1];
  const int top_k = static_cast<int>(s.map.top_k);
  // A row of more than one pass keeps its sums in registers; wide rows are cut into pieces first.
  for (Index start = 0; start < max(width, Index{1}); start += blockDim.x * columns_per_thread) {
    const Index column = start + threadIdx.x * columns_per_thread;
    Eight sum = {};
    for (int first = 0; first < top_k; first += slots) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < slots) {
        const int slot = first + static_cast<int>(threadIdx.x);
        Index row = slot < top_k ? s.map(t, slot) : -1;
        if (row >= s.map.rows) row = -1;
        targets[threadIdx.x] = row;
        factors[threadIdx.x] = row < 0           ? 0.0F
                               : s.weights.given ? s.weights.as<float>(t, slot)
                                                 : 1.0F;
        if (start == 0 && s.d_weights.given && slot < top_k) {
          s.d_weights.as<std::uint32_t>(t, slot) =
              row < 0 ? 0u : s.row_weights.as<std::uint32_t>(row);
        }
      }
      __syncthreads();
      if (column >= width) continue;
      if (s.wide && width - column >= columns_per_thread) {
        uint4 held[slots];
        load_rows(s.rows, targets, column, held);
#pragma unroll
        for (int j = 0; j < slots; ++j) {
          Eight row;
          widen_eight(held[j], row);  // zeros, and a factor of 0, where there is no row
          add_row(row, factors[j], sum);
        }
      } else {
        for (int j = 0; j < slots; ++j) {
          if (targets[j] < 0) continue;
          Eight row;
          load_eight(s.rows, targets[j], column, width - column, s.aligned, row);
          add_row(row, factors[j], sum);
        }
      }
    }
    if (column < width) store_eight(s.y, t, column, width - column, s.aligned, sum);
  }
}

void sum_slots(Call& call, Sum& s) {
  s.aligned = s.rows.rows_aligned_to(16) && s.y.rows_aligned_to(16);
  s.wide = s.aligned && s.rows.dtype == DROPLESS_BF16;
  s.refusal = call.refusal_word();
  if (s.map.tokens == 0) return;
  const int threads = block_size(ceil_div(s.y.shape[1], columns_per_thread), most_threads);
  sum_slots_kernel<<<grid_size(s.map.tokens), static_cast<unsigned>(threads), 0, call.stream()>>>(
      s);
  check_launch("sum_slots");
}

struct Backward {
  RowMap map;
  Padding padding;
  Tensor rows, weights, d_y, d_rows, d_weights;
  Bytes d_rows_bytes;
  bool aligned, wide;  // wide: bf16 rows that are read in aligned vectors
  const int* refusal;
};

// One pass over the columns for up to 8 slots: d_row = w d_y, and the dot products.
__device__ __forceinline__ void spread_gradient(const Backward& b, Index t, int first, int count,
                                                const Index* targets, const float* factors,
                                                float* partial) {
  const Index width = b.d_y.shape[1];
  float dots[slots] = {};
  for (Index column = threadIdx.x * columns_per_thread; column < width;
       column += blockDim.x * columns_per_thread) {
    const bool wide = b.wide && width - column >= columns_per_thread;
    uint4 held[slots];
    if (wide) load_rows(b.rows, targets, column, held);
    Eight gradient;
    load_eight(b.d_y, t, column, width - column, b.aligned, gradient);
#pragma unroll
    for (int j = 0; j < slots; ++j) {
      if (targets[j] < 0) continue;
      if (b.d_weights.given) {
        Eight row;
        if (wide) {
          widen_eight(held[j], row);
        } else {
          load_eight(b.rows, targets[j], column, width - column, b.aligned, row);
        }
#pragma unroll
        for (int i = 0; i < columns_per_thread; ++i) {
          dots[j] = __fmaf_rn(gradient.value[i], row.value[i], dots[j]);
        }
      }
      Eight scaled;
#pragma unroll
      for (int i = 0; i < columns_per_thread; ++i) scaled.value[i] = factors[j] * gradient.value[i];
      store_eight(b.d_rows, targets[j], column, width - column, b.aligned, scaled);
    }
  }
  if (!b.d_weights.given) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
#pragma unroll
  for (int j = 0; j < slots; ++j) {
    const float sum = warp_sum(dots[j]);
    if (lane == 0) partial[warp * slots + j] = sum;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < count) {
    float sum = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / warp_size; ++w) {
      sum += partial[w * slots + static_cast<int>(threadIdx.x)];
    }
    b.d_weights.as<float>(t, first + threadIdx.x) = targets[threadIdx.x] < 0 ? 0.0F : sum;
  }
}

__global__ void __launch_bounds__(most_threads) unpermute_backward_kernel(Backward b) {
  __shared__ Index targets[slots];
  __shared__ float factors[slots];
  __shared__ float partial[most_threads / warp_size * slots];
  if (*b.refusal != 0) return;
  const Index t = blockIdx.x;
  if (t >= b.map.tokens) {
    for_padding(b.padding, t - b.map.tokens, [&](Index row) { zero_row(b.d_rows_bytes, row); });
    return;
  }
  const int top_k = static_cast<int>(b.map.top_k);
  for (int first = 0; first < top_k; first += slots) {
    const int count = min(slots, top_k - first);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < slots) {
      const int slot = first + static_cast<int>(threadIdx.x);
      const Index row = slot < top_k ? b.map(t, slot) : -1;
      targets[threadIdx.x] = row < b.map.rows ? row : -1;
      factors[threadIdx.x] = b.weights.given && slot < top_k ? b.weights.as<float>(t, slot) : 1.0F;
    }
    __syncthreads();
    spread_gradient(b, t, first, count, targets, factors, partial);
  }
}

}  // namespace

void unpermute_forward(Call& call, const dropless_unpermute_args& args) {
  Sum s = {};
  s.rows = tensor(args.rows, "rows", floats, {any, any});
  s.y = tensor(args.y, "y", floats, {any, s.rows.shape[1]});
  const Index tokens = s.y.shape[0];
  s.weights = optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, any});
  s.map = read_row_map(call, args.row_map, tokens, s.rows.shape[0]);
  refuse_if(s.weights.given && s.weights.shape[1] != s.map.top_k,
            "weights: not the shape of row_map");
  sum_slots(call, s);
  call.ran("permute");
}

void permute_backward(Call& call, const dropless_permute_backward_args& args) {
  Sum s = {};
  s.rows = tensor(args.d_rows, "d_rows", floats, {any, any});
  s.y = tensor(args.d_x, "d_x", floats, {any, s.rows.shape[1]});
  const Index tokens = s.y.shape[0];
  s.row_weights =
      optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {s.rows.shape[0]});
  s.d_weights = optional_tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {tokens, any});
  refuse_if(s.d_weights.given && !s.row_weights.given, "d_weights: without d_row_weights");
  s.map = read_row_map(call, args.row_map, tokens, s.rows.shape[0]);
  refuse_if(s.d_weights.given && s.d_weights.shape[1] != s.map.top_k,
            "d_weights: not the shape of row_map");
  sum_slots(call, s);
  call.ran("permute");
}

void unpermute_backward(Call& call, const dropless_unpermute_backward_args& args) {
  Backward b = {};
  b.d_y = tensor(args.d_y, "d_y", floats, {any, any});
  const Index tokens = b.d_y.shape[0], hidden = b.d_y.shape[1];
  b.d_rows = tensor(args.d_rows, "d_rows", floats, {any, hidden});
  const Index row_count = b.d_rows.shape[0];
  b.weights = optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {tokens, any});
  if (b.weights.given) {
    b.rows = tensor(args.rows, "rows", floats, {row_count, hidden});
    b.d_weights =
        optional_tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {tokens, b.weights.shape[1]});
  }
  b.map = read_row_map(call, args.row_map, tokens, row_count);
  refuse_if(b.weights.given && b.weights.shape[1] != b.map.top_k,
            "weights: not the shape of row_map");
  b.padding = read_padding(call, args.offsets, args.source, row_count);
  b.d_rows_bytes = bytes_of(b.d_rows);
  b.aligned = b.d_y.rows_aligned_to(16) && b.d_rows.rows_aligned_to(16) &&
              (!b.rows.given || b.rows.rows_aligned_to(16));
  b.wide = b.aligned && b.d_weights.given && b.rows.dtype == DROPLESS_BF16;
  b.refusal = call.refusal_word();

  const Index scans = ceil_div(row_count, rows_per_scan);
  if (tokens + scans > 0) {
    const int threads = block_size(ceil_div(hidden, columns_per_thread), most_threads);
    unpermute_backward_kernel<<<grid_size(tokens + scans), static_cast<unsigned>(threads), 0,
                                call.stream()>>>(b);
    check_launch("unpermute_backward");
  }
  call.ran("permute");
}

}  // namespace dropless::cuda
