// SPDX-License-Identifier: Apache-2.0
// Data regimes: what each promises about its numbers.
#include "conformance/cases/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace dropless::conformance {
namespace {

constexpr dropless_dtype formats[] = {DROPLESS_FP32, DROPLESS_BF16, DROPLESS_E4M3, DROPLESS_E5M2};

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(Matrix, IsRepresentableInItsFormat) {
  for (const std::string& regime : data_regimes()) {
    for (const dropless_dtype dtype : formats) {
      Random random(Random::key_of(regime));
      const std::vector<double> values = matrix(regime, dtype, 33, 65, 65, random);
      EXPECT_EQ(values.size(), 33u * 65u);
      EXPECT_TRUE(representable(dtype, values)) << regime << dtype;
    }
  }
}

TEST(Matrix, ExactSumsStayBelow2To24Units) {
  for (const Index length : {1, 31, 256, 4096, 20000}) {
    Random random(1);
    const std::vector<double> a = matrix("exact", DROPLESS_BF16, 1, length, length, random);
    const std::vector<double> b = matrix("exact", DROPLESS_BF16, 1, length, length, random);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(std::fmod(a[i] * b[i], 0.25), 0);
      EXPECT_NE(a[i], 0);
      sum += std::abs(a[i] * b[i]);
    }
    EXPECT_LE(sum / 0.25, 0x1p24) << length;
  }
}

TEST(Matrix, ExactOutputsExerciseRounding) {
  Random random(2);
  constexpr Index rows = 64, length = 256;
  const std::vector<double> a = matrix("exact", DROPLESS_BF16, rows, length, length, random);
  int wide = 0;
  for (std::size_t r = 0; r + 1 < rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < length; ++c) sum += a[r * length + c] * a[(r + 1) * length + c];
    wide += std::abs(sum) / 0.25 > 256;  // more than bf16's 8 bits
  }
  EXPECT_GT(wide, 56);
}

TEST(Matrix, ExactScalesVaryByRowAndBlock) {
  Random random(3);
  const std::vector<double> a = matrix("exact", DROPLESS_E4M3, 16, 128, 128, random);
  std::set<double> largest;
  for (std::size_t b = 0; b < 64; ++b) {
    double most = 0;
    for (std::size_t i = 0; i < 32; ++i) most = std::max(most, std::abs(a[b * 32 + i]));
    largest.insert(std::floor(std::log2(most)));
  }
  EXPECT_GE(largest.size(), 3u);
}

TEST(Matrix, OutputsHaveSizeOne) {
  constexpr Index length = 1024, rows = 256;
  for (const char* regime : {"same_sign", "zero_mean"}) {
    Random random(4);
    const std::vector<double> x = matrix(regime, DROPLESS_BF16, rows, length, length, random);
    const std::vector<double> w = matrix(regime, DROPLESS_BF16, rows, length, length, random);
    std::vector<double> y(rows, 0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < length; ++c) y[r] += x[r * length + c] * w[r * length + c];
    }
    EXPECT_GT(root_mean_square(y), 0.5) << regime;
    EXPECT_LT(root_mean_square(y), 3) << regime;
  }
}

TEST(Matrix, CancellingCancelsAlongBothAxes) {
  Random random(5);
  constexpr std::size_t n = 64;
  const std::vector<double> x = matrix("cancelling", DROPLESS_BF16, n, n, n, random);
  const std::vector<double> w = matrix("cancelling", DROPLESS_BF16, n, n, n, random);
  double along_columns = 0, along_rows = 0, gauge_columns = 0, gauge_rows = 0;
  for (std::size_t i = 0; i < n; ++i) {
    along_columns += x[n + i] * w[i], gauge_columns += std::abs(x[n + i] * w[i]);
    along_rows += x[i * n + 1] * w[i * n], gauge_rows += std::abs(x[i * n + 1] * w[i * n]);
  }
  EXPECT_LT(std::abs(along_columns), gauge_columns / 16);
  EXPECT_LT(std::abs(along_rows), gauge_rows / 16);
}

TEST(Matrix, SpecialHoldsEverySpecialValue) {
  Random random(6);
  const std::vector<double> x = matrix("special", DROPLESS_BF16, 64, 64, 64, random);
  const auto any = [&](auto test) { return std::any_of(x.begin(), x.end(), test); };
  EXPECT_TRUE(any([](double v) { return std::isnan(v); }));
  EXPECT_TRUE(any([](double v) { return std::isinf(v) && v < 0; }));
  EXPECT_TRUE(any([](double v) { return v == 0 && std::signbit(v); }));
  EXPECT_TRUE(any([](double v) { return v == 0x1p-133; }));
  EXPECT_TRUE(any([](double v) { return v == 0x1.fep127; }));
}

TEST(Matrix, RefusesAnUnknownRegime) {
  Random random(7);
  EXPECT_THROW((void)matrix("typical", DROPLESS_FP32, 1, 1, 1, random), std::logic_error);
}

TEST(Cotangent, IsRandomAndRepresentable) {
  for (const char* regime : {"exact", "zero_mean"}) {
    Random random(8);
    const std::vector<double> dy = cotangent(regime, DROPLESS_BF16, 32, 32, random);
    EXPECT_TRUE(representable(DROPLESS_BF16, dy));
    EXPECT_GT(root_mean_square(dy), 0.5);
    EXPECT_LT(root_mean_square(dy), 3);
    EXPECT_GT(std::set<double>(dy.begin(), dy.end()).size(), 20u);
  }
}

TEST(Blockwise, NeighbouringBlocksDiffer) {
  Random random(9);
  const std::vector<double> x = blockwise(DROPLESS_BF16, 8, 256, 10, random);
  EXPECT_TRUE(representable(DROPLESS_BF16, x));
  double least = INFINITY, most = 0;
  for (const double v : x) least = std::min(least, std::abs(v)), most = std::max(most, std::abs(v));
  EXPECT_GT(std::log2(most / least), 12);
  EXPECT_GE(least, 0x1p-12);
  EXPECT_LE(most, 0x1.8p10);
}

TEST(SeparatedLogits, KeepTheirDistance) {
  for (const dropless_dtype dtype : {DROPLESS_FP32, DROPLESS_BF16}) {
    Random random(10);
    constexpr Index tokens = 9, experts = 256;
    const std::vector<double> logits = separated_logits(tokens, experts, 0.0625, dtype, random);
    EXPECT_TRUE(representable(dtype, logits));
    for (Index t = 0; t < tokens; ++t) {
      std::vector<double> row(logits.begin() + t * experts, logits.begin() + (t + 1) * experts);
      EXPECT_FALSE(std::is_sorted(row.begin(), row.end()));
      std::sort(row.begin(), row.end());
      for (std::size_t e = 1; e < row.size(); ++e) EXPECT_GE(row[e] - row[e - 1], 0.0625);
      EXPECT_LT(std::abs(row.front() + row.back()), 4);
    }
  }
}

}  // namespace
}  // namespace dropless::conformance
