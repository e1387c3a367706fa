// SPDX-License-Identifier: Apache-2.0
// Reading the arguments of an operation: sizes of structs, tensors, and refusals (GENERAL-3).
// Everything is read and checked before the first output is written.
//
//     const Tensor ids = tensor(args.ids, "ids", integers, {any, any});   // throws Refusal
//     const Tensor mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {T});
//     refuse_if(top_k > experts, "top_k exceeds num_experts");
#pragma once

#include <dropless/contract.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "optimized/cpu/threads.h"

namespace dropless::cpu {

// Why an operation did not run; becomes its status and message.
struct Refusal {
  dropless_status status;
  std::string message;
};

[[noreturn]] void refuse(std::string message);
inline void refuse_if(bool wrong, const char* message) {
  if (wrong) refuse(message);
}

// A checked host tensor. `data` is null when it was not given.
struct Tensor {
  std::byte* data = nullptr;
  dropless_dtype dtype = DROPLESS_FP32;
  int rank = 0;
  Index element = 0;  // bytes of an element
  Index shape[DROPLESS_MAX_RANK] = {1, 1, 1, 1};
  Index strides[DROPLESS_MAX_RANK] = {0, 0, 0, 0};
  bool given = false;

  [[nodiscard]] explicit operator bool() const { return given; }
  [[nodiscard]] Index size() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  [[nodiscard]] std::byte* at(Index i, Index j = 0, Index k = 0) const {
    return data + (i * strides[0] + j * strides[1] + k * strides[2]) * element;
  }
  // Distance between neighbours of the last axis; an axis of one element counts as dense.
  [[nodiscard]] Index inner_stride() const { return shape[rank - 1] <= 1 ? 1 : strides[rank - 1]; }
  template <class T>
  [[nodiscard]] T& as(Index i, Index j = 0, Index k = 0) const {
    return *reinterpret_cast<T*>(at(i, j, k));
  }
  // i32 and i64 elements.
  [[nodiscard]] Index integer(Index i, Index j = 0) const {
    return dtype == DROPLESS_I32 ? as<std::int32_t>(i, j) : as<std::int64_t>(i, j);
  }
  void store_integer(Index value, Index i, Index j = 0) const {
    if (dtype == DROPLESS_I32) {
      as<std::int32_t>(i, j) = static_cast<std::int32_t>(value);
    } else {
      as<std::int64_t>(i, j) = value;
    }
  }
};

inline constexpr Index any = -1;  // an extent that the caller may choose

using Dtypes = std::initializer_list<dropless_dtype>;
inline constexpr Dtypes floats = {DROPLESS_FP32, DROPLESS_BF16};
inline constexpr Dtypes integers = {DROPLESS_I32, DROPLESS_I64};
inline constexpr Dtypes code_dtypes = {DROPLESS_E4M3, DROPLESS_E5M2};
inline constexpr Dtypes any_dtype = {};

// The tensor, in host memory, with one of these dtypes and this shape. Throws Refusal.
Tensor tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
              std::initializer_list<Index> shape);
// The same, or an empty Tensor for a null pointer.
Tensor optional_tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
                       std::initializer_list<Index> shape);

// All values of an i32 or i64 vector.
std::vector<Index> integer_values(const Tensor& vector);

// A copy of a caller's struct: fields that its author did not know are zero. Throws Refusal.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  if (given == nullptr) refuse(std::string(name) + ": null pointer");
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < 2 * sizeof(std::uint32_t)) refuse(std::string(name) + ": struct_size not set");
  Struct copy{};
  std::memcpy(static_cast<void*>(&copy), given, std::min<std::size_t>(size, sizeof copy));
  return copy;
}

// Zones of rows: the real rows of group g are first[g] .. real_end[g], padding follows up to
// first[g + 1].
struct Zones {
  std::vector<Index> offsets;   // [G+1]
  std::vector<Index> real_end;  // [G]
  [[nodiscard]] Index groups() const { return static_cast<Index>(real_end.size()); }
  [[nodiscard]] Index first(Index g) const { return offsets[static_cast<std::size_t>(g)]; }
  [[nodiscard]] Index end(Index g) const { return offsets[static_cast<std::size_t>(g) + 1]; }
  [[nodiscard]] Index real(Index g) const { return real_end[static_cast<std::size_t>(g)]; }
  [[nodiscard]] Index rows() const { return offsets.back(); }
};

// Offsets [G+1] and counts [G] of a buffer of `rows` rows. Without offsets the whole buffer is one
// group; without counts all rows of a zone are real. groups = any takes the length of offsets.
Zones read_zones(const dropless_tensor* offsets, const dropless_tensor* counts, Index rows,
                 Index groups = any);

}  // namespace dropless::cpu
