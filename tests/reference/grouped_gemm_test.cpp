// SPDX-License-Identifier: Apache-2.0
// The reference products against hand-computed numbers, exact integers, finite differences, and the
// rules about padding, NaN, beta and empty experts.
#include "reference/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/reference/random_data.h"

namespace dropless::reference {
namespace {

using List = std::vector<Index>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Three experts of 3, 0 and 2 real rows in zones of 4, 0 and 4; one row beyond the end.
const List kOffsets = {0, 4, 4, 8};
const List kCounts = {3, 0, 2};
const Groups kGroups{kOffsets, kCounts};
const GemmShape kShape{3, 5, 7, 9};
constexpr Index kExpertOf[] = {0, 0, 0, -1, 2, 2, -1, -1, -1};

struct Data {
  Doubles x, w, dy, bias, c;
};

Data integers(std::uint64_t seed) {
  test::RandomData random(seed);
  return {random.integers(9 * 7, -9, 9), random.integers(3 * 5 * 7, -9, 9),
          random.integers(9 * 5, -9, 9), random.integers(3 * 5, -9, 9),
          random.integers(3 * 5 * 7, -9, 9)};
}

bool same_bits(const Doubles& a, const Doubles& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

TEST(GroupedGemm, ByHand) {
  // One expert, W = [[1,2],[3,4],[5,6]], x = [[1,-1],[2,3]].
  const GemmShape shape{1, 3, 2, 2};
  const Doubles w = {1, 2, 3, 4, 5, 6}, x = {1, -1, 2, 3}, dy = {1, 0, -1, 2, 1, 1};
  EXPECT_EQ(gemm_fprop(shape, {}, 1, x, w).value, (Doubles{-1, -1, -1, 8, 18, 28}));
  EXPECT_EQ(gemm_fprop(shape, {}, 1, x, w).gauge, (Doubles{3, 7, 11, 8, 18, 28}));
  EXPECT_EQ(gemm_fprop(shape, {}, -0.5, x, w, Doubles{10, 20, -30}).value,
            (Doubles{10.5, 20.5, -29.5, 6, 11, -44}));
  EXPECT_EQ(gemm_fprop(shape, {}, -0.5, x, w, Doubles{10, 20, -30}).gauge,
            (Doubles{11.5, 23.5, 35.5, 14, 29, 44}));
  EXPECT_EQ(gemm_dgrad(shape, {}, 2, dy, w).value, (Doubles{-8, -8, 20, 28}));
  EXPECT_EQ(gemm_dgrad(shape, {}, 2, dy, w).gauge, (Doubles{12, 16, 20, 28}));
  const Doubles c = {1, 1, 1, -1, 0, 5};
  EXPECT_EQ(gemm_wgrad(shape, {}, 1, dy, x).value, (Doubles{5, 5, 2, 3, 1, 4}));
  EXPECT_EQ(gemm_wgrad(shape, {}, 1, dy, x, 3, c).value, (Doubles{8, 8, 5, 0, 1, 19}));
  EXPECT_EQ(gemm_wgrad(shape, {}, -1, dy, x, 3, c).gauge, (Doubles{8, 10, 5, 6, 3, 19}));
}

TEST(GroupedGemm, RaggedGroupsOnIntegers) {
  const Data d = integers(1);
  const Gauged y = gemm_fprop(kShape, kGroups, 2, d.x, d.w, d.bias);
  const Gauged dx = gemm_dgrad(kShape, kGroups, 3, d.dy, d.w);
  const Gauged dw = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x, 1, d.c);
  Doubles expected_y(9 * 5, 0), expected_dx(9 * 7, 0), expected_dw = d.c;
  for (Index r = 0; r < 9; ++r) {
    const Index e = kExpertOf[r];
    if (e < 0) continue;
    for (Index o = 0; o < 5; ++o) {
      expected_y[r * 5 + o] += d.bias[e * 5 + o];
      for (Index i = 0; i < 7; ++i) {
        expected_y[r * 5 + o] += 2 * d.x[r * 7 + i] * d.w[(e * 5 + o) * 7 + i];
        expected_dx[r * 7 + i] += 3 * d.dy[r * 5 + o] * d.w[(e * 5 + o) * 7 + i];
        expected_dw[(e * 5 + o) * 7 + i] += d.dy[r * 5 + o] * d.x[r * 7 + i];
      }
    }
  }
  EXPECT_EQ(y.value, expected_y);
  EXPECT_EQ(dx.value, expected_dx);
  EXPECT_EQ(dw.value, expected_dw);
  for (Index i = 0; i < 9 * 5; ++i) EXPECT_GE(y.gauge[i], std::abs(y.value[i]));
}

TEST(GroupedGemm, GaugeIsTheSumOfMagnitudes) {
  Data d = integers(2);
  const Gauged y = gemm_fprop(kShape, kGroups, -2, d.x, d.w, d.bias);
  const Gauged dx = gemm_dgrad(kShape, kGroups, -2, d.dy, d.w);
  const Gauged dw = gemm_wgrad(kShape, kGroups, -2, d.dy, d.x, -1, d.c);
  for (Doubles* values : {&d.x, &d.w, &d.dy, &d.bias, &d.c}) {
    for (double& value : *values) value = std::abs(value);
  }
  EXPECT_EQ(gemm_fprop(kShape, kGroups, 2, d.x, d.w, d.bias).value, y.gauge);
  EXPECT_EQ(gemm_dgrad(kShape, kGroups, 2, d.dy, d.w).value, dx.gauge);
  EXPECT_EQ(gemm_wgrad(kShape, kGroups, 2, d.dy, d.x, 1, d.c).value, dw.gauge);
}

TEST(GroupedGemm, RowKinds) {
  using enum RowKind;
  EXPECT_EQ(row_kinds(9, kGroups),
            (std::vector<RowKind>{real, real, real, padding, real, real, padding, padding, tail}));
  EXPECT_EQ(row_kinds(2, {}), (std::vector<RowKind>{real, real}));
}

TEST(GroupedGemm, PaddingAndTailAreNeverRead) {
  const Data clean = integers(3);
  Data dirty = clean;
  for (Index r = 0; r < 9; ++r) {
    if (kExpertOf[r] >= 0) continue;
    for (Index i = 0; i < 7; ++i) dirty.x[r * 7 + i] = kNan;
    for (Index o = 0; o < 5; ++o) dirty.dy[r * 5 + o] = kNan;
  }
  EXPECT_TRUE(same_bits(gemm_fprop(kShape, kGroups, 1, dirty.x, clean.w, clean.bias).value,
                        gemm_fprop(kShape, kGroups, 1, clean.x, clean.w, clean.bias).value));
  EXPECT_TRUE(same_bits(gemm_dgrad(kShape, kGroups, 1, dirty.dy, clean.w).value,
                        gemm_dgrad(kShape, kGroups, 1, clean.dy, clean.w).value));
  EXPECT_TRUE(same_bits(gemm_wgrad(kShape, kGroups, 1, dirty.dy, dirty.x).value,
                        gemm_wgrad(kShape, kGroups, 1, clean.dy, clean.x).value));
}

TEST(GroupedGemm, NanStaysInItsRowAndExpert) {
  Data d = integers(4);
  d.x[1 * 7 + 3] = kNan;                                        // row 1, expert 0
  d.dy[5 * 5 + 2] = kNan;                                       // row 5, expert 2
  for (Index i = 0; i < 5 * 7; ++i) d.w[1 * 5 * 7 + i] = kNan;  // the empty expert's weights
  const Doubles y = gemm_fprop(kShape, kGroups, 1, d.x, d.w, d.bias).value;
  const Doubles dx = gemm_dgrad(kShape, kGroups, 1, d.dy, d.w).value;
  const Doubles dw = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x).value;
  for (Index i = 0; i < 9 * 5; ++i) EXPECT_EQ(std::isnan(y[i]), i / 5 == 1) << i;
  for (Index i = 0; i < 9 * 7; ++i) EXPECT_EQ(std::isnan(dx[i]), i / 7 == 5) << i;
  for (Index i = 0; i < 3 * 5 * 7; ++i) {
    const bool column_3_of_0 = i / 35 == 0 && i % 7 == 3;
    const bool row_2_of_2 = i / 35 == 2 && i / 7 % 5 == 2;
    EXPECT_EQ(std::isnan(dw[i]), column_3_of_0 || row_2_of_2) << i;
  }
}

TEST(GroupedGemm, BetaAndEmptyExperts) {
  Data d = integers(5);
  const Doubles c_nan(3 * 5 * 7, kNan);
  const Doubles plain = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x).value;
  EXPECT_TRUE(same_bits(gemm_wgrad(kShape, kGroups, 1, d.dy, d.x, 0, c_nan).value, plain));
  for (Index i = 35; i < 70; ++i) EXPECT_EQ(plain[i], 0);

  for (Index i = 35; i < 70; ++i) d.c[i] = i % 2 == 0 ? -0.0 : 0x1.fffffep-140;
  const Doubles kept = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x, 1, d.c).value;
  EXPECT_TRUE(
      same_bits({kept.begin() + 35, kept.begin() + 70}, {d.c.begin() + 35, d.c.begin() + 70}));
  const Doubles half = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x, 0.5, d.c).value;
  for (Index i = 0; i < 35; ++i) EXPECT_EQ(half[i], plain[i] + 0.5 * d.c[i]);
  EXPECT_EQ(half[36], 0);
  EXPECT_EQ(half[37], 0x1.fffffep-141);
}

TEST(GroupedGemm, BackwardIsTheDerivative) {
  test::RandomData random(6);
  Doubles x = random.uniforms(9 * 7, -1, 1), w = random.uniforms(3 * 5 * 7, -1, 1);
  Doubles bias = random.uniforms(3 * 5, -1, 1);
  const Doubles dy = random.uniforms(9 * 5, -1, 1);
  const auto loss = [&] {
    return test::inner_product(gemm_fprop(kShape, kGroups, 1.5, x, w, bias).value, dy);
  };
  // Gradients exist for real rows only: dy of padding must not matter, and dx there is zero.
  test::expect_gradient(loss, x, gemm_dgrad(kShape, kGroups, 1.5, dy, w).value, "dx");
  test::expect_gradient(loss, w, gemm_wgrad(kShape, kGroups, 1.5, dy, x).value, "dw");
}

TEST(GroupedGemm, SplitAndInsertExperts) {
  const Data d = integers(7);
  const Gauged y = gemm_fprop(kShape, kGroups, 1, d.x, d.w);
  // Expert 0 split after its first row, an empty expert in front.
  const List offsets = {0, 0, 1, 4, 4, 8}, counts = {0, 1, 2, 0, 2};
  const auto w_of = [&](Index e) {
    return std::vector<double>(d.w.begin() + e * 35, d.w.begin() + (e + 1) * 35);
  };
  Doubles w;
  for (const Index e : {1, 0, 0, 1, 2}) {
    const Doubles part = w_of(e);
    w.insert(w.end(), part.begin(), part.end());
  }
  const GemmShape shape{5, 5, 7, 9};
  EXPECT_TRUE(same_bits(gemm_fprop(shape, {offsets, counts}, 1, d.x, w).value, y.value));
  EXPECT_TRUE(same_bits(gemm_dgrad(shape, {offsets, counts}, 1, d.dy, w).value,
                        gemm_dgrad(kShape, kGroups, 1, d.dy, d.w).value));
  const Doubles whole = gemm_wgrad(kShape, kGroups, 1, d.dy, d.x).value;
  const Doubles parts = gemm_wgrad(shape, {offsets, counts}, 1, d.dy, d.x).value;
  for (Index i = 0; i < 35; ++i) EXPECT_EQ(parts[35 + i] + parts[70 + i], whole[i]);
}

TEST(GroupedGemm, SizeZero) {
  const List offsets = {0, 0, 0};
  const GemmShape no_rows{2, 2, 3, 0};
  EXPECT_TRUE(gemm_fprop(no_rows, {offsets, {}}, 1, {}, Doubles(12, 1.0)).value.empty());
  EXPECT_EQ(gemm_wgrad(no_rows, {offsets, {}}, 1, {}, {}).value, Doubles(12, 0.0));
  const List rows = {0, 1, 2};
  const GemmShape no_inputs{2, 2, 0, 2};
  EXPECT_EQ(gemm_fprop(no_inputs, {rows, {}}, 1, {}, {}, Doubles{1, 2, 3, 4}).value,
            (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(gemm_dgrad({2, 0, 3, 2}, {rows, {}}, 1, {}, {}).value, Doubles(6, 0.0));
  const List none = {0};
  EXPECT_TRUE(gemm_wgrad({0, 2, 3, 0}, {none, {}}, 1, {}, {}).value.empty());
}

TEST(GroupedGemm, Refusals) {
  const Data d = integers(8);
  const Doubles short_x(5);
  EXPECT_THROW(gemm_fprop(kShape, kGroups, 1, short_x, d.w), Refused);
  EXPECT_THROW(gemm_fprop(kShape, kGroups, 1, d.x, short_x), Refused);
  EXPECT_THROW(gemm_fprop(kShape, kGroups, 1, d.x, d.w, short_x), Refused);
  EXPECT_THROW(gemm_wgrad(kShape, kGroups, 1, d.dy, d.x, 1, {}), Refused);
  EXPECT_THROW(gemm_dgrad(kShape, {}, 1, d.dy, d.w), Refused);  // three experts, one group
  const List falling = {0, 4, 3, 8}, beyond = {0, 4, 4, 10}, counts = {3, 1, 2};
  EXPECT_THROW(gemm_fprop(kShape, {falling, {}}, 1, d.x, d.w), Refused);
  EXPECT_THROW(gemm_fprop(kShape, {beyond, {}}, 1, d.x, d.w), Refused);
  EXPECT_THROW(gemm_fprop(kShape, {kOffsets, counts}, 1, d.x, d.w), Refused);
}

}  // namespace
}  // namespace dropless::reference
