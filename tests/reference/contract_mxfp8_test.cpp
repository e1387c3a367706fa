// SPDX-License-Identifier: Apache-2.0
// Quantise and dequantise of the reference through the contract.
#include <gtest/gtest.h>

#include "tests/reference/contract_fixture.h"

namespace dropless::reference::testing {
namespace {

using Codes = std::vector<Index>;

// Row r, column c of a 5 x 33 matrix: powers of two, so that every code and byte is known.
Doubles matrix() {
  Doubles values;
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < 33; ++c) values.push_back(c == 0 || c == 32 ? std::ldexp(1.0, r + c) : 0);
  }
  return values;
}

// Two groups of rows 0..1 and 2..3 of which row 3 is padding; row 4 lies beyond the last zone.
struct Quantize : Fixture {
  dropless_quantize_args args = arguments<dropless_quantize_args>();
  explicit Quantize(Index gap) : Fixture(gap) {
    args.x = input("x", DROPLESS_FP32, {5, 33}, matrix());
    args.offsets = input("offsets", DROPLESS_I64, {3}, {0, 2, 4});
    args.counts = input("counts", DROPLESS_I64, {2}, {2, 1});
    args.row_codes = output("row_codes", DROPLESS_E4M3, {5, 33});
    args.row_scales = output("row_scales", DROPLESS_E8M0, {5, 2});
    args.column_codes = output("column_codes", DROPLESS_E5M2, {5, 33});
    args.column_scales = output("column_scales", DROPLESS_E8M0, {2, 33});
  }
  dropless_status run() override { return table().quantize(table().context, &call, &args); }
};

// amax 2^j gives byte j - 8 + 127 and the code of 256 (E4M3: 0x78), or j - 15 + 127 and the code of
// 32768 (E5M2: 0x78).
TEST(ContractQuantize, ByHand) {
  Quantize o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Codes scales = o["row_scales"].integers();
  EXPECT_EQ(scales, (Codes{119, 151, 120, 152, 121, 153, 0, 0, 0xA5, 0xA5}));
  const Codes codes = o["row_codes"].integers();
  for (const std::size_t row : {0, 1, 2}) {
    EXPECT_EQ(codes[row * 33], 0x78);
    EXPECT_EQ(codes[row * 33 + 1], 0);
    EXPECT_EQ(codes[row * 33 + 32], 0x78);
  }
  for (std::size_t c = 0; c < 33; ++c) {
    EXPECT_EQ(codes[3 * 33 + c], 0);     // padding
    EXPECT_EQ(codes[4 * 33 + c], 0xA5);  // beyond the last zone
  }
  // Column 0: group 0 holds 1 and 2 (amax 2), group 1 holds 4 alone.
  EXPECT_EQ(o["column_scales"].integers()[0], 1 - 15 + 127);
  EXPECT_EQ(o["column_scales"].integers()[33], 2 - 15 + 127);
  EXPECT_EQ(o["column_codes"].integers()[0], 0x74);   // 16384
  EXPECT_EQ(o["column_codes"].integers()[33], 0x78);  // 32768
}

TEST(ContractQuantize, OneDirectionAndLongerScaleBuffers) {
  Quantize both(0), o(0);
  HostTensor longer("longer", DROPLESS_E8M0, {4, 33}, true, 0);
  o.args.row_codes = nullptr, o.args.row_scales = nullptr;
  o.args.column_scales = longer;
  ASSERT_EQ(both.run(), DROPLESS_OK);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(o["column_codes"].integers(), both["column_codes"].integers());
  Codes expected = both["column_scales"].integers();
  expected.insert(expected.end(), 66, 0xA5);
  EXPECT_EQ(longer.integers(), expected);
}

TEST(ContractQuantize, PackedWithItsPaddingByte) {
  Quantize o(0);
  o.profile.scale_padding_byte = 7;
  HostTensor rows("rows", DROPLESS_E8M0, {1025}, true, 0),
      columns("c", DROPLESS_E8M0, {1024}, true, 0);
  o.args.scale_layout = DROPLESS_SCALES_PACKED;
  o.args.row_scales = rows, o.args.column_scales = columns;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  // One 128 x 4 tile a group; row r of a group stands at 16 r.
  const Codes got = rows.integers();
  EXPECT_EQ(got[0], 119);
  EXPECT_EQ(got[1], 151);
  EXPECT_EQ(got[2], 7);
  EXPECT_EQ(got[16], 120);
  EXPECT_EQ(got[512], 121);
  EXPECT_EQ(got[512 + 16], 0);  // padding row
  EXPECT_EQ(got[1023], 7);
  EXPECT_EQ(got[1024], 0xA5);
}

TEST(ContractQuantize, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Quantize>();
  expect_tensors_are_checked<Quantize>();
  using O = Quantize;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.scale_layout = 2; }, "scale_layout = 2");
  refused([](O& o) { o.args.square_tiles = 2; }, "square_tiles = 2");
  refused([](O& o) { o.args.row_scales = nullptr; }, "row_scales is null");
  refused([](O& o) { o.args.column_codes = nullptr; }, "column_codes is null");
  refused(
      [](O& o) {
        o.args.row_codes = o.args.row_scales = o.args.column_codes = o.args.column_scales = nullptr;
      },
      "both null");
  refused([](O& o) { o["offsets"].set({0, 2, 6}); }, "offset 6");
  refused([](O& o) { o["offsets"].set({0, 2, 1}); }, "offsets fall");
  refused([](O& o) { o["offsets"].set({1, 2, 4}); }, "offsets begin with 1");
  refused([](O& o) { o["counts"].set({3, 1}); }, "count 3");
  refused([](O& o) { o["counts"].set({2, -1}); }, "count -1");
  refused([](O& o) { o.args.offsets = nullptr; }, "counts are given without offsets");
  refused([](O& o) { o["row_codes"].tensor.dtype = DROPLESS_U8; }, "row_codes has dtype");
  refused([](O& o) { o["x"].tensor.dtype = DROPLESS_E4M3; }, "x has dtype");
}

struct Dequantize : Fixture {
  dropless_dequantize_args args = arguments<dropless_dequantize_args>();
  explicit Dequantize(Index gap) : Fixture(gap) {
    args.direction = DROPLESS_BLOCKS_ROW_WISE;
    args.codes = input("codes", DROPLESS_E4M3, {4, 33}, Doubles(4 * 33, 1.5));
    args.scales = input("scales", DROPLESS_E8M0, {4, 2}, {127, 128, 126, 255, 200, 200, 9, 9});
    args.offsets = input("offsets", DROPLESS_I64, {2}, {0, 3});
    args.counts = input("counts", DROPLESS_I64, {1}, {2});
    args.y = output("y", DROPLESS_FP32, {4, 33});
  }
  dropless_status run() override { return table().dequantize(table().context, &call, &args); }
};

TEST(ContractDequantize, ByHand) {
  Dequantize o(0);
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  const Doubles y = o["y"].values();
  EXPECT_EQ(y[0], 1.5);
  EXPECT_EQ(y[32], 3);
  EXPECT_EQ(y[33], 0.75);
  EXPECT_TRUE(std::isnan(y[65]));
  for (std::size_t i = 66; i < 99; ++i) EXPECT_EQ(y[i], 0);
  EXPECT_EQ(o["y"].integers()[99], 0xA5A5A5A5);
  Dequantize zero(0);
  zero.profile.tail_rows = DROPLESS_TAIL_ZERO;
  ASSERT_EQ(zero.run(), DROPLESS_OK);
  EXPECT_EQ(zero["y"].integers()[99], 0);
}

TEST(ContractDequantize, ByteZeroToBf16) {
  Dequantize o(0);
  HostTensor y("y16", DROPLESS_BF16, {4, 33}, true, 2);
  o["scales"].set({0, 1, 2, 3, 4, 5, 6, 7});
  o.args.y = y;
  ASSERT_EQ(o.run(), DROPLESS_OK) << o.message();
  EXPECT_EQ(y.values()[0], std::ldexp(1.5, -127));
}

TEST(ContractDequantize, TensorsStridesAndRefusals) {
  expect_strides_are_honoured<Dequantize>();
  expect_tensors_are_checked<Dequantize>();
  using O = Dequantize;
  const auto refused = expect_spoiled_is_refused<O>;
  refused([](O& o) { o.args.direction = 2; }, "direction = 2");
  refused([](O& o) { o.args.scale_layout = -1; }, "scale_layout = -1");
  refused([](O& o) { o["scales"].tensor.shape[1] = 1; }, "scales has the shape [4,1]");
  refused([](O& o) { o["scales"].tensor.dtype = DROPLESS_U8; }, "scales has dtype");
  refused([](O& o) { o["y"].tensor.shape[0] = 3; }, "y has the shape");
  refused([](O& o) { o["codes"].tensor.dtype = DROPLESS_BF16; }, "codes has dtype");
  refused([](O& o) { o["counts"].set({4}); }, "count 4");
  refused([](O& o) { o.args.scales = nullptr; }, "scales is null");
  refused([](O& o) { o.args.codes = nullptr; }, "codes is null");
}

}  // namespace
}  // namespace dropless::reference::testing
