// SPDX-License-Identifier: Apache-2.0
// The judge must fail what is wrong, pass what is right, count both, and say why.
#include "conformance/judge/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

using Doubles = std::vector<double>;
using Indices = std::vector<Index>;
using Bytes = std::vector<std::uint8_t>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

class JudgeTest : public ::testing::Test {
 protected:
  Buffers buffers;
  Judge judge;
  Buffer& floats(const Doubles& values, dropless_dtype dtype = DROPLESS_FP32) {
    return buffers.input("f", dtype, {static_cast<Index>(values.size())}, values);
  }
  Buffer& integers(const Indices& values) {
    return buffers.input("i", DROPLESS_I64, {static_cast<Index>(values.size())}, values);
  }
  void expect(std::int64_t checks, std::int64_t failed) const {
    EXPECT_EQ(judge.checks(), checks);
    EXPECT_EQ(judge.failed_checks(), failed);
  }
};

TEST_F(JudgeTest, ExactIntegers) {
  judge.exact("ROUTING-10", "tokens_per_expert", integers({1, 2, 3}), Indices{1, 2, 3});
  expect(3, 0);
  judge.exact("ROUTING-10", "tokens_per_expert", integers({1, 5, 3}), Indices{1, 2, 3});
  expect(6, 1);
  const Failure& failure = judge.failures().at(0);
  EXPECT_EQ(failure.clause, "ROUTING-10");
  EXPECT_EQ(failure.what, "tokens_per_expert");
  EXPECT_EQ(failure.element, "[1]");
  EXPECT_EQ(failure.expected, "2");
  EXPECT_EQ(failure.got, "5");
  EXPECT_EQ(failure.bound, "exact");
  EXPECT_EQ(failure.margin, "3");
}

TEST_F(JudgeTest, ExactFloats) {
  judge.exact("C-1", "v", floats({0.0, nan_value, infinity}), Doubles{-0.0, nan_value, infinity});
  expect(3, 0);
  judge.exact("C-1", "v", floats({nan_value, 1, -infinity}), Doubles{1, nan_value, infinity});
  expect(6, 3);
  EXPECT_EQ(judge.failures()[0].expected, "1");
  EXPECT_EQ(judge.failures()[0].got, "nan");
  judge.exact("C-1", "v", floats({1 + 0x1p-22}), Doubles{1});
  EXPECT_EQ(judge.failures()[3].margin, "2 ulp");
}

TEST_F(JudgeTest, BytesAndCodes) {
  const Buffer& codes = buffers.input("c", DROPLESS_E4M3, {4}, Bytes{0x00, 0x7F, 0x7E, 0x08});
  judge.exact_bytes("MXFP8-3", "codes", codes, Bytes{0x00, 0x7F, 0x7E, 0x08});
  judge.exact_codes("MXFP8-3", "codes", codes, Bytes{0x00, 0xFF, 0x7E, 0x08});  // any NaN code
  expect(8, 0);
  judge.exact_bytes("MXFP8-3", "codes", codes, Bytes{0x00, 0xFF, 0x7E, 0x08});
  expect(12, 1);
  judge.exact_codes("MXFP8-3", "codes", codes, Bytes{0x80, 0x7F, 0x7D, 0x08});  // zeros differ
  expect(16, 3);
  EXPECT_EQ(judge.failures()[1].expected, "0x80 (-0)");
  EXPECT_EQ(judge.failures()[1].got, "0x00 (0)");
  EXPECT_EQ(judge.failures()[2].expected, "0x7d (416)");
  judge.exact_codes("MXFP8-3", "codes", codes, Bytes{0x00, 0x7E, 0x7F, 0x08});  // NaN is no value
  expect(20, 5);
}

TEST_F(JudgeTest, SameBytesSeesTheSignOfZero) {
  const Buffer& x = floats({0.0, 2});
  const Bytes earlier = floats({-0.0, 2}).bytes();
  judge.same_bytes("GROUPED_GEMM-9", "second run", x, earlier);
  expect(2, 1);
  EXPECT_EQ(judge.failures()[0].expected, "0x80000000 (-0)");
}

TEST_F(JudgeTest, BoundedIsTheRoundedInterval) {
  // bf16 spacing is 2^-7 above 1: only an error beyond 2^-8 reaches the next value.
  judge.bounded("G-6", "y", floats({1}, DROPLESS_BF16), Doubles{1}, Doubles{0x1p-9});
  judge.bounded("G-6", "y", floats({1 + 0x1p-7}, DROPLESS_BF16), Doubles{1}, Doubles{0x1.2p-8});
  expect(2, 0);
  judge.bounded("G-6", "y", floats({1 + 0x1p-7}, DROPLESS_BF16), Doubles{1}, Doubles{0x1p-10});
  expect(3, 1);
  EXPECT_EQ(judge.failures()[0].bound, "+-0.000977, legal [1, 1]");
  EXPECT_EQ(judge.failures()[0].margin, "8 bounds outside");
  judge.bounded("G-6", "y", floats({1 + 0x1p-23}), Doubles{1}, Doubles{0});
  expect(4, 2);
  EXPECT_EQ(judge.failures()[1].margin, "1 ulp");
}

TEST_F(JudgeTest, BoundedOneErrorForAllAndInfinityIsNotJudged) {
  judge.bounded("G-6", "y", floats({1, 2, 3}), Doubles{1.5, 2, 3}, Doubles{0.6});
  expect(3, 0);
  judge.bounded("G-6", "y", floats({1, 2, 9}), Doubles{1, 2, 3}, Doubles{0, 0, infinity});
  expect(5, 0);
}

TEST_F(JudgeTest, BoundedNanOnlyWhereExpected) {
  judge.bounded("G-6", "y", floats({nan_value}), Doubles{nan_value}, Doubles{1});
  expect(1, 0);
  judge.bounded("G-6", "y", floats({nan_value, 1}), Doubles{1, nan_value}, Doubles{1e30});
  expect(3, 2);
}

TEST_F(JudgeTest, BadBoundsAreMistakesOfTheSuite) {
  const Buffer& y = floats({1, 2});
  EXPECT_THROW(judge.bounded("C", "y", y, Doubles{1, 2}, Doubles{nan_value}), std::logic_error);
  EXPECT_THROW(judge.bounded("C", "y", y, Doubles{1, 2}, Doubles{0, -1}), std::logic_error);
  EXPECT_THROW(judge.bounded("C", "y", y, Doubles{1, 2}, Doubles{1, 1, 1}), std::logic_error);
  EXPECT_THROW(judge.bounded("C", "y", y, Doubles{1, 2}, Doubles{}), std::logic_error);
  EXPECT_THROW(judge.bounded("C", "y", y, Doubles{1}, Doubles{1}), std::logic_error);
  EXPECT_THROW(judge.exact("C", "y", y, Doubles{1, 2, 3}), std::logic_error);
  EXPECT_THROW(judge.exact("C", "y", y, Indices{1, 2}), std::logic_error);  // floats, not integers
  EXPECT_THROW(judge.exact("C", "y", y, Doubles{1, 2}, Judged{true}), std::logic_error);
  EXPECT_THROW(judge.exact_bytes("C", "y", y, Bytes{1, 2, 3}), std::logic_error);
  EXPECT_THROW(judge.exact_codes("C", "y", y, Bytes(8)), std::logic_error);
  // An element that is not judged may have any bound.
  judge.bounded("C", "y", y, Doubles{1, 2}, Doubles{0, nan_value}, Judged{true, false});
  expect(1, 0);
}

TEST_F(JudgeTest, StatisticalSaysSo) {
  judge.statistical("G-6", "y", floats({2}), Doubles{1}, Doubles{0.5});
  expect(1, 1);
  EXPECT_EQ(judge.failures()[0].bound.rfind("statistical ", 0), 0u);
}

TEST_F(JudgeTest, JudgedSelectsElements) {
  judge.exact("C", "y", floats({1, 9, 3}), Doubles{1, 2, 3}, Judged{true, false, true});
  expect(2, 0);
  judge.exact("C", "y", floats({1, 9, 3}), Doubles{1, 2, 3}, Judged{false, false, false});
  expect(2, 0);
}

TEST_F(JudgeTest, Untouched) {
  Buffer& y = buffers.output("y", DROPLESS_FP32, {3});
  judge.untouched("GROUPED_GEMM-4", "tail", y, {});
  expect(3, 0);
  std::memset(static_cast<std::uint8_t*>(y.tensor()->data) + 4, 0, 4);
  judge.untouched("GROUPED_GEMM-4", "tail", y, Judged{true, false, true});
  expect(5, 0);
  judge.untouched("GROUPED_GEMM-4", "tail", y, Judged{false, true, false});
  expect(6, 1);
  EXPECT_EQ(judge.failures()[0].element, "[1]");
  EXPECT_EQ(judge.failures()[0].got, "written: 0");
}

TEST_F(JudgeTest, RelationsAndTrust) {
  judge.holds("PERMUTATION-2", "bijection", true, "each row once", "each row once");
  judge.holds("PERMUTATION-2", "bijection", false, "each row once", "row 7 twice", "[3]");
  expect(2, 1);
  EXPECT_EQ(judge.failures()[0].got, "row 7 twice");
  EXPECT_EQ(judge.failures()[0].element, "[3]");
  judge.require(true, "fine");
  judge.require(false, "at least 4 distinct scales");
  EXPECT_EQ(judge.distrust(), std::vector<std::string>{"at least 4 distinct scales"});
}

TEST_F(JudgeTest, CountsEveryFailureAndKeepsTheFirstFew) {
  const Doubles zeros(100, 0);
  const Buffer& ones = floats(Doubles(100, 1));
  judge.exact("C", "y", ones, zeros);
  expect(100, 100);
  EXPECT_EQ(judge.failures().size(), 8u);
  for (int i = 0; i < 20; ++i) judge.bounded("C", "y", ones, zeros, Doubles{0.5});
  for (int i = 0; i < 20; ++i) judge.holds("C", "r", false, "a", "b");
  expect(2120, 2120);
  EXPECT_EQ(judge.failures().size(), 64u);
}

TEST_F(JudgeTest, EmptyBufferIsNoCheck) {
  const Buffer& y = buffers.output("y", DROPLESS_FP32, {0, 4});
  judge.exact("C", "y", y, Doubles{});
  judge.bounded("C", "y", y, Doubles{}, Doubles{});
  judge.untouched("C", "y", y, {});
  expect(0, 0);
}

}  // namespace
}  // namespace dropless::conformance
