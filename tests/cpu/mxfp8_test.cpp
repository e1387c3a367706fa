// SPDX-License-Identifier: Apache-2.0
// MXFP8: vectors by hand, every bf16 number against the format headers, layouts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Coded {
  Array codes, scales;
  int scale(Index i) const { return static_cast<int>(scales.view().load_integer_flat(i)); }
  int code(Index i) const { return static_cast<int>(codes.view().load_integer_flat(i)); }
};

Coded quantize_rows(const Array& x, dropless_dtype format = DROPLESS_E4M3) {
  const Index rows = x.get()->shape[0], columns = x.get()->shape[1];
  Coded out{Array(format, {rows, columns}), Array(DROPLESS_E8M0, {rows, (columns + 31) / 32})};
  auto args = make_args<dropless_quantize_args>();
  args.x = x.get(), args.row_codes = out.codes.get(), args.row_scales = out.scales.get();
  const Outcome outcome = perform(implementation().quantize, args);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return out;
}

// A block that holds one number; the byte and the code of that number.
std::pair<int, int> one(double value, dropless_dtype source, dropless_dtype format) {
  Array x = Array(source, {1, 32}).fill(0);
  x.view().store_flat(value, 17);
  const Coded coded = quantize_rows(x, format);
  EXPECT_EQ(coded.code(0), 0);
  return {coded.scale(0), coded.code(17)};
}

using Pair = std::pair<int, int>;

TEST(Mxfp8, ScalesByHand) {
  for (const Isa most : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const WithIsa limit(most);
    for (const dropless_dtype source : {DROPLESS_FP32, DROPLESS_BF16}) {
      EXPECT_EQ(one(256, source, DROPLESS_E4M3), (Pair{127, 0x78}));
      EXPECT_EQ(one(448, source, DROPLESS_E4M3), (Pair{127, 0x7E}));
      EXPECT_EQ(one(450, source, DROPLESS_E4M3), (Pair{128, 0x76}));
      EXPECT_EQ(one(-500, source, DROPLESS_E4M3), (Pair{128, 0xF8}));
      EXPECT_EQ(one(57344, source, DROPLESS_E5M2), (Pair{127, 0x7B}));
      EXPECT_EQ(one(-0.0, source, DROPLESS_E4M3), (Pair{0, 0x80}));
      EXPECT_EQ(one(std::ldexp(1.0, -127), source, DROPLESS_E4M3), (Pair{0, 0x38}));
      EXPECT_EQ(one(std::ldexp(1.0, -133), source, DROPLESS_E4M3), (Pair{0, 0x08}));
      EXPECT_EQ(one(std::ldexp(1.0, -136), source, DROPLESS_E4M3),
                source == DROPLESS_FP32 ? (Pair{0, 0x01}) : (Pair{0, 0x00}));
      EXPECT_EQ(one(infinity, source, DROPLESS_E4M3), (Pair{254, 0x7E}));
      EXPECT_EQ(one(-infinity, source, DROPLESS_E5M2), (Pair{254, 0xFB}));
      EXPECT_EQ(one(nan, source, DROPLESS_E4M3).first, 0);
      EXPECT_EQ(one(nan, source, DROPLESS_E4M3).second & 0x7F, 0x7F);
    }
  }
}

// Every bf16 number in blocks with amaxes of all sizes, against the conversion of the formats.
TEST(Mxfp8, EveryBf16NumberUnderManyScales) {
  for (const Isa most : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const WithIsa limit(most);
    for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
      const Index blocks = 65536 / 31 + 1;
      Array x = Array(DROPLESS_BF16, {blocks, 32}).fill(0);
      auto* bits = static_cast<std::uint16_t*>(x.raw().data);
      for (Index i = 0; i < 65536; ++i) {
        bits[i / 31 * 32 + 1 + i % 31] = static_cast<std::uint16_t>(i);
      }
      // The first element of a block is an amax above, equal to, or below its neighbours.
      for (Index b = 0; b < blocks; ++b) {
        bits[b * 32] = static_cast<std::uint16_t>(((b * 31) & 0x7FFF) + (b * 997) % 2048);
      }
      const Coded coded = quantize_rows(x, format);
      for (Index i = 0; i < blocks * 32; ++i) {
        const double value = x.at(i) * std::ldexp(1.0, 127 - coded.scale(i / 32));
        const int expected = static_cast<int>(encode_bits(format, value));
        if (std::isnan(x.at(i))) {
          ASSERT_TRUE(std::isnan(coded.codes.at(i)));
        } else {
          ASSERT_EQ(coded.code(i), expected) << x.at(i) << " under " << coded.scale(i / 32);
        }
      }
    }
  }
}

// Columns and rows of a transposed matrix are the same blocks, packed or linear.
TEST(Mxfp8, DirectionsAndLayoutsAgree) {
  const Index rows = 160, columns = 75;
  const Array x = Array(DROPLESS_BF16, {rows, columns}).random(1, 100);
  Array transposed(DROPLESS_BF16, {columns, rows});
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) transposed.view().store(x.view().load(i, j), j, i);
  }
  const Coded by_row = quantize_rows(transposed);
  const Index blocks = rows / 32;
  const Array codes(DROPLESS_E4M3, {rows, columns});
  const Array linear(DROPLESS_E8M0, {blocks, columns});
  auto args = make_args<dropless_quantize_args>();
  args.x = x.get(), args.column_codes = codes.get(), args.column_scales = linear.get();
  ASSERT_EQ(perform(implementation().quantize, args).status, DROPLESS_OK);
  const Array packed = Array(DROPLESS_E8M0, {512 * 1 * 2}).random_bytes(2);
  args.column_scales = packed.get(), args.scale_layout = DROPLESS_SCALES_PACKED;
  ASSERT_EQ(perform(implementation().quantize, args).status, DROPLESS_OK);
  Index nonzero = 0;
  for (Index j = 0; j < columns; ++j) {
    for (Index b = 0; b < blocks; ++b) {
      const Index offset = 512 * (b / 4) + j % 32 * 16 + j % 128 / 32 * 4 + b % 4;
      const Index byte = by_row.scale(j * blocks + b);
      EXPECT_EQ(linear.view().load_integer(b, j), byte);
      EXPECT_EQ(packed.view().load_integer(offset), byte);
      nonzero += byte != 0 ? 1 : 0;
    }
    for (Index i = 0; i < rows; ++i) {
      ASSERT_EQ(codes.view().load_integer(i, j), by_row.codes.view().load_integer(j, i));
    }
  }
  for (Index i = 0; i < packed.size(); ++i) nonzero -= packed.view().load_integer(i) != 0 ? 1 : 0;
  EXPECT_EQ(nonzero, 0) << "padding of the packed layout is not zero";
}

TEST(Mxfp8, SquareTilesShareTheirAmaxAndPaddingIsZero) {
  Array x = Array(DROPLESS_FP32, {40, 40}).fill(1);
  x.view().store(448.0, 3, 5);
  x.view().store(1e30, 39, 39);  // a padding row: beyond the counts
  const Array offsets = Array(DROPLESS_I64, {2}).set({0, 40});
  const Array counts = Array(DROPLESS_I64, {1}).set({36});
  const Array row_codes(DROPLESS_E4M3, {40, 40}), column_codes(DROPLESS_E4M3, {40, 40});
  const Array row_scales(DROPLESS_E8M0, {40, 2}), column_scales(DROPLESS_E8M0, {2, 40});
  auto args = make_args<dropless_quantize_args>();
  args.square_tiles = 1, args.x = x.get(), args.offsets = offsets.get();
  args.counts = counts.get();
  args.row_codes = row_codes.get(), args.row_scales = row_scales.get();
  args.column_codes = column_codes.get(), args.column_scales = column_scales.get();
  ASSERT_EQ(perform(implementation().quantize, args).status, DROPLESS_OK);
  for (Index i = 0; i < 40; ++i) {
    const Index first = i < 32 ? 127 : i < 36 ? 119 : 0, second = i < 36 ? 119 : 0;
    EXPECT_EQ(row_scales.view().load_integer(i, Index{0}), first) << i;
    EXPECT_EQ(row_scales.view().load_integer(i, Index{1}), second) << i;
    EXPECT_EQ(column_scales.view().load_integer(Index{0}, i), i < 32 ? 127 : 119) << i;
    EXPECT_EQ(column_scales.view().load_integer(Index{1}, i), 119) << i;
  }
  EXPECT_EQ(row_codes.view().load_integer(39, 39), 0);
  EXPECT_EQ(column_codes.view().load_integer(39, 39), 0);
}

TEST(Mxfp8, DequantiseEveryCodeUnderEveryScale) {
  for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
    Array codes(format, {256, 256}), scales(DROPLESS_E8M0, {256, 8});
    for (Index i = 0; i < 256; ++i) {
      for (Index j = 0; j < 256; ++j) codes.view().store_integer(j, i, j);
      for (Index b = 0; b < 8; ++b) scales.view().store_integer(i, i, b);
    }
    const Array y(DROPLESS_FP32, {256, 256});
    auto args = make_args<dropless_dequantize_args>();
    args.codes = codes.get(), args.scales = scales.get(), args.y = y.get();
    ASSERT_EQ(perform(implementation().dequantize, args).status, DROPLESS_OK);
    for (Index i = 0; i < 256; ++i) {
      for (Index j = 0; j < 256; ++j) {
        const double exact = codes.view().load(i, j) * scales.view().load(i, j / 32);
        const double got = y.view().load(i, j);
        if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(got));
        } else {
          ASSERT_EQ(got, static_cast<double>(static_cast<float>(exact))) << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dropless::cpu::testing
