// SPDX-License-Identifier: Apache-2.0
// The rounded interval and its rounding, against enumeration of every value of the small formats.
#include "tolerances/interval.h"

#include <dropless/formats/dtype.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tolerances/float_format.h"

namespace dropless::tolerances {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// All finite values >= 0 in ascending order, made from the definition: n * 2^k.
std::vector<double> positive_values(dropless_dtype dtype) {
  const FloatFormat& format = float_format(dtype);
  const int fraction = format.precision - 1;
  std::vector<double> values;
  for (int n = 0; n < 1 << fraction; ++n) {
    values.push_back(std::ldexp(n, format.min_exponent - fraction));
  }
  for (int e = format.min_exponent; std::ldexp(1.0, e) <= format.largest; ++e) {
    for (int n = 1 << fraction; n < 2 << fraction; ++n) {
      const double value = std::ldexp(n, e - fraction);
      if (value <= format.largest) values.push_back(value);
    }
  }
  return values;
}

class SmallFormat : public ::testing::TestWithParam<dropless_dtype> {};

TEST_P(SmallFormat, RoundsToTheNearestValueAndTiesToEven) {
  const std::vector<double> values = positive_values(GetParam());
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const double low = values[i], high = values[i + 1], middle = (low + high) / 2;
    ASSERT_EQ(round_to(GetParam(), low), low);
    ASSERT_EQ(round_to(GetParam(), std::nextafter(middle, 0)), low);
    ASSERT_EQ(round_to(GetParam(), std::nextafter(middle, infinity)), high);
    // values[i] is a consecutive count of the significand, so its parity is that of i.
    ASSERT_EQ(round_to(GetParam(), middle), i % 2 == 0 ? low : high);
    ASSERT_EQ(round_to(GetParam(), -middle), i % 2 == 0 ? -low : -high);
  }
}

TEST_P(SmallFormat, UlpIsTheDistanceToTheNextValue) {
  const std::vector<double> values = positive_values(GetParam());
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    ASSERT_EQ(ulp(GetParam(), values[i]), values[i + 1] - values[i]);
    ASSERT_EQ(ulp(GetParam(), -values[i]), values[i + 1] - values[i]);
  }
  EXPECT_EQ(ulp(GetParam(), infinity), ulp(GetParam(), values.back()));
}

INSTANTIATE_TEST_SUITE_P(All, SmallFormat,
                         ::testing::Values(DROPLESS_BF16, DROPLESS_FP16, DROPLESS_E4M3,
                                           DROPLESS_E5M2));

TEST(RoundTo, AgreesWithTheHardwareInFp32) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const double y = std::bit_cast<double>(random());
    const auto expected = static_cast<double>(static_cast<float>(y));
    if (std::isnan(y)) {
      ASSERT_TRUE(std::isnan(round_to(DROPLESS_FP32, y)));
    } else {
      ASSERT_EQ(round_to(DROPLESS_FP32, y), expected) << y;
    }
    const double small = std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52,
                                    static_cast<int>(random() % 40) - 152);
    ASSERT_EQ(round_to(DROPLESS_FP32, small), static_cast<double>(static_cast<float>(small)));
  }
}

TEST(RoundTo, AgreesWithTheCodecs) {
  std::mt19937_64 random(2);
  for (const dropless_dtype dtype : {DROPLESS_BF16, DROPLESS_FP16, DROPLESS_E4M3, DROPLESS_E5M2}) {
    for (int i = 0; i < 50000; ++i) {
      const double y = std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())),
                                  static_cast<int>(random() % 60) - 90);
      ASSERT_EQ(round_to(dtype, y), decode_bits(dtype, encode_bits(dtype, y))) << dtype << " " << y;
    }
  }
}

TEST(RoundTo, BeyondTheLargestValue) {
  EXPECT_EQ(round_to(DROPLESS_FP32, 0x1.ffffffp127), infinity);  // the tie goes to even
  EXPECT_EQ(round_to(DROPLESS_FP32, std::nextafter(0x1.ffffffp127, 0)), 0x1.fffffep127);
  EXPECT_EQ(round_to(DROPLESS_BF16, -0x1.ffp127), -infinity);
  EXPECT_EQ(round_to(DROPLESS_FP16, 65520), infinity);
  EXPECT_EQ(round_to(DROPLESS_E4M3, 1e30), 448);
  EXPECT_EQ(round_to(DROPLESS_E4M3, -infinity), -448);
  EXPECT_EQ(round_to(DROPLESS_E5M2, infinity), 57344);
  EXPECT_EQ(round_to(DROPLESS_BF16, infinity), infinity);
  EXPECT_TRUE(std::signbit(round_to(DROPLESS_BF16, -0.0)));
  EXPECT_TRUE(std::signbit(round_to(DROPLESS_BF16, -1e-60)));
  EXPECT_THROW(round_to(DROPLESS_I32, 1), std::logic_error);
  EXPECT_THROW(round_to(DROPLESS_E8M0, 1), std::logic_error);
}

TEST(RoundedInterval, ZeroErrorDemandsTheOneRoundedValue) {
  const auto only = rounded_interval(DROPLESS_BF16, 1.0 + 0x1p-8, 0);  // a tie
  EXPECT_EQ(only.low, 1.0);
  EXPECT_EQ(only.high, 1.0);
  EXPECT_FALSE(contains(only, 1.0 + 0x1p-7));
}

TEST(RoundedInterval, HoldsExactlyTheRoundingsOfEverythingWithinTheError) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int i = 0; i < 20000; ++i) {
    const double y = 4 * uniform(random), error = std::ldexp(1.0, -4 - i % 12);
    const auto interval = rounded_interval(DROPLESS_BF16, y, error);
    const double inside = round_to(DROPLESS_BF16, y + error * uniform(random));
    ASSERT_TRUE(contains(interval, inside));
    // The ends are reached, and one bf16 step further out is not legal.
    ASSERT_EQ(interval.high, round_to(DROPLESS_BF16, y + error));
    ASSERT_EQ(interval.low, round_to(DROPLESS_BF16, y - error));
    ASSERT_FALSE(contains(interval, interval.high + ulp(DROPLESS_BF16, interval.high)));
    ASSERT_FALSE(contains(interval, interval.low - ulp(DROPLESS_BF16, interval.low)));
  }
}

TEST(RoundedInterval, WorkedExample) {
  // y = 1, E = 8.6e-3 in bf16: four legal values.
  const auto interval = rounded_interval(DROPLESS_BF16, 1, 8.6e-3);
  EXPECT_EQ(interval.low, 0.9921875);
  EXPECT_EQ(interval.high, 1.0078125);
}

TEST(RoundedInterval, NonFinite) {
  EXPECT_TRUE(contains(rounded_interval(DROPLESS_FP32, nan_value, 1), nan_value));
  EXPECT_FALSE(contains(rounded_interval(DROPLESS_FP32, nan_value, infinity), 1));
  EXPECT_FALSE(contains(rounded_interval(DROPLESS_FP32, 1, infinity), nan_value));
  EXPECT_TRUE(contains(rounded_interval(DROPLESS_FP32, 1, infinity), -infinity));
  EXPECT_TRUE(contains(rounded_interval(DROPLESS_FP32, infinity, 1), infinity));
  EXPECT_FALSE(contains(rounded_interval(DROPLESS_FP32, infinity, 1), 1e38));
  EXPECT_TRUE(contains(rounded_interval(DROPLESS_FP32, 0.0, 0), -0.0));
  EXPECT_THROW(rounded_interval(DROPLESS_FP32, 1, nan_value), std::logic_error);
  EXPECT_THROW(rounded_interval(DROPLESS_FP32, 1, -1e-30), std::logic_error);
}

TEST(Excess, MeasuresInBounds) {
  const auto interval = rounded_interval(DROPLESS_FP32, 1, 0.25);
  EXPECT_EQ(excess(interval, 1.1, 0.25), 0);
  EXPECT_NEAR(excess(interval, 2, 0.25), 3, 1e-6);
  EXPECT_NEAR(excess(interval, 0, 0.25), 3, 1e-6);
  EXPECT_EQ(excess(interval, nan_value, 0.25), infinity);
  EXPECT_EQ(excess(rounded_interval(DROPLESS_FP32, 1, 0), 2, 0), infinity);
}

}  // namespace
}  // namespace dropless::tolerances
