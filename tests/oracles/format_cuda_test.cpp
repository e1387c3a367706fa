// SPDX-License-Identifier: Apache-2.0
// Third opinion: the host conversions of the CUDA headers, which compile without nvcc.
//
// CUDA has no round-to-nearest E8M0 conversion, only towards zero and upward; those are compared by
// bracketing: a power of two is exact in both, anything else lies between them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/oracles/format_cases.h"

namespace dropless::oracles {
namespace {

template <typename Real>
std::vector<Real> all_inputs(const FormatTable& table) {
  std::vector<Real> inputs = boundary_inputs<Real>(table);
  for (std::uint32_t code = 0; code < 65536; ++code) {
    inputs.push_back(static_cast<Real>(std::bit_cast<float>(code << 16)));
  }
  std::mt19937_64 random(11);
  for (int i = 0; i < 300000; ++i) {
    if constexpr (sizeof(Real) == 4) {
      inputs.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    } else {
      inputs.push_back(std::bit_cast<double>(random()));
    }
  }
  return inputs;
}

template <typename Format>
bool same_code(Format ours, std::uint32_t theirs) {
  return ours.is_nan() ? Format::from_bits(theirs).is_nan() : ours.bits == theirs;
}

template <typename Format>
void compare_fp8(__nv_fp8_interpretation_t interpretation) {
  for (const auto& [overflow, saturation] : {std::pair{Overflow::saturate, __NV_SATFINITE},
                                             std::pair{Overflow::propagate, __NV_NOSAT}}) {
    for (float x : all_inputs<float>(table_of<Format>())) {
      const auto theirs = __nv_cvt_float_to_fp8(x, saturation, interpretation);
      ASSERT_TRUE(same_code(Format::from_float(x, overflow), theirs)) << std::hexfloat << x;
    }
    for (double x : all_inputs<double>(table_of<Format>())) {
      const auto theirs = __nv_cvt_double_to_fp8(x, saturation, interpretation);
      ASSERT_TRUE(same_code(Format::from_double(x, overflow), theirs)) << std::hexfloat << x;
    }
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto half =
        __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), interpretation);
    const float theirs = __half2float(__half(half));
    const float ours = Format::from_bits(code).to_float();
    ASSERT_TRUE(std::isnan(ours) ? std::isnan(theirs) : ours == theirs) << code;
    ASSERT_TRUE(std::isnan(ours) || std::signbit(ours) == std::signbit(theirs)) << code;
  }
}

TEST(CudaHostConversions, E4m3) {
  compare_fp8<E4m3>(__NV_E4M3);
}
TEST(CudaHostConversions, E5m2) {
  compare_fp8<E5m2>(__NV_E5M2);
}

TEST(CudaHostConversions, Bf16AndFp16) {
  for (float x : all_inputs<float>(bf16_table())) {
    const auto theirs = std::bit_cast<std::uint16_t>(__float2bfloat16_rn(x));
    ASSERT_TRUE(same_code(Bf16::from_float(x), theirs)) << std::hexfloat << x;
  }
  for (double x : all_inputs<double>(bf16_table())) {
    const auto theirs = std::bit_cast<std::uint16_t>(__double2bfloat16(x));
    ASSERT_TRUE(same_code(Bf16::from_double(x), theirs)) << std::hexfloat << x;
  }
  for (float x : all_inputs<float>(fp16_table())) {
    const auto theirs = std::bit_cast<std::uint16_t>(__float2half_rn(x));
    ASSERT_TRUE(same_code(Fp16::from_float(x), theirs)) << std::hexfloat << x;
  }
  for (double x : all_inputs<double>(fp16_table())) {
    const auto theirs = std::bit_cast<std::uint16_t>(__double2half(x));
    ASSERT_TRUE(same_code(Fp16::from_double(x), theirs)) << std::hexfloat << x;
  }
}

TEST(CudaHostConversions, E8m0) {
  std::size_t inexact = 0;
  for (float x : all_inputs<float>(e8m0_table())) {
    if (!(x > 0) || std::isinf(x)) continue;
    const int down = __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero);
    const int up = __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf);
    const int ours = E8m0::from_float(x).bits;
    ASSERT_TRUE(ours == down || ours == up) << std::hexfloat << x;
    ASSERT_LE(up - down, 1) << std::hexfloat << x;
    inexact += down != up;
  }
  EXPECT_GT(inexact, 100u);
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto raw = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(code));
    const float theirs = __bfloat162float(__nv_bfloat16(raw));
    const float ours = E8m0::from_bits(code).to_float();
    ASSERT_TRUE(std::isnan(ours) ? std::isnan(theirs) : ours == theirs) << code;
  }
}

}  // namespace
}  // namespace dropless::oracles
