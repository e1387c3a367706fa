// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM: a product by hand, and bits that depend on nothing but an expert's own rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Array fprop(const Array& x, const Array& w, const std::vector<double>& offsets, int threads = 2,
            dropless_dtype dtype = DROPLESS_FP32) {
  const Array zones = Array(DROPLESS_I64, {static_cast<Index>(offsets.size())}).set(offsets);
  Array y = Array(dtype, {x.get()->shape[0], w.get()->shape[1]}).fill(nan);
  const dropless_operand x_operand = operand(x), w_operand = operand(w);
  auto args = make_args<dropless_gemm_fprop_args>();
  args.alpha = 1;
  args.x = &x_operand;
  args.w = &w_operand;
  args.offsets = zones.get();
  args.y = y.get();
  const Outcome outcome = perform(implementation().gemm_fprop, args, threads);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return y;
}

TEST(Gemm, ByHand) {
  // Expert 0: rows (1,2), (3,4) times [[1,0],[1,1],[0,2]]; expert 1 has none; expert 2: (5,6).
  const Array x = Array(DROPLESS_FP32, {4, 2}).set({1, 2, 3, 4, 5, 6, nan, nan});
  const Array w = Array(DROPLESS_FP32, {3, 3, 2})
                      .set({1, 0, 1, 1, 0, 2, nan, nan, nan, nan, nan, nan, 1, 1, -1, 1, 2, 0});
  const std::vector<double> y = fprop(x, w, {0, 2, 2, 3}).values();
  const std::vector<double> expected = {1, 3, 4, 3, 7, 8, 11, 1, 10};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(y[i], expected[i]) << i;
  for (std::size_t i = 9; i < 12; ++i) EXPECT_TRUE(std::isnan(y[i])) << "tail row written";
}

// Sizes beyond every block of the engine, all three products, against sums in double.
TEST(Gemm, LargeProductsAgreeWithDouble) {
  const Index rows = 380, in = 700, out = 290, first = 17;  // expert 1 begins at row 17
  const Array x = Array(DROPLESS_FP32, {rows, in}).random(1);
  const Array w = Array(DROPLESS_FP32, {2, out, in}).random(2);
  const Array dy = Array(DROPLESS_FP32, {rows, out}).random(3);
  const Array offsets = Array(DROPLESS_I64, {3}).set({0, first, rows});
  const dropless_operand xo = operand(x), wo = operand(w), dyo = operand(dy);
  for (const Isa most : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const WithIsa limit(most);
    const Array y = fprop(x, w, {0, first, rows});
    const Array dx(DROPLESS_FP32, {rows, in}), dw(DROPLESS_FP32, {2, out, in});
    auto d = make_args<dropless_gemm_dgrad_args>();
    d.alpha = 1, d.dy = &dyo, d.w = &wo, d.offsets = offsets.get(), d.dx = dx.get();
    ASSERT_EQ(perform(implementation().gemm_dgrad, d).status, DROPLESS_OK);
    auto g = make_args<dropless_gemm_wgrad_args>();
    g.alpha = 1, g.dy = &dyo, g.x = &xo, g.offsets = offsets.get(), g.dw = dw.get();
    ASSERT_EQ(perform(implementation().gemm_wgrad, g).status, DROPLESS_OK);
    const auto X = x.view(), W = w.view(), DY = dy.view();
    for (Index r = 0; r < rows; r += 7) {
      const Index e = r < first ? 0 : 1;
      for (Index o = r % 5; o < out; o += 11) {
        double sum = 0;
        for (Index i = 0; i < in; ++i) sum += X.load(r, i) * W.load(e, o, i);
        ASSERT_NEAR(y.view().load(r, o), sum, 2e-3) << r << " " << o;
      }
      for (Index i = r % 5; i < in; i += 23) {
        double sum = 0;
        for (Index o = 0; o < out; ++o) sum += DY.load(r, o) * W.load(e, o, i);
        ASSERT_NEAR(dx.view().load(r, i), sum, 2e-3) << r << " " << i;
      }
    }
    for (Index o = 0; o < out; o += 13) {
      for (Index i = o % 3; i < in; i += 31) {
        double sums[2] = {};
        for (Index r = 0; r < rows; ++r) sums[r < first ? 0 : 1] += DY.load(r, o) * X.load(r, i);
        ASSERT_NEAR(dw.view().load(0, o, i), sums[0], 2e-3);
        ASSERT_NEAR(dw.view().load(1, o, i), sums[1], 2e-3);
      }
    }
  }
}

TEST(Gemm, AlphaBiasAndPadding) {
  const Array x = Array(DROPLESS_BF16, {3, 1}).set({2, nan, nan});
  const Array w = Array(DROPLESS_BF16, {1, 2, 1}).set({3, 5});
  const Array bias = Array(DROPLESS_BF16, {1, 2}).set({0.5, -1});
  const Array offsets = Array(DROPLESS_I64, {2}).set({0, 2});
  const Array counts = Array(DROPLESS_I64, {1}).set({1});
  const Array y = Array(DROPLESS_BF16, {3, 2}).fill(7);
  const dropless_operand x_operand = operand(x), w_operand = operand(w);
  auto args = make_args<dropless_gemm_fprop_args>();
  args.alpha = -0.5;
  args.x = &x_operand, args.w = &w_operand, args.bias = bias.get();
  args.offsets = offsets.get(), args.counts = counts.get(), args.y = y.get();
  ASSERT_EQ(perform(implementation().gemm_fprop, args).status, DROPLESS_OK);
  EXPECT_EQ(y.values(), (std::vector<double>{-2.5, -6, 0, 0, 7, 7}));
}

// Rows of one matrix, multiplied alone, in any company, and at any position: the same bits
// (GROUPED_GEMM-3, 9). The sizes leave remainders in every direction of every kernel.
TEST(Gemm, RowsAreIndependentOfTheirCompany) {
  for (const Isa most : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const WithIsa limit(most);
    const Index rows = 61, in = 357, out = 77;
    const Array x = Array(DROPLESS_FP32, {rows, in}).random(1);
    const Array w = Array(DROPLESS_FP32, {1, out, in}).random(2);
    const Array together = fprop(x, w, {0, static_cast<double>(rows)});
    for (Index count = 1; count < rows; count += 3) {
      const Index first = rows - count;  // the last `count` rows, moved to the front
      Array part(DROPLESS_FP32, {count, in});
      std::memcpy(part.raw().data, x.bytes().data() + first * in * 4,
                  static_cast<std::size_t>(count * in * 4));
      const Array alone = fprop(part, w, {0, static_cast<double>(count)});
      EXPECT_EQ(std::memcmp(alone.bytes().data(), together.bytes().data() + first * out * 4,
                            static_cast<std::size_t>(count * out * 4)),
                0)
          << count;
    }
  }
}

TEST(Gemm, SplitExpertGivesTheSameBits) {
  const Index rows = 100, in = 64, out = 40;
  const Array x = Array(DROPLESS_BF16, {rows, in}).random(3);
  const Array w = Array(DROPLESS_BF16, {1, out, in}).random(4);
  Array twice(DROPLESS_BF16, {2, out, in});
  std::memcpy(twice.raw().data, w.bytes().data(), w.bytes().size());
  std::memcpy(static_cast<std::byte*>(twice.raw().data) + w.bytes().size(), w.bytes().data(),
              w.bytes().size());
  const Array one = fprop(x, w, {0, 100}, 2, DROPLESS_BF16);
  for (const double at : {1, 13, 14, 50, 99}) {
    EXPECT_EQ(fprop(x, twice, {0, at, 100}, 2, DROPLESS_BF16).bytes(), one.bytes()) << at;
  }
}

// beta = 1 in place on an empty expert is no operation, NaN payloads and -0 included.
TEST(Gemm, WeightGradients) {
  const Array dy = Array(DROPLESS_FP32, {2, 1}).set({1, 2});
  const Array x = Array(DROPLESS_FP32, {2, 2}).set({3, 4, 5, 6});
  const Array offsets = Array(DROPLESS_I64, {3}).set({0, 2, 2});
  const Array dw = Array(DROPLESS_FP32, {2, 1, 2}).set({10, 20, -0.0, nan});
  const dropless_operand dy_operand = operand(dy), x_operand = operand(x);
  auto args = make_args<dropless_gemm_wgrad_args>();
  args.alpha = 1, args.beta = 1;
  args.dy = &dy_operand, args.x = &x_operand, args.offsets = offsets.get();
  args.c = dw.get(), args.dw = dw.get();
  const std::vector<std::byte> before = dw.bytes();
  ASSERT_EQ(perform(implementation().gemm_wgrad, args).status, DROPLESS_OK);
  EXPECT_EQ(dw.at(0), 10 + 13);
  EXPECT_EQ(dw.at(1), 20 + 16);
  EXPECT_EQ(std::memcmp(before.data() + 8, dw.bytes().data() + 8, 8), 0);

  args.beta = 0;
  ASSERT_EQ(perform(implementation().gemm_wgrad, args).status, DROPLESS_OK);
  EXPECT_EQ(dw.values(), (std::vector<double>{13, 16, 0, 0}));
}

// A scale byte of 0 is a subnormal number, and codes under it are subnormal too: nothing may be
// flushed on the way into the product (GROUPED_GEMM-7).
TEST(Gemm, ExtremeScales) {
  const Array codes = Array(DROPLESS_E4M3, {1, 32}).fill(1);
  const Array weights = Array(DROPLESS_E4M3, {1, 1, 32}).fill(1);
  Array low(DROPLESS_E8M0, {1, 1}), high(DROPLESS_E8M0, {1, 1, 1});
  *static_cast<std::uint8_t*>(low.raw().data) = 0;
  *static_cast<std::uint8_t*>(high.raw().data) = 246;
  dropless_operand x = operand(codes), w = operand(weights);
  x.scales = low.get(), w.scales = high.get();
  const Array offsets = Array(DROPLESS_I64, {2}).set({0, 1});
  const Array y(DROPLESS_FP32, {1, 1});
  auto args = make_args<dropless_gemm_fprop_args>();
  args.alpha = 1, args.x = &x, args.w = &w, args.offsets = offsets.get(), args.y = y.get();
  ASSERT_EQ(perform(implementation().gemm_fprop, args).status, DROPLESS_OK);
  EXPECT_EQ(y.at(0), 32 * std::ldexp(1.0, 119 - 127));
}

}  // namespace
}  // namespace dropless::cpu::testing
