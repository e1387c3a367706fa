// SPDX-License-Identifier: Apache-2.0
// The reference's grouped GEMM against exact arithmetic: bitwise on exact data, within the error of
// double elsewhere, with NaN wherever nothing may be read.
#include "tests/oracles/exact_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "dropless/formats.h"
#include "tests/oracles/exact_sum.h"

namespace dropless::oracles {
namespace {

using reference::Doubles;
using reference::Index;

__extension__ typedef __int128 Wide;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  Index between(Index low, Index high) {
    return std::uniform_int_distribution<Index>(low, high)(random_);
  }
  // Integers times powers of two: all partial sums are exact in double.
  double exact() { return std::ldexp(static_cast<double>(between(-15, 15)), exponent(-4, 4)); }
  // Anything that fp32 can hold near 1, amplitudes log-uniform.
  double real() {
    const float mantissa = std::normal_distribution<float>()(random_);
    return std::ldexp(mantissa, exponent(-20, 20));
  }
  // A code of an MXFP8 element under any scale byte.
  double mxfp8() {
    const E4m3 code = E4m3::from_bits(static_cast<std::uint32_t>(between(0, 255)));
    return code.is_nan() ? 0 : std::ldexp(code.to_double(), exponent(-127, 118));
  }

 private:
  int exponent(int low, int high) { return static_cast<int>(between(low, high)); }
  std::mt19937_64 random_;
};

using Draw = std::function<double(Source&)>;

Doubles fill(Source& source, const Draw& draw, Index count) {
  Doubles values(static_cast<std::size_t>(count));
  for (double& value : values) value = draw(source);
  return values;
}

// Zones with empty experts, padding rows and rows beyond the last zone.
GemmProblem ragged(Source& source) {
  GemmProblem problem;
  problem.shape.num_experts = source.between(1, 5);
  problem.shape.out = source.between(1, 7);
  problem.shape.in = source.between(1, 40);
  problem.offsets = {0};
  const bool with_counts = source.between(0, 1) != 0;
  for (Index e = 0; e < problem.shape.num_experts; ++e) {
    const Index zone = source.between(0, 2) == 0 ? 0 : source.between(1, 9);
    problem.offsets.push_back(problem.offsets.back() + zone);
    if (with_counts) problem.counts.push_back(source.between(0, zone));
  }
  problem.shape.rows = problem.offsets.back() + source.between(0, 3);
  return problem;
}

reference::Groups groups_of(const GemmProblem& problem) {
  return {problem.offsets, problem.counts};
}

// NaN into every row that is not real: GROUPED_GEMM-2 and 4.
void poison_unread_rows(const GemmProblem& problem, Doubles& matrix, Index columns) {
  const auto kinds = reference::row_kinds(problem.shape.rows, groups_of(problem));
  for (Index row = 0; row < problem.shape.rows; ++row) {
    if (kinds.at(static_cast<std::size_t>(row)) == reference::RowKind::real) continue;
    for (Index c = 0; c < columns; ++c) matrix[static_cast<std::size_t>(row * columns + c)] = kNaN;
  }
}

struct Kind {
  const char* name;
  Draw draw;
  bool exact;
};
const Kind kKinds[] = {
    {"exact", [](Source& s) { return s.exact(); }, true},
    {"real", [](Source& s) { return s.real(); }, false},
    {"mxfp8", [](Source& s) { return s.mxfp8(); }, false},
};

double draw_alpha(Source& source, bool exact) {
  const double choices[] = {1.0, -2.0, 0.375, exact ? 0.5 : static_cast<double>(1.0f / 3.0f), 0.0};
  return choices[source.between(0, 4)];
}

TEST(ExactGemm, Fprop) {
  for (const Kind& kind : kKinds) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Source source(seed);
      GemmProblem p = ragged(source);
      p.exact_in_double = kind.exact;
      p.alpha = draw_alpha(source, kind.exact);
      p.a = fill(source, kind.draw, p.shape.rows * p.shape.in);
      p.b = fill(source, kind.draw, p.shape.num_experts * p.shape.out * p.shape.in);
      if (seed % 2 != 0) p.addend = fill(source, kind.draw, p.shape.num_experts * p.shape.out);
      poison_unread_rows(p, p.a, p.shape.in);
      const auto got = reference::gemm_fprop(p.shape, groups_of(p), p.alpha, p.a, p.b, p.addend);
      ASSERT_EQ(check_fprop(p, got), "") << kind.name << " seed " << seed;
    }
  }
}

TEST(ExactGemm, Dgrad) {
  for (const Kind& kind : kKinds) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Source source(seed);
      GemmProblem p = ragged(source);
      p.exact_in_double = kind.exact;
      p.alpha = draw_alpha(source, kind.exact);
      p.a = fill(source, kind.draw, p.shape.rows * p.shape.out);
      p.b = fill(source, kind.draw, p.shape.num_experts * p.shape.out * p.shape.in);
      poison_unread_rows(p, p.a, p.shape.out);
      const auto got = reference::gemm_dgrad(p.shape, groups_of(p), p.alpha, p.a, p.b);
      ASSERT_EQ(check_dgrad(p, got), "") << kind.name << " seed " << seed;
    }
  }
}

TEST(ExactGemm, Wgrad) {
  const double betas[] = {0.0, 1.0, 0.5, -3.0};
  for (const Kind& kind : kKinds) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Source source(seed);
      GemmProblem p = ragged(source);
      p.exact_in_double = kind.exact;
      p.alpha = draw_alpha(source, kind.exact);
      p.beta = betas[seed % 4];
      p.a = fill(source, kind.draw, p.shape.rows * p.shape.out);
      p.b = fill(source, kind.draw, p.shape.rows * p.shape.in);
      const Index weights = p.shape.num_experts * p.shape.out * p.shape.in;
      if (p.beta != 0) p.addend = fill(source, kind.draw, weights);
      // With beta = 0 whatever C holds has no influence (GROUPED_GEMM-5).
      if (p.beta == 0 && seed % 8 == 0) p.addend.assign(static_cast<std::size_t>(weights), kNaN);
      poison_unread_rows(p, p.a, p.shape.out);
      poison_unread_rows(p, p.b, p.shape.in);
      const auto got =
          reference::gemm_wgrad(p.shape, groups_of(p), p.alpha, p.a, p.b, p.beta, p.addend);
      ASSERT_EQ(check_wgrad(p, got), "") << kind.name << " seed " << seed;
    }
  }
}

TEST(ExactGemm, LongSumsStayWithinTheErrorOfDouble) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Source source(seed);
    GemmProblem p;
    p.shape = {.num_experts = 1, .out = 2, .in = 5000, .rows = 2};
    p.offsets = {0, 2};
    p.exact_in_double = false;
    p.a = fill(source, kKinds[1].draw, p.shape.rows * p.shape.in);
    p.b = fill(source, kKinds[1].draw, p.shape.out * p.shape.in);
    const auto got = reference::gemm_fprop(p.shape, groups_of(p), 1.0, p.a, p.b);
    ASSERT_EQ(check_fprop(p, got), "") << seed;
  }
}

// GROUPED_GEMM-3: NaN in a real row reaches that row (fprop) or that expert (wgrad), nothing else.
TEST(ExactGemm, NaNStaysWhereItBelongs) {
  const reference::GemmShape shape = {.num_experts = 3, .out = 4, .in = 6, .rows = 9};
  const std::vector<Index> offsets = {0, 4, 4, 9};
  const reference::Groups groups = {offsets, {}};
  Source source(1);
  Doubles x = fill(source, kKinds[1].draw, shape.rows * shape.in);
  Doubles w = fill(source, kKinds[1].draw, shape.num_experts * shape.out * shape.in);
  Doubles dy = fill(source, kKinds[1].draw, shape.rows * shape.out);
  const auto clean_y = reference::gemm_fprop(shape, groups, 1.0, x, w);
  const auto clean_dw = reference::gemm_wgrad(shape, groups, 1.0, dy, x);
  x[static_cast<std::size_t>(5 * shape.in + 2)] = kNaN;  // row 5 belongs to expert 2
  const auto y = reference::gemm_fprop(shape, groups, 1.0, x, w);
  for (std::size_t i = 0; i < y.value.size(); ++i) {
    const bool hit = static_cast<Index>(i) / shape.out == 5;
    EXPECT_TRUE(hit ? std::isnan(y.value[i]) : y.value[i] == clean_y.value[i]) << i;
  }
  const auto dw = reference::gemm_wgrad(shape, groups, 1.0, dy, x);
  for (std::size_t i = 0; i < dw.value.size(); ++i) {
    const Index index = static_cast<Index>(i);
    const bool hit = index / (shape.out * shape.in) == 2 && index % shape.in == 2;
    EXPECT_TRUE(hit ? std::isnan(dw.value[i]) : dw.value[i] == clean_dw.value[i]) << i;
  }
}

// The check must notice one wrong element, and one wrong gauge.
TEST(ExactGemm, CheckNoticesDamage) {
  Source source(3);
  GemmProblem p = ragged(source);
  p.offsets.back() += 2;  // at least two rows for the last expert
  p.counts.clear();
  p.shape.rows = p.offsets.back();
  p.a = fill(source, kKinds[0].draw, p.shape.rows * p.shape.in);
  p.b = fill(source, kKinds[0].draw, p.shape.num_experts * p.shape.out * p.shape.in);
  const auto good = reference::gemm_fprop(p.shape, groups_of(p), p.alpha, p.a, p.b);
  ASSERT_EQ(check_fprop(p, good), "");
  for (std::size_t i = 0; i < good.value.size(); ++i) {
    auto bad = good;
    bad.value[i] = std::nextafter(bad.value[i], 1e300);
    EXPECT_NE(check_fprop(p, bad), "") << i;
  }
  auto bad = good;
  bad.gauge.back() *= 1.001;
  EXPECT_NE(check_fprop(p, bad), "");
}

TEST(ExactSumTest, CancellationAndRange) {
  ExactSum sum;
  const double large = std::ldexp(1.0, 127);
  const double tiny = std::ldexp(1.0, -149);
  sum.add_product(large, large);
  sum.add_product(tiny, tiny);
  sum.add_product(-large, large);
  EXPECT_EQ(sum.approximate(), std::ldexp(1.0L, -298));
  sum.add_product(tiny, -tiny);
  EXPECT_TRUE(sum.is_zero());
  sum.add_product(tiny, tiny, -tiny);
  EXPECT_EQ(sum.approximate(), -std::ldexp(1.0L, -447));
  EXPECT_THROW(sum.add(kNaN), std::range_error);
  EXPECT_THROW(sum.add_product(1e-300, 1e-300), std::range_error);
  EXPECT_THROW(sum.add_product(1.0 / 3, 1.0 / 3, 1.0 / 3), std::range_error);
}

TEST(ExactSumTest, AgreesWithIntegers) {
  std::mt19937_64 random(5);
  for (int run = 0; run < 200; ++run) {
    ExactSum sum;
    Wide expected = 0;
    for (int i = 0; i < 200; ++i) {
      const auto a = static_cast<std::int32_t>(random());
      const auto b = static_cast<std::int32_t>(random());
      sum.add_product(std::ldexp(static_cast<double>(a), -60), static_cast<double>(b));
      expected += static_cast<Wide>(a) * b;
    }
    const auto high = static_cast<double>(static_cast<std::int64_t>(expected >> 32));
    const auto low = static_cast<double>(static_cast<std::uint32_t>(expected));
    sum.add_product(-high, std::ldexp(1.0, 32 - 60));
    sum.add_product(-low, std::ldexp(1.0, -60));
    ASSERT_TRUE(sum.is_zero()) << run;
  }
}

}  // namespace
}  // namespace dropless::oracles
