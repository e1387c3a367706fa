// SPDX-License-Identifier: Apache-2.0
// Where codes and scales of the reference stand: directions, groups, counts, partial blocks, square
// tiles, linear and packed scales.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "reference/mxfp8.h"
#include "tests/reference/random_data.h"

namespace dropless::reference {
namespace {

using List = std::vector<Index>;
constexpr int kRowWise = DROPLESS_BLOCKS_ROW_WISE;
constexpr int kColumnWise = DROPLESS_BLOCKS_COLUMN_WISE;
constexpr int kLinear = DROPLESS_SCALES_LINEAR;
constexpr int kPacked = DROPLESS_SCALES_PACKED;

dropless_profile default_profile() {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  return profile;
}

QuantizeSettings settings_with(int layout, bool square_tiles = false) {
  QuantizeSettings settings;
  settings.scale_layout = layout;
  settings.square_tiles = square_tiles;
  return settings;
}

// Data with a different magnitude in every element, so that every block has its own scale.
Doubles spread(Index count, std::uint64_t seed) {
  test::RandomData random(seed);
  Doubles x = random.uniforms(count, -1, 1);
  for (double& value : x) {
    value = static_cast<double>(
        static_cast<float>(std::ldexp(value, static_cast<int>(random.integer(-12, 12)))));
  }
  return x;
}

TEST(Mxfp8Layout, PackedOffsetsByHand) {
  EXPECT_EQ(packed_offset(0, 0, 1), 0);
  EXPECT_EQ(packed_offset(1, 0, 1), 16);
  EXPECT_EQ(packed_offset(0, 3, 4), 3);
  EXPECT_EQ(packed_offset(32, 0, 1), 4);
  EXPECT_EQ(packed_offset(33, 2, 4), 22);
  EXPECT_EQ(packed_offset(127, 3, 4), 511);
  EXPECT_EQ(packed_offset(0, 4, 5), 512);
  EXPECT_EQ(packed_offset(128, 0, 5), 1024);
  EXPECT_EQ(packed_offset(200, 6, 7), 1674);
  EXPECT_EQ(packed_bytes(1, 1), 512);
  EXPECT_EQ(packed_bytes(128, 4), 512);
  EXPECT_EQ(packed_bytes(129, 4), 1024);
  EXPECT_EQ(packed_bytes(129, 5), 2048);
  EXPECT_EQ(packed_bytes(0, 5), 0);
  EXPECT_EQ(packed_bytes(5, 0), 0);
}

// Groups of 40, 0 and 130 rows in a buffer of 180; 70 columns = 3 blocks.
const List kOffsets = {0, 40, 40, 170};
const List kCounts = {33, 0, 100};

TEST(Mxfp8Layout, SizesAndPositionsByHand) {
  const Groups groups{kOffsets, kCounts};
  EXPECT_EQ(scale_tensor_bytes(kRowWise, kLinear, 180, 70, groups), 180 * 3);
  EXPECT_EQ(scale_tensor_bytes(kColumnWise, kLinear, 180, 70, groups), (2 + 0 + 5) * 70);
  EXPECT_EQ(scale_tensor_bytes(kRowWise, kPacked, 180, 70, groups), 512 * (1 + 0 + 2));
  EXPECT_EQ(scale_tensor_bytes(kColumnWise, kPacked, 180, 70, groups), 512 * (1 + 0 + 2));
  EXPECT_EQ(scale_tensor_bytes(kColumnWise, kPacked, 180, 70), 512 * 2);

  const auto position = [&](int direction, int layout, Index row, Index column) {
    return scale_position(direction, layout, 180, 70, row, column, groups);
  };
  EXPECT_EQ(position(kRowWise, kLinear, 41, 69), 41 * 3 + 2);
  EXPECT_EQ(position(kColumnWise, kLinear, 39, 7), 70 + 7);         // block 1 of group 0
  EXPECT_EQ(position(kColumnWise, kLinear, 40, 7), 2 * 70 + 7);     // block 0 of group 2
  EXPECT_EQ(position(kColumnWise, kLinear, 169, 69), 6 * 70 + 69);  // its partial block 4
  EXPECT_EQ(position(kRowWise, kPacked, 39, 64), 7 * 16 + 4 + 2);
  EXPECT_EQ(position(kRowWise, kPacked, 40, 0), 512);
  EXPECT_EQ(position(kRowWise, kPacked, 169, 32), 512 + 512 + 16 + 1);
  EXPECT_EQ(position(kColumnWise, kPacked, 40, 0), 512);
  EXPECT_EQ(position(kColumnWise, kPacked, 169, 69), 512 + 512 + (69 % 32) * 16 + 2 * 4 + 0);
  EXPECT_EQ(position(kRowWise, kLinear, 170, 0), -1);
  EXPECT_EQ(position(kColumnWise, kPacked, 179, 0), -1);
}

TEST(Mxfp8Layout, WeightsAreOneGroupPerExpert) {
  const List offsets = weight_offsets(3, 48);
  EXPECT_EQ(offsets, (List{0, 48, 96, 144}));
  EXPECT_EQ(weight_offsets(0, 48), (List{0}));
  // [E,ceil(O/32),I] linear, one packed group per expert.
  EXPECT_EQ(scale_tensor_bytes(kColumnWise, kLinear, 144, 64, {offsets, {}}), 3 * 2 * 64);
  EXPECT_EQ(scale_position(kColumnWise, kLinear, 144, 64, 2 * 48 + 32, 5, {offsets, {}}),
            (2 * 2 + 1) * 64 + 5);
  EXPECT_EQ(scale_tensor_bytes(kRowWise, kPacked, 144, 64, {offsets, {}}), 3 * 512);
}

// Every scale byte and code of every layout, element by element from the definition.
TEST(Mxfp8Layout, BlocksGroupsAndCounts) {
  constexpr Index kRows = 180, kColumns = 70;
  Doubles x = spread(kRows * kColumns, 21);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Index row = 0; row < kRows; ++row) {  // whatever padding and tail hold has no influence
    const bool real = row < 33 || (row >= 40 && row < 140);
    for (Index c = 0; c < kColumns && !real; ++c) {
      x[row * kColumns + c] = (row + c) % 2 == 0 ? nan : 0x1p100;
    }
  }
  const Groups groups{kOffsets, kCounts};
  for (const bool square : {false, true}) {
    for (const int layout : {kLinear, kPacked}) {
      const Quantized q =
          quantize(settings_with(layout, square), default_profile(), kRows, kColumns, x, groups);
      for (const int direction : {kRowWise, kColumnWise}) {
        const bool row_wise = direction == kRowWise;
        const auto& codes = row_wise ? q.row_codes : q.column_codes;
        const auto& scales = row_wise ? q.row_scales : q.column_scales;
        ASSERT_EQ(static_cast<Index>(scales.size()),
                  scale_tensor_bytes(direction, layout, kRows, kColumns, groups));
        const Doubles back =
            dequantize(direction, layout, DROPLESS_E4M3, kRows, kColumns, codes, scales, groups);
        for (Index row = 0; row < kRows; ++row) {
          for (Index column = 0; column < kColumns; ++column) {
            const Index element = row * kColumns + column;
            const Index position =
                scale_position(direction, layout, kRows, kColumns, row, column, groups);
            if (row >= 170) {
              EXPECT_EQ(position, -1);
              EXPECT_FALSE(row_wise ? q.row_judged[element] : q.column_judged[element]);
              EXPECT_EQ(back[element], 0);
              continue;
            }
            EXPECT_TRUE(row_wise ? q.row_judged[element] : q.column_judged[element]);
            const Index first = row < 40 ? 0 : 40;
            const Index real_end = first + (row < 40 ? 33 : 100);
            // The rows and columns that share this element's amax.
            double amax = 0;
            for (Index r = first; r < real_end; ++r) {
              for (Index c = 0; c < kColumns; ++c) {
                const bool same_rows = (r - first) / 32 == (row - first) / 32;
                const bool same_columns = c / 32 == column / 32;
                const bool in_block = square     ? same_rows && same_columns
                                      : row_wise ? r == row && same_columns
                                                 : same_rows && c == column;
                if (in_block) amax = std::max(amax, std::abs(x[r * kColumns + c]));
              }
            }
            const bool real = row < real_end;
            const std::uint8_t byte = row_wise && !real
                                          ? std::uint8_t{0}
                                          : scale_byte(amax, DROPLESS_E4M3, DROPLESS_SCALE_RCEIL);
            ASSERT_EQ(scales[position], byte) << row << " " << column;
            const std::uint8_t code =
                real ? encode(x[element], byte, DROPLESS_E4M3) : std::uint8_t{0};
            ASSERT_EQ(codes[element], code) << row << " " << column;
            ASSERT_EQ(back[element], real ? decode(code, byte, DROPLESS_E4M3) : 0);
          }
        }
      }
      if (square) {
        EXPECT_EQ(q.row_codes, q.column_codes);
      }
    }
  }
}

TEST(Mxfp8Layout, PackedPaddingIsWrittenAndNotRead) {
  dropless_profile profile = default_profile();
  profile.scale_padding_byte = 0x5A;
  const Doubles x = spread(40 * 70, 4);
  const List offsets = {0, 40};
  const Groups groups{offsets, {}};
  Quantized q = quantize(settings_with(kPacked), profile, 40, 70, x, groups);
  for (const int direction : {kRowWise, kColumnWise}) {
    const bool row_wise = direction == kRowWise;
    std::vector<std::uint8_t>& scales = row_wise ? q.row_scales : q.column_scales;
    const auto& codes = row_wise ? q.row_codes : q.column_codes;
    std::set<Index> used;
    for (Index row = 0; row < 40; ++row) {
      for (Index column = 0; column < 70; ++column) {
        used.insert(scale_position(direction, kPacked, 40, 70, row, column, groups));
      }
    }
    EXPECT_EQ(used.size(), row_wise ? 40u * 3 : 70u * 2);
    const Doubles before =
        dequantize(direction, kPacked, DROPLESS_E4M3, 40, 70, codes, scales, groups);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (used.contains(static_cast<Index>(i))) continue;
      EXPECT_EQ(scales[i], 0x5A);
      scales[i] = 0xFF;
    }
    EXPECT_EQ(dequantize(direction, kPacked, DROPLESS_E4M3, 40, 70, codes, scales, groups), before);
  }
}

TEST(Mxfp8Layout, RowsBeyondTheCountsReadAsZero) {
  const List offsets = {0, 32}, counts = {3};
  const std::vector<std::uint8_t> codes(40 * 32, 0x7E), scales(40, 200);
  const Doubles back =
      dequantize(kRowWise, kLinear, DROPLESS_E4M3, 40, 32, codes, scales, {offsets, counts});
  for (Index i = 0; i < 40 * 32; ++i) {
    EXPECT_EQ(back[i], i < 3 * 32 ? 448 * 0x1p73 : 0) << i;
  }
}

TEST(Mxfp8Layout, FormatsPerDirection) {
  QuantizeSettings settings;
  settings.column_format = DROPLESS_E5M2;
  const Doubles x(32 * 32, 448.0);
  const Quantized q = quantize(settings, default_profile(), 32, 32, x);
  EXPECT_EQ(q.row_scales[0], 127);
  EXPECT_EQ(q.column_scales[0], 120);
  EXPECT_EQ(q.row_codes[0], 0x7E);
  EXPECT_EQ(q.column_codes[0], 0x7B);
}

TEST(Mxfp8Layout, NothingToQuantise) {
  const List offsets = {0, 0, 0};
  const Quantized q = quantize(settings_with(kPacked), default_profile(), 0, 64, {}, {offsets, {}});
  EXPECT_TRUE(q.row_codes.empty() && q.row_scales.empty() && q.column_scales.empty());
  EXPECT_TRUE(quantize({}, default_profile(), 5, 0, {}).row_scales.empty());
  const Quantized tail = quantize({}, default_profile(), 2, 32, Doubles(64, 1.0), {offsets, {}});
  EXPECT_FALSE(tail.row_judged[0]);
}

TEST(Mxfp8Layout, Refusals) {
  const auto refused = [](const List& offsets, const List& counts) {
    try {
      zones(10, {offsets, counts});
      return false;
    } catch (const Refused&) {
      return true;
    }
  };
  EXPECT_FALSE(refused({0, 4, 10}, {4, 0}));
  EXPECT_TRUE(refused({0, 4, 3}, {}));
  EXPECT_TRUE(refused({0, 4, 11}, {}));
  EXPECT_TRUE(refused({1, 4, 10}, {}));
  EXPECT_TRUE(refused({0, 4, 10}, {5, 0}));
  EXPECT_TRUE(refused({0, 4, 10}, {4, -1}));
  EXPECT_TRUE(refused({0, 4, 10}, {4}));
  EXPECT_TRUE(refused({}, {11}));
  EXPECT_THROW(quantize({}, default_profile(), 2, 3, Doubles(5)), Refused);
}

}  // namespace
}  // namespace dropless::reference
