// SPDX-License-Identifier: Apache-2.0
// The reference's scale bytes, codes and decoded values against the search oracle: every bf16 amax,
// every rounding boundary under every byte, every pair of code and byte.
#include "tests/oracles/scale_rules.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "reference/mxfp8.h"

namespace dropless::oracles {
namespace {

constexpr dropless_dtype kFormats[] = {DROPLESS_E4M3, DROPLESS_E5M2};
constexpr int kRules[] = {DROPLESS_SCALE_RCEIL, DROPLESS_SCALE_FLOOR, DROPLESS_SCALE_CEIL,
                          DROPLESS_SCALE_EVEN};

void compare_scale_bytes(float amax) {
  for (dropless_dtype format : kFormats) {
    for (int rule : kRules) {
      ASSERT_EQ(+reference::scale_byte(amax, format, rule), +scale_byte(amax, format, rule))
          << std::hexfloat << amax << " format " << format << " rule " << rule;
    }
  }
}

TEST(ScaleRules, EveryBf16Amax) {
  for (std::uint32_t code = 0; code <= 0x7F80; ++code) {  // zero to infinity
    compare_scale_bytes(std::bit_cast<float>(code << 16));
    if (HasFatalFailure()) return;
  }
}

TEST(ScaleRules, Fp32AmaxNextToEveryThreshold) {
  // Significands at which one of the rules changes its mind, with their fp32 neighbours.
  for (int exponent = -149; exponent <= 127; ++exponent) {
    for (float s : {1.0f, 1.75f, 1.875f, 1.9375f, 1.5f}) {
      const float amax = std::ldexp(s, exponent);
      for (float x : {amax, std::nextafter(amax, 0.0f), std::nextafter(amax, 1e38f)}) {
        compare_scale_bytes(x);
        if (HasFatalFailure()) return;
      }
    }
  }
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 65521) {
    compare_scale_bytes(std::bit_cast<float>(bits));
    if (HasFatalFailure()) return;
  }
}

TEST(ScaleRules, RulesDifferWhereTheyShould) {
  // 1.9375 * 2^8: FLOOR keeps it, EVEN sees 2 * 2^8, RCEIL sees more than 448.
  const auto byte = [](float amax, int rule) {
    return static_cast<int>(reference::scale_byte(amax, DROPLESS_E4M3, rule));
  };
  EXPECT_EQ(byte(496.0f, DROPLESS_SCALE_FLOOR), 127);
  EXPECT_EQ(byte(496.0f, DROPLESS_SCALE_EVEN), 128);
  EXPECT_EQ(byte(496.0f, DROPLESS_SCALE_RCEIL), 128);
  EXPECT_EQ(byte(448.0f, DROPLESS_SCALE_RCEIL), 127);
  EXPECT_EQ(byte(448.0f, DROPLESS_SCALE_CEIL), 128);
  EXPECT_EQ(byte(480.0f, DROPLESS_SCALE_EVEN), 127);
  EXPECT_EQ(byte(0x1.c00002p-119f, DROPLESS_SCALE_RCEIL), 1);
  EXPECT_EQ(byte(0x1.cp-119f, DROPLESS_SCALE_RCEIL), 0);
}

TEST(ScaleRules, CodesAtEveryBoundaryUnderEveryByte) {
  for (dropless_dtype format : kFormats) {
    const auto& entries = element_table(format).entries();
    for (int byte = 0; byte < 255; ++byte) {
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const bool last = i + 1 == entries.size();
        const long double above = last ? entries[i].value * 2 : entries[i + 1].value;
        for (long double centre : {entries[i].value, (entries[i].value + above) / 2}) {
          const double x = static_cast<double>(std::ldexp(centre, byte - 127));
          for (double near : {x, std::nextafter(x, 0.0), std::nextafter(x, 1e300)}) {
            for (double value : {near, -near}) {
              const auto b = static_cast<std::uint8_t>(byte);
              const auto expected = encode(value, b, format);
              ASSERT_EQ(+reference::encode(value, b, format), expected.code)
                  << std::hexfloat << value << " byte " << byte << " format " << format;
            }
          }
        }
      }
    }
  }
}

TEST(ScaleRules, SpecialValuesAreCoded) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (dropless_dtype format : kFormats) {
    const FormatTable& table = element_table(format);
    for (std::uint8_t byte : {0, 1, 127, 254}) {
      EXPECT_EQ(+reference::encode(inf, byte, format), table.entries().back().code);
      EXPECT_EQ(+reference::encode(-inf, byte, format), table.entries().back().code + 128);
      EXPECT_TRUE(std::isnan(table.value(reference::encode(nan, byte, format))));
      EXPECT_EQ(+reference::encode(0.0, byte, format), 0);
      EXPECT_EQ(+reference::encode(-0.0, byte, format), 128);
    }
  }
}

TEST(ScaleRules, EveryCodeUnderEveryByteDecodes) {
  std::map<dropless_dtype, int> first_infinite_byte;
  for (dropless_dtype format : kFormats) {
    for (int byte = 0; byte < 256; ++byte) {
      for (int code = 0; code < 256; ++code) {
        const auto b = static_cast<std::uint8_t>(byte);
        const auto c = static_cast<std::uint8_t>(code);
        const float expected = decode(c, b, format);
        const double got = reference::decode(c, b, format);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(got)) << code << " byte " << byte;
          continue;
        }
        ASSERT_EQ(got, static_cast<double>(expected)) << code << " byte " << byte;
        ASSERT_EQ(std::signbit(got), std::signbit(expected)) << code << " byte " << byte;
        if (std::isinf(expected) && std::isfinite(element_table(format).value(c))) {
          first_infinite_byte.emplace(format, byte);
        }
      }
    }
  }
  EXPECT_EQ(first_infinite_byte[DROPLESS_E4M3], 247);  // MXFP8-5
  EXPECT_EQ(first_infinite_byte[DROPLESS_E5M2], 240);
}

}  // namespace
}  // namespace dropless::oracles
