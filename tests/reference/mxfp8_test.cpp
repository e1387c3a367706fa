// SPDX-License-Identifier: Apache-2.0
// Scale bytes, element codes and dequantised values of the reference against hand-computed vectors
// and against searches over all codes and exponents.
#include "reference/mxfp8.h"

#include <dropless/formats.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/random_data.h"

namespace dropless::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kRules[] = {DROPLESS_SCALE_FLOOR, DROPLESS_SCALE_RCEIL, DROPLESS_SCALE_CEIL,
                          DROPLESS_SCALE_EVEN};

dropless_profile profile_with(int scale_rule, int special_values = DROPLESS_SPECIAL_ELEMENT) {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  profile.scale_rule = scale_rule;
  profile.special_values = special_values;
  return profile;
}

double fp32(double x) {
  return static_cast<double>(static_cast<float>(x));
}

TEST(Mxfp8, ScaleRulesByHand) {
  struct Row {
    double amax;
    int k[4];           // FLOOR, RCEIL, CEIL, EVEN
    double decoded[4];  // the amax element after a round trip
  };
  const Row rows[] = {
      {256, {0, 0, 0, 0}, {256, 256, 256, 256}},    {300, {0, 0, 1, 0}, {288, 288, 288, 288}},
      {448, {0, 0, 1, 0}, {448, 448, 448, 448}},    {450, {0, 1, 1, 0}, {448, 448, 448, 448}},
      {480, {0, 1, 1, 0}, {448, 480, 480, 448}},    {500, {0, 1, 1, 1}, {448, 512, 512, 512}},
      {150, {-1, -1, 0, -1}, {144, 144, 144, 144}},
  };
  for (const Row& row : rows) {
    for (int r = 0; r < 4; ++r) {
      const std::uint8_t byte = scale_byte(row.amax, DROPLESS_E4M3, kRules[r]);
      EXPECT_EQ(byte, row.k[r] + 127) << row.amax << " rule " << kRules[r];
      const std::uint8_t code = encode(row.amax, byte, DROPLESS_E4M3);
      EXPECT_EQ(decode(code, byte, DROPLESS_E4M3), row.decoded[r]) << row.amax;
      EXPECT_EQ(encode(-row.amax, byte, DROPLESS_E4M3), code | 0x80);
    }
  }
  // EVEN: the threshold depends on the mantissa, 1.9375 for E4M3 and 1.875 for E5M2.
  EXPECT_EQ(scale_byte(1.9375 * 256, DROPLESS_E4M3, DROPLESS_SCALE_EVEN), 128);
  EXPECT_EQ(scale_byte(std::nextafter(1.9375 * 256, 0), DROPLESS_E4M3, DROPLESS_SCALE_EVEN), 127);
  EXPECT_EQ(scale_byte(1.875 * 32768, DROPLESS_E5M2, DROPLESS_SCALE_EVEN), 128);
  EXPECT_EQ(scale_byte(std::nextafter(1.875 * 32768, 0), DROPLESS_E5M2, DROPLESS_SCALE_EVEN), 127);
  EXPECT_THROW(scale_byte(1, DROPLESS_E4M3, 4), Refused);
  EXPECT_THROW(scale_byte(1, DROPLESS_BF16, DROPLESS_SCALE_RCEIL), Refused);
}

TEST(Mxfp8, ScaleEdges) {
  const auto rceil = [](double amax) { return scale_byte(amax, DROPLESS_E4M3, 0); };
  EXPECT_EQ(rceil(0), 0);
  EXPECT_EQ(rceil(0x1p-149), 0);
  EXPECT_EQ(rceil(0x1p-133), 0);
  EXPECT_EQ(rceil(0x1p-127), 0);
  EXPECT_EQ(rceil(448 * 0x1p-127), 0);
  EXPECT_EQ(rceil(0x1.c00002p-119), 1);  // one fp32 step above 448 * 2^-127
  EXPECT_EQ(rceil(448 * 0x1p-126), 1);
  EXPECT_EQ(rceil(static_cast<double>(std::nextafterf(448 * 0x1p-126f, 1.0f))), 2);
  EXPECT_EQ(rceil(0x1.fffffep127), 247);
  EXPECT_EQ(scale_byte(0x1.fffffep127, DROPLESS_E4M3, DROPLESS_SCALE_FLOOR), 246);
  EXPECT_EQ(scale_byte(0x1.fffffep127, DROPLESS_E5M2, DROPLESS_SCALE_RCEIL), 240);
  EXPECT_EQ(rceil(0x1p200), 254);
  for (const int rule : kRules) EXPECT_EQ(scale_byte(kInf, DROPLESS_E4M3, rule), 254);
}

// Every rule once more as a search over exponents, for all positive finite bf16 amaxes: FLOOR is
// the largest power of two not above amax, RCEIL the smallest scale that does not saturate, CEIL
// the smallest power of two not below amax, EVEN the exponent of amax rounded to the format's
// mantissa with halves up.
TEST(Mxfp8, EveryBf16Amax) {
  for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
    const int emax = format == DROPLESS_E4M3 ? 8 : 15;
    const int mantissa = format == DROPLESS_E4M3 ? 3 : 2;
    const double largest = format == DROPLESS_E4M3 ? 448 : 57344;
    for (std::uint32_t bits = 1; bits < 0x7F80; ++bits) {
      const double amax = Bf16::from_bits(bits).to_double();
      int floor = -160;
      while (std::ldexp(1.0, floor + 1) <= amax) ++floor;
      int ceil = floor + (std::ldexp(1.0, floor) < amax ? 1 : 0);
      int rceil = floor - emax;
      while (largest * std::ldexp(1.0, rceil) < amax) ++rceil;
      const double unit = std::ldexp(1.0, floor - mantissa);
      const double rounded = std::floor(amax / unit + 0.5) * unit;
      const int even = std::ldexp(1.0, floor + 1) <= rounded ? floor + 1 : floor;
      const auto byte = [](int k) { return std::min(std::max(k + 127, 0), 254); };
      ASSERT_EQ(scale_byte(amax, format, DROPLESS_SCALE_FLOOR), byte(floor - emax)) << amax;
      ASSERT_EQ(scale_byte(amax, format, DROPLESS_SCALE_CEIL), byte(ceil - emax)) << amax;
      ASSERT_EQ(scale_byte(amax, format, DROPLESS_SCALE_RCEIL), byte(rceil)) << amax;
      ASSERT_EQ(scale_byte(amax, format, DROPLESS_SCALE_EVEN), byte(even - emax)) << amax;
    }
  }
}

// The nearest finite code by search; ties go to the code whose last bit is 0.
std::uint8_t nearest_code(double x, std::uint8_t byte, dropless_dtype format) {
  const int last = format == DROPLESS_E4M3 ? 0x7E : 0x7B;
  const double scale = std::ldexp(1.0, byte - 127);
  int best = 0;
  double best_distance = kInf;
  for (int code = 0; code <= last; ++code) {
    const double value = format == DROPLESS_E4M3 ? E4m3::from_bits(code).to_double()
                                                 : E5m2::from_bits(code).to_double();
    const double distance = std::abs(std::abs(x) - value * scale);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(Mxfp8, CodesAreTheNearestOnes) {
  test::RandomData random(3);
  for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
    const int last = format == DROPLESS_E4M3 ? 0x7E : 0x7B;
    // Around every midpoint of two codes, at several scales: the tie and its neighbours.
    for (int code = 0; code < last; ++code) {
      for (const int byte : {0, 1, 100, 127, 247}) {
        const double a = std::ldexp(format == DROPLESS_E4M3 ? E4m3::from_bits(code).to_double()
                                                            : E5m2::from_bits(code).to_double(),
                                    byte - 127);
        const double b = std::ldexp(format == DROPLESS_E4M3 ? E4m3::from_bits(code + 1).to_double()
                                                            : E5m2::from_bits(code + 1).to_double(),
                                    byte - 127);
        const double middle = (a + b) / 2;
        for (const double x : {a, std::nextafter(middle, 0), middle, std::nextafter(middle, b)}) {
          const auto byte8 = static_cast<std::uint8_t>(byte);
          ASSERT_EQ(encode(x, byte8, format), nearest_code(x, byte8, format)) << x;
          ASSERT_EQ(encode(-x, byte8, format), nearest_code(-x, byte8, format)) << x;
        }
      }
    }
    for (int i = 0; i < 2000; ++i) {
      const double x =
          fp32(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.integer(-20, 20))));
      const auto byte = static_cast<std::uint8_t>(random.integer(117, 137));
      ASSERT_EQ(encode(x, byte, format), nearest_code(x, byte, format)) << x;
    }
  }
}

TEST(Mxfp8, CodesAtTheEdges) {
  EXPECT_EQ(encode(464, 127, DROPLESS_E4M3), 0x7E);
  EXPECT_EQ(encode(1e30, 127, DROPLESS_E4M3), 0x7E);
  EXPECT_EQ(encode(-kInf, 127, DROPLESS_E4M3), 0xFE);
  EXPECT_EQ(encode(61440, 127, DROPLESS_E5M2), 0x7B);
  EXPECT_EQ(encode(kInf, 254, DROPLESS_E5M2), 0x7B);
  EXPECT_EQ(encode(0x1p-10, 127, DROPLESS_E4M3), 0x00);
  EXPECT_EQ(encode(-0x1p-10, 127, DROPLESS_E4M3), 0x80);
  EXPECT_EQ(encode(0x1.000002p-10, 127, DROPLESS_E4M3), 0x01);
  EXPECT_EQ(encode(1.5 * 0x1p-9, 127, DROPLESS_E4M3), 0x02);
  EXPECT_EQ(encode(0.0, 0, DROPLESS_E4M3), 0x00);
  EXPECT_EQ(encode(-0.0, 0, DROPLESS_E4M3), 0x80);
  EXPECT_EQ(encode(0x1p-149, 0, DROPLESS_E4M3), 0x00);  // 2^-22 of the scale
  EXPECT_EQ(encode(0x1p-136, 0, DROPLESS_E4M3), 0x01);  // subnormal in fp32 and in E4M3
  EXPECT_TRUE(E4m3::from_bits(encode(kNan, 127, DROPLESS_E4M3)).is_nan());
  EXPECT_TRUE(E5m2::from_bits(encode(kNan, 127, DROPLESS_E5M2)).is_nan());
  EXPECT_TRUE(E4m3::from_bits(encode(1.0, 255, DROPLESS_E4M3)).is_nan());
}

TEST(Mxfp8, EveryCodeAndByte) {
  for (const dropless_dtype format : {DROPLESS_E4M3, DROPLESS_E5M2}) {
    int overflows = 0;
    for (int byte = 0; byte < 256; ++byte) {
      for (int code = 0; code < 256; ++code) {
        const double value = format == DROPLESS_E4M3 ? E4m3::from_bits(code).to_double()
                                                     : E5m2::from_bits(code).to_double();
        const double got =
            decode(static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(byte), format);
        if (std::isnan(value) || byte == 255) {
          ASSERT_TRUE(std::isnan(got)) << code << " " << byte;
          continue;
        }
        const double exact = value * std::pow(2.0, byte - 127);
        const bool overflow = std::abs(exact) >= 0x1p128;
        ASSERT_EQ(got, overflow ? std::copysign(kInf, exact) : exact) << code << " " << byte;
        ASSERT_EQ(std::signbit(got), code >= 128);
        if (overflow && !std::isinf(value)) {
          ++overflows;
          ASSERT_GE(byte, format == DROPLESS_E4M3 ? 247 : 240);
        }
      }
    }
    EXPECT_GT(overflows, 0);
    if (format == DROPLESS_E4M3) {
      EXPECT_EQ(overflows, 2 * 280);  // both signs; known from an independent enumeration
    }
  }
  EXPECT_EQ(decode(0x38, 0, DROPLESS_E4M3), 0x1p-127);
}

// One block in an otherwise empty matrix.
Quantized one_block(const Doubles& x, const dropless_profile& profile) {
  return quantize({}, profile, 1, static_cast<Index>(x.size()), x);
}

Doubles round_trip(const Quantized& q, Index columns) {
  return dequantize(DROPLESS_BLOCKS_ROW_WISE, DROPLESS_SCALES_LINEAR, DROPLESS_E4M3, 1, columns,
                    q.row_codes, q.row_scales);
}

TEST(Mxfp8, ZeroBlockKeepsSigns) {
  Doubles x(32, 0.0);
  x[5] = -0.0;
  const Quantized q = one_block(x, profile_with(DROPLESS_SCALE_RCEIL));
  EXPECT_EQ(q.row_scales, std::vector<std::uint8_t>{0});
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(q.row_codes[i], i == 5 ? 0x80 : 0x00);
}

TEST(Mxfp8, NanPolicies) {
  Doubles x(32, 1.0);
  x[0] = 448;
  x[7] = kNan;
  const Quantized element = one_block(x, profile_with(DROPLESS_SCALE_RCEIL));
  EXPECT_EQ(element.row_scales[0], 127);
  const Doubles back = round_trip(element, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    if (i == 7) {
      EXPECT_TRUE(std::isnan(back[i]));
    } else {
      EXPECT_EQ(back[i], x[i]);
    }
    EXPECT_TRUE(element.row_judged[i]);
  }
  const Quantized only_nan = one_block(Doubles(32, kNan), profile_with(DROPLESS_SCALE_RCEIL));
  EXPECT_EQ(only_nan.row_scales[0], 0);
  EXPECT_TRUE(std::isnan(round_trip(only_nan, 32)[31]));

  const Quantized block = one_block(x, profile_with(DROPLESS_SCALE_RCEIL, DROPLESS_SPECIAL_BLOCK));
  EXPECT_EQ(block.row_scales[0], 255);
  EXPECT_FALSE(block.row_judged[0]);
  EXPECT_TRUE(std::isnan(round_trip(block, 32)[0]));
  // Column-wise every element is a block of its own here: only the NaN's column is affected.
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(block.column_scales[i] == 255, i == 7);
}

TEST(Mxfp8, InfinityPolicies) {
  Doubles x(32, 1.0);
  x[3] = -kInf;
  x[4] = 0x1p120;
  x[5] = kNan;
  const Quantized element = one_block(x, profile_with(DROPLESS_SCALE_FLOOR));
  EXPECT_EQ(element.row_scales[0], 254);
  EXPECT_EQ(element.row_codes[3], 0xFE);
  EXPECT_EQ(element.row_codes[0], 0x00);
  const Doubles back = round_trip(element, 32);
  EXPECT_EQ(back[3], -kInf);
  EXPECT_EQ(back[4], 0x1p120);
  EXPECT_TRUE(std::isnan(back[5]));
  EXPECT_EQ(one_block(x, profile_with(DROPLESS_SCALE_FLOOR, DROPLESS_SPECIAL_BLOCK)).row_scales[0],
            255);
}

TEST(Mxfp8, MetamorphicRelations) {
  test::RandomData random(9);
  Doubles x = random.uniforms(4 * 64, -3, 3);
  for (double& value : x) value = fp32(value);
  for (const int rule : kRules) {
    const dropless_profile profile = profile_with(rule);
    const Quantized plain = quantize({}, profile, 4, 64, x);
    Doubles negated = x, scaled = x;
    for (double& value : negated) value = -value;
    for (double& value : scaled) value *= 0x1p-9;
    const Quantized minus = quantize({}, profile, 4, 64, negated);
    const Quantized small = quantize({}, profile, 4, 64, scaled);
    EXPECT_EQ(minus.row_scales, plain.row_scales);
    EXPECT_EQ(small.row_codes, plain.row_codes);
    EXPECT_EQ(small.column_codes, plain.column_codes);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(minus.row_codes[i], plain.row_codes[i] ^ 0x80);
    }
    for (std::size_t i = 0; i < plain.row_scales.size(); ++i) {
      EXPECT_EQ(small.row_scales[i] + 9, plain.row_scales[i]);
    }
    Doubles swapped = x;  // the two blocks of row 0 change places
    std::swap_ranges(swapped.begin(), swapped.begin() + 32, swapped.begin() + 32);
    const Quantized moved = quantize({}, profile, 4, 64, swapped);
    EXPECT_EQ(moved.row_scales[0], plain.row_scales[1]);
    EXPECT_EQ(moved.row_scales[1], plain.row_scales[0]);
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(moved.row_codes[i], plain.row_codes[(i + 32) % 64]);
    }
  }
}

}  // namespace
}  // namespace dropless::reference
