// SPDX-License-Identifier: Apache-2.0
// Reading the arguments of an operation: sizes of structs, tensors in device memory, and refusals
// (GENERAL-3). Everything that the host knows is checked before the first kernel is launched; what
// lies in device memory is checked there (device_refusal.h, zones.h).
//
//     const Tensor ids = tensor(args.ids, "ids", integers, {any, any});   // throws Refusal
//     const Tensor mask = optional_tensor(args.token_mask, "token_mask", {DROPLESS_U8}, {T});
//     refuse_if(top_k > experts, "top_k exceeds num_experts");
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/host_device.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#include "optimized/cuda/status.h"

namespace dropless::cuda {

using Index = std::int64_t;

// A checked tensor in device memory; kernels take it by value. `data` is null when it was not
// given. Strides in elements.
struct Tensor {
  std::byte* data = nullptr;
  dropless_dtype dtype = DROPLESS_FP32;
  int rank = 0;
  Index element = 0;  // bytes of an element
  Index shape[DROPLESS_MAX_RANK] = {1, 1, 1, 1};
  Index strides[DROPLESS_MAX_RANK] = {0, 0, 0, 0};
  bool given = false;

  [[nodiscard]] DROPLESS_HOST_DEVICE explicit operator bool() const { return given; }
  [[nodiscard]] DROPLESS_HOST_DEVICE Index size() const {
    return shape[0] * shape[1] * shape[2] * shape[3];
  }
  [[nodiscard]] DROPLESS_HOST_DEVICE std::byte* at(Index i, Index j = 0, Index k = 0) const {
    return data + (i * strides[0] + j * strides[1] + k * strides[2]) * element;
  }
  template <class T>
  [[nodiscard]] DROPLESS_HOST_DEVICE T& as(Index i, Index j = 0, Index k = 0) const {
    return *reinterpret_cast<T*>(at(i, j, k));
  }
  // i32 and i64 elements.
  [[nodiscard]] DROPLESS_HOST_DEVICE Index integer(Index i, Index j = 0) const {
    return dtype == DROPLESS_I32 ? as<std::int32_t>(i, j) : as<std::int64_t>(i, j);
  }
  DROPLESS_HOST_DEVICE void store_integer(Index value, Index i, Index j = 0) const {
    if (dtype == DROPLESS_I32) {
      as<std::int32_t>(i, j) = static_cast<std::int32_t>(value);
    } else {
      as<std::int64_t>(i, j) = value;
    }
  }
  // Neighbours of the last axis are neighbours in memory; an axis of one element counts as dense.
  [[nodiscard]] bool has_dense_rows() const {
    return shape[rank - 1] <= 1 || strides[rank - 1] == 1;
  }
  // Every row begins at a multiple of `bytes`, so that vectors of that size may be used.
  [[nodiscard]] bool rows_aligned_to(Index bytes) const;
};

inline constexpr Index any = -1;  // an extent that the caller may choose

using Dtypes = std::initializer_list<dropless_dtype>;
inline constexpr Dtypes floats = {DROPLESS_FP32, DROPLESS_BF16};
inline constexpr Dtypes integers = {DROPLESS_I32, DROPLESS_I64};
inline constexpr Dtypes code_dtypes = {DROPLESS_E4M3, DROPLESS_E5M2};
inline constexpr Dtypes any_dtype = {};

// The tensor, in device memory, with one of these dtypes and this shape. Throws Refusal.
Tensor tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
              std::initializer_list<Index> shape);
// The same, or an empty Tensor for a null pointer.
Tensor optional_tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
                       std::initializer_list<Index> shape);
// A dense descriptor over device memory, to call one operation from another.
[[nodiscard]] dropless_tensor describe(void* data, dropless_dtype dtype,
                                       std::initializer_list<Index> shape);

// A copy of a caller's struct: fields that its author did not know are zero. Throws Refusal.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  if (given == nullptr) refuse(std::string(name) + ": null pointer");
  const std::size_t declared = given->struct_size;
  if (declared < 2 * sizeof(std::uint32_t)) refuse(std::string(name) + ": struct_size not set");
  Struct known{};
  std::memcpy(static_cast<void*>(&known), given, std::min(declared, sizeof known));
  return known;
}

}  // namespace dropless::cuda
