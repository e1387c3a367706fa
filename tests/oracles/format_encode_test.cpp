// SPDX-License-Identifier: Apache-2.0
// Conversion to every format against the table oracle: all boundaries, all bf16 inputs, sweeps over
// fp32 and double, and planted wrong conversions that the same comparison must notice.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/oracles/format_cases.h"

namespace dropless::oracles {
namespace {

constexpr Overflow kModes[] = {Overflow::saturate, Overflow::propagate};

template <typename Format, typename Real>
void expect_no_differences(const std::vector<Real>& inputs) {
  for (Overflow overflow : kModes) {
    const std::function<Format(Real)> convert = [&](Real x) {
      if constexpr (sizeof(Real) == 4) {
        return Format::from_float(x, overflow);
      } else {
        return Format::from_double(x, overflow);
      }
    };
    std::string first;
    EXPECT_EQ((count_differences<Format, Real>(inputs, overflow, convert, first)), 0u) << first;
  }
}

template <typename Format>
class Encode : public testing::Test {};
using Formats = testing::Types<Bf16, Fp16, E4m3, E5m2, E8m0>;
TYPED_TEST_SUITE(Encode, Formats, FormatNames);

TYPED_TEST(Encode, BoundariesFromFloat) {
  const auto inputs = boundary_inputs<float>(table_of<TypeParam>());
  ASSERT_GT(inputs.size(), 12u * (table_of<TypeParam>().entries().size() - 1));
  expect_no_differences<TypeParam>(inputs);
}

TYPED_TEST(Encode, BoundariesFromDouble) {
  expect_no_differences<TypeParam>(boundary_inputs<double>(table_of<TypeParam>()));
  // The float neighbours as doubles: what from_float sees must not depend on the width.
  std::vector<double> widened;
  for (float x : boundary_inputs<float>(table_of<TypeParam>())) widened.push_back(x);
  expect_no_differences<TypeParam>(widened);
}

TYPED_TEST(Encode, EveryBf16Input) {
  std::vector<float> inputs;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    inputs.push_back(std::bit_cast<float>(code << 16));
  }
  expect_no_differences<TypeParam>(inputs);
}

TYPED_TEST(Encode, SweepOverAllFloatPatterns) {
  std::vector<float> inputs;
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += 8191) {
    inputs.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  }
  expect_no_differences<TypeParam>(inputs);
}

TYPED_TEST(Encode, RandomDoublesOfTheFormatsRange) {
  const auto& entries = table_of<TypeParam>().entries();
  const int low = std::ilogb(entries[1].value) - 3;
  const int high = std::ilogb(entries.back().value) + 2;
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int> exponent(low, high);
  std::vector<double> inputs;
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t bits = random();
    const auto mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
    inputs.push_back(std::ldexp(bits % 2 != 0 ? -mantissa : mantissa, exponent(random)));
  }
  for (int i = 0; i < 100000; ++i) inputs.push_back(std::bit_cast<double>(random()));
  expect_no_differences<TypeParam>(inputs);
}

TEST(EncodeKnownValues, OverflowThresholds) {
  const auto e4m3 = [](double x, Overflow overflow) { return E4m3::from_double(x, overflow); };
  const auto e5m2 = [](double x, Overflow overflow) { return E5m2::from_double(x, overflow); };
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(e4m3(464.0, Overflow::propagate).bits, 0x7E);
  EXPECT_TRUE(e4m3(std::nextafter(464.0, 500.0), Overflow::propagate).is_nan());
  EXPECT_EQ(e4m3(-464.0, Overflow::propagate).bits, 0xFE);
  EXPECT_EQ(e4m3(std::nextafter(464.0, 500.0), Overflow::saturate).bits, 0x7E);
  EXPECT_EQ(e4m3(-infinity, Overflow::saturate).bits, 0xFE);
  EXPECT_TRUE(e4m3(infinity, Overflow::propagate).is_nan());
  EXPECT_EQ(e5m2(std::nextafter(61440.0, 0.0), Overflow::propagate).bits, 0x7B);
  EXPECT_EQ(e5m2(61440.0, Overflow::propagate).bits, 0x7C);
  EXPECT_EQ(e5m2(61440.0, Overflow::saturate).bits, 0x7B);
  EXPECT_EQ(e5m2(infinity, Overflow::saturate).bits, 0x7B);
  EXPECT_EQ(e5m2(-infinity, Overflow::propagate).bits, 0xFC);
  EXPECT_EQ(Fp16::from_double(65520.0).bits, 0x7C00);
  EXPECT_EQ(Fp16::from_double(std::nextafter(65520.0, 0.0)).bits, 0x7BFF);
  EXPECT_TRUE(Bf16::from_float(0x1.ffp127f).is_infinite());
  EXPECT_EQ(Bf16::from_float(std::nextafter(0x1.ffp127f, 0.0f)).bits, 0x7F7F);
}

TEST(EncodeKnownValues, DefaultOverflowOfEachFormat) {
  EXPECT_EQ(E4m3::from_float(1e9f).bits, E4m3::max().bits);
  EXPECT_EQ(E5m2::from_float(1e9f).bits, E5m2::max().bits);
  EXPECT_EQ(E8m0::from_double(1e300).bits, E8m0::max().bits);
  EXPECT_TRUE(Fp16::from_float(1e9f).is_infinite());
  EXPECT_TRUE(Bf16::from_double(1e300).is_infinite());
}

TEST(EncodeKnownValues, OneRoundingFromDouble) {
  // Above the bf16 midpoint by less than fp32 can see: a detour over fp32 gives the tie, and 1.
  EXPECT_EQ(Bf16::from_double(0x1.01p0 + 0x1p-40).to_float(), 0x1.02p0f);
  EXPECT_EQ(E4m3::from_double(0x1.1p0 + 0x1p-40).to_float(), 0x1.2p0f);
}

// The comparison is worth something only if wrong conversions do not survive it.
template <typename Format>
std::size_t differences_of(const std::function<Format(double)>& convert) {
  std::string first;
  return count_differences<Format, double>(boundary_inputs<double>(table_of<Format>()),
                                           Overflow::saturate, convert, first);
}

TEST(EncodeSensitivity, PlantedFaultsAreNoticed) {
  const auto saturating = [](double x) { return E4m3::from_double(x, Overflow::saturate); };
  ASSERT_EQ(differences_of<E4m3>(saturating), 0u);
  EXPECT_GT(differences_of<E4m3>([&](double x) {  // ties away from zero
              return saturating(std::nextafter(x, std::copysign(1e300, x)));
            }),
            0u);
  EXPECT_GT(differences_of<E4m3>([&](double x) {  // truncation
              const E4m3 code = saturating(x);
              const bool grew = std::fabs(code.to_double()) > std::fabs(x);
              return grew ? E4m3::from_bits(code.bits - 1u) : code;
            }),
            0u);
  EXPECT_GT(differences_of<E4m3>([&](double x) {  // rounded twice
              return saturating(static_cast<float>(x));
            }),
            0u);
  EXPECT_GT(differences_of<E4m3>([&](double x) {  // subnormals flushed
              const E4m3 code = saturating(x);
              return code.is_subnormal() ? E4m3::from_bits(code.bits & 0x80u) : code;
            }),
            0u);
  EXPECT_GT(differences_of<E4m3>([&](double x) {  // the sign of zero lost
              const E4m3 code = saturating(x);
              return code.is_zero() ? E4m3::from_bits(0) : code;
            }),
            0u);
  EXPECT_GT(differences_of<E5m2>([](double x) {  // overflow not saturated
              return E5m2::from_double(x, Overflow::propagate);
            }),
            0u);
  EXPECT_GT(differences_of<E8m0>([](double x) {  // byte 0 flushed to byte 1
              const E8m0 scale = E8m0::from_double(x);
              return scale.bits == 0 ? E8m0::from_bits(1) : scale;
            }),
            0u);
}

}  // namespace
}  // namespace dropless::oracles
