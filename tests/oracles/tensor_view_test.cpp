// SPDX-License-Identifier: Apache-2.0
// TensorView: addresses from strides, exact loads, single-rounding stores, integers.
#include "dropless/formats/tensor_view.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace dropless {
namespace {

dropless_tensor tensor(void* data, dropless_dtype dtype, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> strides) {
  dropless_tensor result = {};
  result.struct_size = sizeof result;
  result.struct_version = DROPLESS_STRUCT_VERSION;
  result.data = data;
  result.dtype = dtype;
  result.rank = static_cast<std::int32_t>(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    result.shape[axis] = shape[axis];
    result.strides[axis] = strides[axis];
  }
  return result;
}

TEST(TensorViewTest, StridesSelectElements) {
  std::array<float, 24> data;
  for (int i = 0; i < 24; ++i) data[static_cast<std::size_t>(i)] = static_cast<float>(i);
  // A transposed 3 x 2 window of a row-major 4 x 6 matrix that starts at element 7.
  const TensorView view(tensor(data.data() + 7, DROPLESS_FP32, {3, 2}, {1, 6}));
  EXPECT_EQ(view.size(), 6);
  EXPECT_FALSE(view.is_contiguous());
  const double expected[3][2] = {{7, 13}, {8, 14}, {9, 15}};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) {
      EXPECT_EQ(view.load(i, j), expected[i][j]);
      EXPECT_EQ(view.load_flat(i * 2 + j), expected[i][j]);
    }
  }
  EXPECT_EQ(view.load(2), 9);  // missing indices are 0
  view.store(-1.5, 1, 1);
  view.store_flat(-2.5, 4);
  EXPECT_EQ(data[14], -1.5f);
  EXPECT_EQ(data[9], -2.5f);
  EXPECT_EQ(data[13], 13.0f);
}

TEST(TensorViewTest, NegativeAndZeroStrides) {
  std::array<float, 4> data = {1, 2, 3, 4};
  const TensorView backwards(tensor(data.data() + 3, DROPLESS_FP32, {4}, {-1}));
  EXPECT_EQ(backwards.load(0), 4);
  EXPECT_EQ(backwards.load(3), 1);
  const TensorView broadcast(tensor(data.data() + 1, DROPLESS_FP32, {5, 2}, {0, 1}));
  EXPECT_EQ(broadcast.load(4, 1), 3);
}

TEST(TensorViewTest, Contiguity) {
  const auto contiguous = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return TensorView(tensor(nullptr, DROPLESS_BF16, shape, strides)).is_contiguous();
  };
  EXPECT_TRUE(contiguous({2, 3, 4}, {12, 4, 1}));
  EXPECT_TRUE(contiguous({2, 1, 4}, {4, 99, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {4, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({0, 3}, {3, 1}));
}

TEST(TensorViewTest, AddressesBeyondThirtyTwoBits) {
  // Pointer arithmetic only, nothing is read: element 3 * 2^31 of two bytes each.
  std::array<std::uint16_t, 1> data = {0};
  const TensorView view(
      tensor(data.data(), DROPLESS_BF16, {4, std::int64_t{1} << 31}, {std::int64_t{1} << 31, 1}));
  const auto base = reinterpret_cast<std::uintptr_t>(data.data());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.address(3, 5)) - base,
            (std::uintptr_t{3} << 32) + 10);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.address_flat((std::int64_t{3} << 31) + 5)) - base,
            (std::uintptr_t{3} << 32) + 10);
}

TEST(TensorViewTest, StoreRoundsOnceAndSaturatesEightBits) {
  const double hard = 0x1.01p0 + 0x1p-40;  // just above a bf16 midpoint
  const double inf = std::numeric_limits<double>::infinity();
  const struct {
    dropless_dtype dtype;
    double in, out;
  } rows[] = {
      {DROPLESS_FP32, hard, static_cast<double>(static_cast<float>(hard))},
      {DROPLESS_FP32, 1e300, inf},
      {DROPLESS_BF16, hard, 0x1.02p0},
      {DROPLESS_BF16, 1e300, inf},
      {DROPLESS_FP16, 70000.0, inf},
      {DROPLESS_FP16, 0x1p-24, 0x1p-24},
      {DROPLESS_E4M3, 1e30, 448.0},
      {DROPLESS_E4M3, -inf, -448.0},
      {DROPLESS_E5M2, inf, 57344.0},
      {DROPLESS_E8M0, 0x1p-127, 0x1p-127},
      {DROPLESS_E8M0, 0.25, 0.25},
  };
  for (const auto& row : rows) {
    std::array<std::byte, 16> buffer = {};
    const TensorView view(tensor(buffer.data() + 1, row.dtype, {1}, {1}));  // unaligned
    view.store(row.in, 0);
    EXPECT_EQ(view.load(0), row.out) << "dtype " << row.dtype;
    EXPECT_EQ(round_to(row.dtype, row.in), row.out) << "dtype " << row.dtype;
    EXPECT_EQ(buffer[0], std::byte{0});
    EXPECT_EQ(buffer[static_cast<std::size_t>(1 + element_bytes(row.dtype))], std::byte{0});
    view.store(std::numeric_limits<double>::quiet_NaN(), 0);
    EXPECT_TRUE(std::isnan(view.load(0))) << "dtype " << row.dtype;
  }
}

TEST(TensorViewTest, Integers) {
  std::array<std::int32_t, 3> i32 = {-1, std::numeric_limits<std::int32_t>::max(), 0};
  const TensorView narrow(tensor(i32.data(), DROPLESS_I32, {3}, {1}));
  EXPECT_EQ(narrow.load_integer(0), -1);
  EXPECT_EQ(narrow.load(0), -1.0);
  EXPECT_EQ(narrow.load_integer(1), std::numeric_limits<std::int32_t>::max());
  narrow.store_integer(-7, 2);
  EXPECT_EQ(i32[2], -7);

  std::array<std::int64_t, 2> i64 = {(std::int64_t{1} << 53) + 1, -5};
  const TensorView wide(tensor(i64.data(), DROPLESS_I64, {2}, {1}));
  EXPECT_EQ(wide.load_integer(0), (std::int64_t{1} << 53) + 1);
  EXPECT_EQ(wide.load_integer_flat(1), -5);
  wide.store_integer_flat(std::numeric_limits<std::int64_t>::min(), 1);
  EXPECT_EQ(i64[1], std::numeric_limits<std::int64_t>::min());

  std::array<std::uint8_t, 2> u8 = {255, 0};
  const TensorView bytes(tensor(u8.data(), DROPLESS_U8, {2}, {1}));
  EXPECT_EQ(bytes.load_integer(0), 255);
  bytes.store_integer(200, 1);
  EXPECT_EQ(u8[1], 200);
  bytes.store(3.0, 1);  // not a floating-point dtype: left alone
  EXPECT_EQ(u8[1], 200);
}

TEST(TensorViewTest, RawBitsOfFloatingPointElements) {
  std::array<std::uint16_t, 1> bf16 = {0xFFC1};
  EXPECT_EQ(TensorView(tensor(bf16.data(), DROPLESS_BF16, {1}, {1})).load_integer(0), 0xFFC1);
  std::array<std::uint32_t, 1> fp32 = {0x80000000u};
  EXPECT_EQ(TensorView(tensor(fp32.data(), DROPLESS_FP32, {1}, {1})).load_integer(0), 0x80000000);
}

}  // namespace
}  // namespace dropless
