// SPDX-License-Identifier: Apache-2.0
// The value formats give the same bits in a kernel as on the host, and agree with the GPU's own
// conversion instructions on every fp32 number. Skipped where there is no GPU.
#include "tests/oracles/format_device.h"

#include <gtest/gtest.h>

#include <bit>

#include "tests/oracles/format_cases.h"

namespace dropless::oracles {
namespace {

template <typename Format>
constexpr DeviceFormat kDeviceFormat = DeviceFormat::bf16;
template <>
constexpr DeviceFormat kDeviceFormat<Fp16> = DeviceFormat::fp16;
template <>
constexpr DeviceFormat kDeviceFormat<E4m3> = DeviceFormat::e4m3;
template <>
constexpr DeviceFormat kDeviceFormat<E5m2> = DeviceFormat::e5m2;
template <>
constexpr DeviceFormat kDeviceFormat<E8m0> = DeviceFormat::e8m0;

template <typename Format>
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "no CUDA device";
  }

  template <typename Real>
  void expect_same_codes(const std::vector<Real>& inputs) {
    for (bool saturate : {true, false}) {
      const Overflow overflow = saturate ? Overflow::saturate : Overflow::propagate;
      const auto codes = encode_on_device(kDeviceFormat<Format>, saturate, inputs);
      ASSERT_EQ(codes.size(), inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        std::uint32_t expected = 0;
        if constexpr (sizeof(Real) == 4) {
          expected = Format::from_float(inputs[i], overflow).bits;
        } else {
          expected = Format::from_double(inputs[i], overflow).bits;
        }
        ASSERT_EQ(codes[i], expected) << std::hexfloat << inputs[i] << " saturate " << saturate;
      }
    }
  }
};
using Formats = testing::Types<Bf16, Fp16, E4m3, E5m2, E8m0>;
TYPED_TEST_SUITE(OnDevice, Formats, FormatNames);

TYPED_TEST(OnDevice, EncodesLikeTheHost) {
  this->expect_same_codes(boundary_inputs<float>(table_of<TypeParam>()));
  this->expect_same_codes(boundary_inputs<double>(table_of<TypeParam>()));
}

TYPED_TEST(OnDevice, DecodesLikeTheHost) {
  const std::uint32_t count = 1u << (8 * sizeof(TypeParam));
  const auto values = decode_on_device(kDeviceFormat<TypeParam>, count);
  ASSERT_EQ(values.size(), count);
  for (std::uint32_t code = 0; code < count; ++code) {
    const float expected = TypeParam::from_bits(code).to_float();
    ASSERT_EQ(values[code], std::bit_cast<std::uint32_t>(expected)) << code;
  }
}

TYPED_TEST(OnDevice, AgreesWithTheInstructionsOnEveryFloat) {
  for (bool saturate : {true, false}) {
    const auto found = compare_with_instructions(kDeviceFormat<TypeParam>, saturate);
    EXPECT_EQ(found.count, 0u) << std::hex << found.example << " saturate " << saturate;
  }
}

}  // namespace
}  // namespace dropless::oracles
