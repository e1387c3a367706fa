// SPDX-License-Identifier: Apache-2.0
// The reference's quantise, dequantise and scale layouts on whole ragged matrices with NaN,
// infinities, zeros and subnormals, against the second implementation.
#include "tests/oracles/block_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <sstream>

#include "reference/mxfp8.h"
#include "tests/oracles/scale_rules.h"

namespace dropless::oracles {
namespace {

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  Index between(Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random_);
  }
  bool chance(Index one_in) { return between(1, one_in) == 1; }
  float normal() { return std::normal_distribution<float>()(random_); }

 private:
  std::mt19937_64 random_;
};

// A matrix whose 32-blocks differ in amplitude by up to 2^+-140, some of them all zero, with
// special values sprinkled in; rows that are not real hold NaN.
void fill(Source& source, BlockProblem& problem) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  problem.x.resize(static_cast<std::size_t>(problem.rows * problem.columns));
  for (Index row = 0; row < problem.rows; ++row) {
    const int row_exponent = static_cast<int>(source.between(-20, 20));
    int exponent = 0;
    for (Index column = 0; column < problem.columns; ++column) {
      if (column % 32 == 0) exponent = static_cast<int>(source.between(-130, 115)) + row_exponent;
      float value = std::ldexp(source.normal(), exponent);
      if (source.chance(8)) value = source.chance(2) ? 0.0f : -0.0f;
      if (source.chance(150)) value = nan;
      if (source.chance(150)) value = source.chance(2) ? inf : -inf;
      if (!place_of_row(problem, row).real) value = nan;
      problem.x[static_cast<std::size_t>(row * problem.columns + column)] = value;
    }
  }
  for (int stripe = 0; stripe < 3; ++stripe) {  // all-zero blocks in both directions
    const Index column = source.between(0, problem.columns);
    for (Index row = 0; row < problem.rows && column < problem.columns; ++row) {
      if (place_of_row(problem, row).real) {
        problem.x[static_cast<std::size_t>(row * problem.columns + column)] =
            stripe == 0 ? -0.0 : 0;
      }
    }
    const Index row = source.between(0, problem.rows);
    for (Index c = 0; row < problem.rows && c < problem.columns; ++c) {
      if (place_of_row(problem, row).real) {
        problem.x[static_cast<std::size_t>(row * problem.columns + c)] = stripe == 0 ? -0.0 : 0;
      }
    }
  }
}

BlockProblem ragged(Source& source) {
  BlockProblem problem;
  problem.columns = source.between(0, 12) == 0 ? 0 : source.between(1, 170);
  const Index groups = source.between(0, 4);
  if (groups == 0) {
    problem.rows = source.between(0, 180);
  } else {
    const bool with_counts = source.chance(2);
    problem.offsets = {0};
    for (Index g = 0; g < groups; ++g) {
      const Index zone = source.chance(4) ? 0 : source.between(1, source.chance(4) ? 140 : 40);
      problem.offsets.push_back(problem.offsets.back() + zone);
      if (with_counts) problem.counts.push_back(source.between(0, zone));
    }
    problem.rows = problem.offsets.back() + source.between(0, 5);
  }
  problem.scale_rule = static_cast<int>(source.between(0, 3));
  problem.special_values = source.chance(3) ? DROPLESS_SPECIAL_BLOCK : DROPLESS_SPECIAL_ELEMENT;
  problem.scale_layout = source.chance(2) ? DROPLESS_SCALES_PACKED : DROPLESS_SCALES_LINEAR;
  problem.square_tiles = source.chance(3);
  problem.padding_byte = source.chance(3) ? 127 : 0;
  fill(source, problem);
  return problem;
}

reference::Groups groups_of(const BlockProblem& problem) {
  return {problem.offsets, problem.counts};
}

reference::Quantized run_reference(const BlockProblem& problem, dropless_dtype row_format,
                                   dropless_dtype column_format) {
  dropless_profile profile = {};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  profile.scale_rule = problem.scale_rule;
  profile.special_values = problem.special_values;
  profile.scale_padding_byte = problem.padding_byte;
  const reference::QuantizeSettings settings = {row_format, column_format, problem.scale_layout,
                                                problem.square_tiles};
  return reference::quantize(settings, profile, problem.rows, problem.columns, problem.x,
                             groups_of(problem));
}

std::string check_codes(const BlockProblem& problem, const std::vector<std::uint8_t>& codes,
                        const std::vector<bool>& judged) {
  const auto expected = expected_codes(problem);
  if (codes.size() != expected.size() || judged.size() != expected.size()) return "code count";
  const FormatTable& table = element_table(problem.format);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    bool right = true;
    switch (expected[i].kind) {
      case ExpectedCode::Kind::exactly:
        right = codes[i] == expected[i].code && judged[i];
        break;
      case ExpectedCode::Kind::any_nan:
        right = std::isnan(table.value(codes[i])) && judged[i];
        break;
      case ExpectedCode::Kind::zero:
        right = table.value(codes[i]) == 0;
        break;
      case ExpectedCode::Kind::not_judged:
        right = !judged[i];
        break;
    }
    if (right) continue;
    std::ostringstream text;
    text << "code " << i << ": x " << std::hexfloat << problem.x[i] << " expected kind "
         << static_cast<int>(expected[i].kind) << " code " << +expected[i].code << ", got "
         << +codes[i] << (judged[i] ? "" : " (not judged)");
    return text.str();
  }
  return "";
}

std::string check_scales(const BlockProblem& problem, const std::vector<std::uint8_t>& scales) {
  const auto expected = expected_scales(problem);
  if (scales.size() != expected.size()) {
    return "scale bytes: expected " + std::to_string(expected.size()) + ", got " +
           std::to_string(scales.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (expected[i] && *expected[i] != scales[i]) {
      return "scale " + std::to_string(i) + ": expected " + std::to_string(*expected[i]) +
             ", got " + std::to_string(scales[i]);
    }
  }
  return "";
}

TEST(BlockOracle, QuantiseWholeMatrices) {
  std::set<std::uint8_t> bytes_seen;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Source source(seed);
    BlockProblem problem = ragged(source);
    const dropless_dtype row_format = source.chance(2) ? DROPLESS_E4M3 : DROPLESS_E5M2;
    const dropless_dtype column_format = source.chance(2) ? DROPLESS_E4M3 : DROPLESS_E5M2;
    const auto got = run_reference(problem, row_format, column_format);
    problem.direction = DROPLESS_BLOCKS_ROW_WISE;
    problem.format = row_format;
    ASSERT_EQ(check_codes(problem, got.row_codes, got.row_judged), "") << "row, seed " << seed;
    ASSERT_EQ(check_scales(problem, got.row_scales), "") << "row, seed " << seed;
    bytes_seen.insert(got.row_scales.begin(), got.row_scales.end());
    problem.direction = DROPLESS_BLOCKS_COLUMN_WISE;
    problem.format = column_format;
    ASSERT_EQ(check_codes(problem, got.column_codes, got.column_judged), "")
        << "column, seed " << seed;
    ASSERT_EQ(check_scales(problem, got.column_scales), "") << "column, seed " << seed;
    bytes_seen.insert(got.column_scales.begin(), got.column_scales.end());
  }
  EXPECT_GT(bytes_seen.size(), 200u);  // the data really varies its scales
  for (int byte : {0, 254, 255}) EXPECT_TRUE(bytes_seen.count(static_cast<std::uint8_t>(byte)));
}

TEST(BlockOracle, ChecksNoticeDamage) {
  Source source(2);
  BlockProblem problem;
  problem.rows = 40;
  problem.columns = 70;
  fill(source, problem);
  const auto good = run_reference(problem, DROPLESS_E4M3, DROPLESS_E4M3);
  ASSERT_EQ(check_codes(problem, good.row_codes, good.row_judged), "");
  ASSERT_EQ(check_scales(problem, good.row_scales), "");
  for (std::size_t i = 0; i < good.row_codes.size(); i += 7) {
    auto codes = good.row_codes;
    codes[i] = codes[i] == 0x7F || codes[i] == 0xFF ? 0 : static_cast<std::uint8_t>(codes[i] ^ 1u);
    EXPECT_NE(check_codes(problem, codes, good.row_judged), "") << i;
  }
  for (std::size_t i = 0; i < good.row_scales.size(); ++i) {
    auto scales = good.row_scales;
    ++scales[i];
    EXPECT_NE(check_scales(problem, scales), "") << i;
  }
}

TEST(BlockOracle, ScalePositions) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Source source(1000 + seed);
    BlockProblem problem = ragged(source);
    for (int direction : {DROPLESS_BLOCKS_ROW_WISE, DROPLESS_BLOCKS_COLUMN_WISE}) {
      problem.direction = direction;
      const auto slots = scale_slots(problem);
      ASSERT_EQ(reference::scale_tensor_bytes(direction, problem.scale_layout, problem.rows,
                                              problem.columns, groups_of(problem)),
                static_cast<Index>(slots.size()))
          << seed;
      for (Index i = 0; i < 60 && problem.rows * problem.columns > 0; ++i) {
        const Index row = source.between(0, problem.rows - 1);
        const Index column = source.between(0, problem.columns - 1);
        ASSERT_EQ(reference::scale_position(direction, problem.scale_layout, problem.rows,
                                            problem.columns, row, column, groups_of(problem)),
                  expected_position(problem, slots, row, column))
            << "seed " << seed << " row " << row << " column " << column;
      }
    }
  }
}

// MXFP8-7: the map of one group is one-to-one, and every byte is where the inverse map finds it.
TEST(BlockOracle, PackedOffsetsOfEverySize) {
  for (Index outer : {1, 31, 32, 33, 127, 128, 129, 256, 300}) {
    for (Index blocks : {1, 3, 4, 5, 8, 9}) {
      BlockProblem problem;
      problem.rows = outer;
      problem.columns = blocks * 32;
      problem.scale_layout = DROPLESS_SCALES_PACKED;
      const auto slots = scale_slots(problem);
      ASSERT_EQ(reference::packed_bytes(outer, blocks), static_cast<Index>(slots.size()));
      Index found = 0;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (!slots[i].place) continue;
        ++found;
        ASSERT_EQ(reference::packed_offset(slots[i].place->outer, slots[i].place->block, blocks),
                  static_cast<Index>(i));
      }
      ASSERT_EQ(found, outer * blocks);
    }
  }
}

TEST(BlockOracle, Dequantise) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    Source source(2000 + seed);
    BlockProblem problem = ragged(source);
    problem.direction = source.chance(2) ? DROPLESS_BLOCKS_ROW_WISE : DROPLESS_BLOCKS_COLUMN_WISE;
    problem.format = source.chance(2) ? DROPLESS_E4M3 : DROPLESS_E5M2;
    const auto slots = scale_slots(problem);
    // Any byte anywhere, packed padding included: readers must not care (MXFP8-7).
    std::vector<std::uint8_t> codes(problem.x.size());
    std::vector<std::uint8_t> scales(slots.size());
    for (auto& code : codes) code = static_cast<std::uint8_t>(source.between(0, 255));
    for (auto& scale : scales) scale = static_cast<std::uint8_t>(source.between(0, 255));
    const auto got =
        reference::dequantize(problem.direction, problem.scale_layout, problem.format, problem.rows,
                              problem.columns, codes, scales, groups_of(problem));
    ASSERT_EQ(got.size(), codes.size());
    for (Index i = 0; i < problem.rows * problem.columns; i += 1 + i % 3) {
      const Index row = i / problem.columns;
      const RowPlace place = place_of_row(problem, row);
      if (place.group < 0) continue;
      const auto at = static_cast<std::size_t>(i);
      if (!place.real) {
        ASSERT_EQ(got[at], 0) << "padding, seed " << seed;
        continue;
      }
      const Index position = expected_position(problem, slots, row, i % problem.columns);
      const float expected =
          decode(codes[at], scales.at(static_cast<std::size_t>(position)), problem.format);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got[at])) << "seed " << seed << " element " << i;
      } else {
        ASSERT_EQ(got[at], static_cast<double>(expected)) << "seed " << seed << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace dropless::oracles
