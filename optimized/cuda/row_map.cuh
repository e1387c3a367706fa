// SPDX-License-Identifier: Apache-2.0
// Maps between pairs and rows as kernels read them, and padding rows written as zero.
#pragma once

#include "optimized/cuda/call.h"
#include "optimized/cuda/elements.cuh"

namespace dropless::cuda {

// row_map [T,K] i64: -1 where a pair has no row.
struct RowMap {
  const std::int64_t* data = nullptr;
  Index token_stride = 0, slot_stride = 1;
  Index tokens = 0, top_k = 0, rows = 0;

  [[nodiscard]] __device__ __forceinline__ Index operator()(Index t, Index slot) const {
    return data[t * token_stride + slot * slot_stride];
  }
};

// Which rows below offsets[E] are padding: source [N_max] is -1.
struct Padding {
  const std::int64_t* source = nullptr;
  Index stride = 1, rows = 0;
  const std::int64_t* total = nullptr;  // offsets[E]
};

constexpr Index rows_per_scan = 1024;  // rows whose padding one block looks for

// row_map [tokens, top_k] of a buffer of `rows` rows; enqueues the check of its values.
RowMap read_row_map(Call& call, const dropless_tensor* row_map, Index tokens, Index rows);
// offsets [any] and source [rows]; enqueues the check of the offsets.
Padding read_padding(Call& call, const dropless_tensor* offsets, const dropless_tensor* source,
                     Index rows);

// A row as bytes: how wide the pieces are in which it may be moved.
struct Bytes {
  std::byte* data = nullptr;
  Index row_stride = 0;      // bytes
  Index element_stride = 0;  // bytes, where elements are apart
  Index width = 0;           // bytes of a row without gaps
  int element = 1;
  bool given = false;
};

[[nodiscard]] inline Bytes bytes_of(const Tensor& t) {
  Bytes bytes;
  bytes.given = t.given;
  if (!t.given) return bytes;
  bytes.data = t.data;
  bytes.row_stride = t.strides[0] * t.element;
  bytes.element_stride = (t.has_dense_rows() ? 1 : t.strides[1]) * t.element;
  bytes.width = t.shape[1] * t.element;
  bytes.element = static_cast<int>(t.element);
  return bytes;
}

// The widest piece, 16, 8, 4, 2 or 1 bytes, that both sides allow; 0 where elements are apart.
[[nodiscard]] inline int piece_of(const Bytes& a, const Bytes& b) {
  if (a.element_stride != a.element || b.element_stride != b.element) return 0;
  const auto bits = reinterpret_cast<std::uintptr_t>(a.data) |
                    reinterpret_cast<std::uintptr_t>(b.data) |
                    static_cast<std::uintptr_t>(a.row_stride | b.row_stride | a.width);
  for (int piece = 16; piece > 1; piece /= 2) {
    if (bits % static_cast<std::uintptr_t>(piece) == 0) return piece;
  }
  return 1;
}

__device__ inline void zero_row(const Bytes& to, Index row) {
  std::byte* out = to.data + row * to.row_stride;
  const Index elements = to.width / to.element;
  for (Index i = threadIdx.x; i < elements; i += blockDim.x) {
    std::byte* at = out + i * to.element_stride;
    switch (to.element) {
      case 8:
        *reinterpret_cast<std::uint64_t*>(at) = 0;
        break;
      case 4:
        *reinterpret_cast<std::uint32_t*>(at) = 0;
        break;
      case 2:
        *reinterpret_cast<std::uint16_t*>(at) = 0;
        break;
      default:
        *reinterpret_cast<std::uint8_t*>(at) = 0;
    }
  }
}

// Block `scan` calls body(row), with all its threads, for each padding row among its rows.
template <class Body>
__device__ inline void for_padding(const Padding& padding, Index scan, const Body& body) {
  const Index end = min(min(padding.rows, *padding.total), (scan + 1) * rows_per_scan);
  for (Index first = scan * rows_per_scan; first < end; first += blockDim.x) {
    const Index mine = first + threadIdx.x;
    const bool is_padding = mine < end && padding.source[mine * padding.stride] < 0;
    if (__syncthreads_or(is_padding ? 1 : 0) == 0) continue;
    for (Index row = first; row < min(first + blockDim.x, end); ++row) {
      if (padding.source[row * padding.stride] < 0) body(row);
    }
  }
}

}  // namespace dropless::cuda
