// SPDX-License-Identifier: Apache-2.0
// Every code of every format decodes to the value its definition gives, and back to itself.
#include <gtest/gtest.h>

#include "tests/oracles/format_cases.h"

namespace dropless::oracles {
namespace {

template <typename Format>
class Decode : public testing::Test {};
using Formats = testing::Types<Bf16, Fp16, E4m3, E5m2, E8m0>;
TYPED_TEST_SUITE(Decode, Formats, FormatNames);

void expect_same_value(long double expected, double got, std::uint32_t code) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << code;
  } else {
    EXPECT_EQ(expected, static_cast<long double>(got)) << code;
    EXPECT_EQ(std::signbit(expected), std::signbit(got)) << code;
  }
}

TYPED_TEST(Decode, EveryCodeIsItsDefinition) {
  const FormatTable& table = table_of<TypeParam>();
  ASSERT_EQ(table.code_count(), 1u << (8 * sizeof(TypeParam)));
  for (std::uint32_t code = 0; code < table.code_count(); ++code) {
    const auto element = TypeParam::from_bits(code);
    expect_same_value(table.value(code), element.to_float(), code);
    expect_same_value(table.value(code), element.to_double(), code);
    EXPECT_EQ(element.is_nan(), std::isnan(table.value(code))) << code;
  }
}

TYPED_TEST(Decode, EveryValueEncodesToItself) {
  const FormatTable& table = table_of<TypeParam>();
  for (std::uint32_t code = 0; code < table.code_count(); ++code) {
    const auto element = TypeParam::from_bits(code);
    if (element.is_nan()) continue;
    EXPECT_EQ(TypeParam::from_float(element.to_float(), Overflow::propagate).bits, code);
    EXPECT_EQ(TypeParam::from_double(element.to_double(), Overflow::propagate).bits, code);
  }
}

template <typename Format>
class Classify : public testing::Test {};
using SignedFormats = testing::Types<Bf16, Fp16, E4m3, E5m2>;
TYPED_TEST_SUITE(Classify, SignedFormats, FormatNames);

TYPED_TEST(Classify, EveryCode) {
  const FormatTable& table = table_of<TypeParam>();
  const long double min_normal = std::ldexp(1.0L, 1 - table.definition().bias);
  for (std::uint32_t code = 0; code < table.code_count(); ++code) {
    const auto element = TypeParam::from_bits(code);
    const long double value = table.value(code);
    const long double magnitude = std::fabs(value);
    EXPECT_EQ(element.is_infinite(), std::isinf(value)) << code;
    EXPECT_EQ(element.is_finite(), std::isfinite(value)) << code;
    EXPECT_EQ(element.is_zero(), value == 0) << code;
    EXPECT_EQ(element.is_subnormal(), magnitude > 0 && magnitude < min_normal) << code;
    EXPECT_EQ(element.is_negative(), code >= table.code_count() / 2) << code;
  }
}

TYPED_TEST(Classify, Constants) {
  const auto& entries = table_of<TypeParam>().entries();
  const auto& definition = table_of<TypeParam>().definition();
  EXPECT_EQ(TypeParam::max().bits, entries.back().code);
  EXPECT_EQ(TypeParam::min_subnormal().to_double(), entries[1].value);
  EXPECT_EQ(TypeParam::min_normal().to_double(), std::ldexp(1.0L, 1 - definition.bias));
  EXPECT_EQ(TypeParam::emax, std::ilogb(entries.back().value));
  EXPECT_EQ(TypeParam::emin, 1 - definition.bias);
  EXPECT_EQ(TypeParam::mantissa_bits, definition.mantissa_bits);
  EXPECT_TRUE(TypeParam::nan().is_nan());
  if constexpr (TypeParam::has_infinity) {
    EXPECT_TRUE(TypeParam::infinity().is_infinite());
  }
}

TEST(KnownValues, LimitsOfTheOcpFormats) {
  EXPECT_EQ(E4m3::max().to_float(), 448.0f);
  EXPECT_EQ(E4m3::min_normal().to_float(), 0x1p-6f);
  EXPECT_EQ(E4m3::min_subnormal().to_float(), 0x1p-9f);
  EXPECT_EQ(E5m2::max().to_float(), 57344.0f);
  EXPECT_EQ(E5m2::min_normal().to_float(), 0x1p-14f);
  EXPECT_EQ(E5m2::min_subnormal().to_float(), 0x1p-16f);
  EXPECT_EQ(E4m3::emax, 8);
  EXPECT_EQ(E5m2::emax, 15);
  EXPECT_EQ(E8m0::min().to_float(), 0x1p-127f);
  EXPECT_EQ(E8m0::max().to_float(), 0x1p127f);
  EXPECT_EQ(E8m0::emin, -127);
  EXPECT_EQ(E8m0::emax, 127);
}

TEST(E8m0Exponent, ClampsAndInverts) {
  for (int k = -300; k <= 300; ++k) {
    const int expected = k < -127 ? -127 : (k > 127 ? 127 : k);
    const E8m0 scale = E8m0::from_exponent(k);
    EXPECT_EQ(scale.exponent(), expected) << k;
    EXPECT_EQ(scale.to_double(), std::ldexp(1.0, expected)) << k;
  }
}

}  // namespace
}  // namespace dropless::oracles
