// SPDX-License-Identifier: Apache-2.0
// The judge's own reading and writing of elements, against the codecs: every code of every format.
#include "conformance/judge/elements.h"

#include <dropless/formats/dtype.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace dropless::conformance {
namespace {

TEST(Elements, EveryCodeDecodesLikeTheCodecAndComesBack) {
  for (const dropless_dtype dtype :
       {DROPLESS_BF16, DROPLESS_FP16, DROPLESS_E4M3, DROPLESS_E5M2, DROPLESS_E8M0}) {
    const std::uint32_t codes = dtype_bytes(dtype) == 1 ? 256 : 65536;
    for (std::uint32_t code = 0; code < codes; ++code) {
      std::uint8_t element[4], back[4] = {};
      std::memcpy(element, &code, 4);
      const double value = decode(dtype, element);
      const double other = decode_bits(dtype, code);
      if (std::isnan(other)) {
        ASSERT_TRUE(std::isnan(value)) << dtype_name(dtype) << " " << code;
        encode(dtype, value, back);
        ASSERT_TRUE(std::isnan(decode(dtype, back)));
      } else {
        ASSERT_EQ(value, other) << dtype_name(dtype) << " " << code;
        ASSERT_EQ(std::signbit(value), std::signbit(other));
        if (std::isinf(value) && dtype == DROPLESS_E5M2) continue;  // saturates on the way back
        encode(dtype, value, back);
        ASSERT_EQ(std::memcmp(element, back, 4), 0) << dtype_name(dtype) << " " << code;
      }
    }
  }
}

TEST(Elements, Fp32IsTheHardwareFloat) {
  for (const double value :
       {0.0, -0.0, 1.0, -3.14159, 1e-45, 1e-40, 3.4e38, 1e39, -1e39, 1.0 / 3}) {
    std::uint8_t element[4];
    encode(DROPLESS_FP32, value, element);
    float stored = 0;
    std::memcpy(&stored, element, 4);
    EXPECT_EQ(stored, static_cast<float>(value));
    EXPECT_EQ(std::signbit(stored), std::signbit(value));
    EXPECT_EQ(decode(DROPLESS_FP32, element), static_cast<double>(static_cast<float>(value)));
  }
}

TEST(Elements, WhatDoesNotFitIsAMistakeOfTheSuite) {
  std::uint8_t element[8];
  EXPECT_THROW(encode_integer(DROPLESS_U8, 256, element), std::logic_error);
  EXPECT_THROW(encode_integer(DROPLESS_I32, Index{1} << 31, element), std::logic_error);
  EXPECT_THROW(encode_integer(DROPLESS_FP32, 1, element), std::logic_error);
  EXPECT_THROW(decode_integer(DROPLESS_E4M3, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_E8M0, 3, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_E8M0, 0, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_E8M0, -1, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_E8M0, 0x1p128, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_I64, 0.5, element), std::logic_error);
  EXPECT_THROW(encode(DROPLESS_I32, std::nan(""), element), std::logic_error);
}

TEST(Elements, Messages) {
  std::uint8_t element[8];
  encode(DROPLESS_E4M3, 448, element);
  EXPECT_EQ(print(DROPLESS_E4M3, element), "448 (0x7e)");
  encode(DROPLESS_FP32, 0.1, element);
  EXPECT_EQ(print(DROPLESS_FP32, element), "0.100000001");
  encode_integer(DROPLESS_I64, -1, element);
  EXPECT_EQ(print(DROPLESS_I64, element), "-1");
  EXPECT_EQ(print_bits(DROPLESS_I64, element), "0xffffffffffffffff");
}

}  // namespace
}  // namespace dropless::conformance
