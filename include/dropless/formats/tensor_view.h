// SPDX-License-Identifier: Apache-2.0
// A non-owning view of a host dropless_tensor: addresses from strides, elements as double or
// integer.
//
//     TensorView x(*args->x);                     // host memory only
//     double v = x.load(t, h);                    // exact value of the element
//     y.store(v * 2, t, h);                       // rounded once to y's dtype
//     std::int64_t id = ids.load_integer(t, j);   // i32, i64 or u8
//     double w = x.load_flat(t * H + h);          // row-major index, whatever the strides
//
// Indices are not checked: the operation checks shapes once (GENERAL-3). All index arithmetic is
// 64-bit (GROUPED_GEMM-8). Elements need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dropless/contract/types.h"
#include "dropless/formats/dtype.h"

namespace dropless {

class TensorView {
 public:
  using Index = std::int64_t;

  explicit TensorView(const dropless_tensor& tensor)
      : data_(static_cast<std::byte*>(tensor.data)),
        dtype_(tensor.dtype),
        rank_(tensor.rank),
        bytes_(element_bytes(tensor.dtype)) {
    for (int axis = 0; axis < DROPLESS_MAX_RANK; ++axis) {
      shape_[axis] = axis < rank_ ? tensor.shape[axis] : 1;
      strides_[axis] = axis < rank_ ? tensor.strides[axis] : 0;
    }
  }

  [[nodiscard]] dropless_dtype dtype() const { return dtype_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Index shape(int axis) const { return shape_[axis]; }
  [[nodiscard]] Index stride(int axis) const { return strides_[axis]; }  // in elements
  [[nodiscard]] Index size() const { return shape_[0] * shape_[1] * shape_[2] * shape_[3]; }

  // Row-major without gaps; axes of extent 0 or 1 may have any stride.
  [[nodiscard]] bool is_contiguous() const {
    Index expected = 1;
    for (int axis = rank_ - 1; axis >= 0; --axis) {
      if (shape_[axis] > 1 && strides_[axis] != expected) return false;
      expected *= shape_[axis];
    }
    return true;
  }

  // Address of element (i, j, ...); axes that are not named have index 0.
  template <typename... Indices>
  [[nodiscard]] std::byte* address(Indices... indices) const {
    static_assert(sizeof...(Indices) <= DROPLESS_MAX_RANK);
    static_assert((std::is_integral_v<Indices> && ...));
    Index offset = 0;
    int axis = 0;
    ((offset += static_cast<Index>(indices) * strides_[axis++]), ...);
    return data_ + offset * bytes_;
  }
  // Address of the element with this row-major index, 0 <= flat < size().
  [[nodiscard]] std::byte* address_flat(Index flat) const {
    Index offset = 0;
    for (int axis = rank_ - 1; axis >= 0; --axis) {
      offset += flat % shape_[axis] * strides_[axis];
      flat /= shape_[axis];
    }
    return data_ + offset * bytes_;
  }

  // The element's exact value (an i64 beyond 2^53 is rounded: use load_integer).
  template <typename... Indices>
  [[nodiscard]] double load(Indices... indices) const {
    return read(address(indices...));
  }
  [[nodiscard]] double load_flat(Index flat) const { return read(address_flat(flat)); }

  // The value rounded once to nearest even; fp8 and E8M0 saturate, wider formats overflow to
  // infinity. Floating-point dtypes only: any other dtype is left alone.
  template <typename... Indices>
  void store(double value, Indices... indices) const {
    write(address(indices...), value);
  }
  void store_flat(double value, Index flat) const { write(address_flat(flat), value); }

  // Raw element of any 1- to 8-byte dtype as an integer: i32 and i64 sign-extended, u8 and the bits
  // of floating-point formats zero-extended.
  template <typename... Indices>
  [[nodiscard]] Index load_integer(Indices... indices) const {
    return read_integer(address(indices...));
  }
  [[nodiscard]] Index load_integer_flat(Index flat) const {
    return read_integer(address_flat(flat));
  }

  // The low bits of value as the raw element; value must fit the dtype.
  template <typename... Indices>
  void store_integer(Index value, Indices... indices) const {
    write_integer(address(indices...), value);
  }
  void store_integer_flat(Index value, Index flat) const {
    write_integer(address_flat(flat), value);
  }

 private:
  template <typename T>
  static Index read_as(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<Index>(value);
  }
  template <typename T>
  static void write_as(std::byte* to, Index value) {
    const T narrow = static_cast<T>(value);
    std::memcpy(to, &narrow, sizeof narrow);
  }

  [[nodiscard]] Index read_integer(const std::byte* from) const {
    switch (bytes_) {
      case 1:
        return read_as<std::uint8_t>(from);
      case 2:
        return read_as<std::uint16_t>(from);
      case 4:
        return dtype_ == DROPLESS_I32 ? read_as<std::int32_t>(from) : read_as<std::uint32_t>(from);
      default:
        return read_as<std::int64_t>(from);
    }
  }
  void write_integer(std::byte* to, Index value) const {
    switch (bytes_) {
      case 1:
        return write_as<std::uint8_t>(to, value);
      case 2:
        return write_as<std::uint16_t>(to, value);
      case 4:
        return write_as<std::uint32_t>(to, value);
      default:
        return write_as<std::int64_t>(to, value);
    }
  }
  [[nodiscard]] double read(const std::byte* from) const {
    const Index raw = read_integer(from);
    return is_floating_point(dtype_) ? decode_bits(dtype_, static_cast<std::uint32_t>(raw))
                                     : static_cast<double>(raw);
  }
  void write(std::byte* to, double value) const {
    if (is_floating_point(dtype_)) write_integer(to, encode_bits(dtype_, value));
  }

  std::byte* data_;
  dropless_dtype dtype_;
  int rank_;
  int bytes_;
  Index shape_[DROPLESS_MAX_RANK];
  Index strides_[DROPLESS_MAX_RANK];
};

}  // namespace dropless
