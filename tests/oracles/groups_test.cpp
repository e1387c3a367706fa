// SPDX-License-Identifier: Apache-2.0
// Groups of rows: what is real, padding or tail, which descriptions are refused, and that every
// extent may be zero.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "reference/grouped_gemm.h"

namespace dropless::oracles {
namespace {

using reference::Index;
using reference::RowKind;
using Offsets = std::vector<Index>;

bool refused(const std::function<void()>& request) {
  try {
    request();
  } catch (const reference::Refused&) {
    return true;
  }
  return false;
}

bool zones_refused(Index rows, Offsets offsets, Offsets counts) {
  return refused([&] { (void)reference::zones(rows, {offsets, counts}); });
}

TEST(Groups, RowKinds) {
  std::mt19937 random(3);
  const auto below = [&](unsigned n) { return static_cast<Index>(random() % n); };
  for (int run = 0; run < 300; ++run) {
    Offsets offsets = {0};
    Offsets counts;
    std::vector<RowKind> expected;
    for (Index group = below(5); group > 0; --group) {
      const Index real = below(4);
      const Index padding = below(3);
      offsets.push_back(offsets.back() + real + padding);
      counts.push_back(real);
      expected.insert(expected.end(), static_cast<std::size_t>(real), RowKind::real);
      expected.insert(expected.end(), static_cast<std::size_t>(padding), RowKind::padding);
    }
    expected.insert(expected.end(), random() % 3, RowKind::tail);
    const auto rows = static_cast<Index>(expected.size());
    ASSERT_EQ(reference::row_kinds(rows, {offsets, counts}), expected) << run;
    const auto zones = reference::zones(rows, {offsets, counts});
    ASSERT_EQ(zones.size(), counts.size());
    for (std::size_t g = 0; g < zones.size(); ++g) {
      EXPECT_EQ(zones[g].first, offsets[g]);
      EXPECT_EQ(zones[g].real_end, offsets[g] + counts[g]);
      EXPECT_EQ(zones[g].end, offsets[g + 1]);
    }
  }
}

TEST(Groups, Refusals) {
  EXPECT_FALSE(zones_refused(8, {0, 3, 3, 8}, {}));
  EXPECT_FALSE(zones_refused(9, {0, 3, 3, 8}, {0, 0, 5}));
  EXPECT_FALSE(zones_refused(0, {0, 0}, {0}));
  EXPECT_TRUE(zones_refused(8, {0, 4, 3, 8}, {}));
  EXPECT_TRUE(zones_refused(7, {0, 3, 3, 8}, {}));
  EXPECT_TRUE(zones_refused(8, {1, 3, 3, 8}, {}));
  EXPECT_TRUE(zones_refused(8, {-1, 3, 3, 8}, {}));
  EXPECT_TRUE(zones_refused(8, {0, 3, 3, 8}, {3, 1, 5}));
  EXPECT_TRUE(zones_refused(8, {0, 3, 3, 8}, {3, 0, 6}));
  EXPECT_TRUE(zones_refused(8, {0, 3, 3, 8}, {-1, 0, 5}));
  EXPECT_TRUE(zones_refused(8, {0, 3, 3, 8}, {3, 0}));
}

// Without offsets the matrix is one group; counts may still say how much of it is real.
TEST(Groups, OneGroupWithoutOffsets) {
  const auto whole = reference::zones(5, {});
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].first, 0);
  EXPECT_EQ(whole[0].real_end, 5);
  EXPECT_EQ(whole[0].end, 5);
  const Offsets three = {3};
  EXPECT_EQ(reference::zones(5, {{}, three}).at(0).real_end, 3);
  EXPECT_TRUE(zones_refused(5, {}, {6}));
  EXPECT_TRUE(zones_refused(5, {}, {3, 2}));
}

TEST(Groups, WeightsAreOneGroupPerExpert) {
  EXPECT_EQ(reference::weight_offsets(3, 4), (Offsets{0, 4, 8, 12}));
  EXPECT_EQ(reference::weight_offsets(2, 0), (Offsets{0, 0, 0}));
  EXPECT_EQ(reference::weight_offsets(0, 4), (Offsets{0}));
}

TEST(Groups, NegativeExtentsAreRefused) {
  const Offsets offsets = {0, 0};
  for (int which = 0; which < 4; ++which) {
    reference::GemmShape shape = {.num_experts = 1, .out = 2, .in = 3, .rows = 0};
    const reference::Doubles weights(6, 1.0);
    const auto request = [&] {
      (void)reference::gemm_fprop(shape, {offsets, {}}, 1.0, {}, weights);
    };
    EXPECT_FALSE(refused(request));
    Index* extents[] = {&shape.num_experts, &shape.out, &shape.in, &shape.rows};
    *extents[which] = -1;
    EXPECT_TRUE(refused(request)) << which;
  }
}

// GENERAL-4: nothing to contract gives zero, nothing to write gives nothing.
TEST(Groups, ZeroExtents) {
  const Offsets offsets = {0, 2, 3};
  const reference::Groups groups = {offsets, {}};
  const reference::Doubles four(4, 5.0);
  const auto y = reference::gemm_fprop({.num_experts = 2, .out = 2, .in = 0, .rows = 4}, groups,
                                       1.0, {}, {}, four);
  EXPECT_EQ(y.value, (reference::Doubles{5, 5, 5, 5, 5, 5, 0, 0}));  // the bias alone; a tail row
  const auto dx =
      reference::gemm_dgrad({.num_experts = 2, .out = 0, .in = 2, .rows = 4}, groups, 1.0, {}, {});
  EXPECT_EQ(dx.value, reference::Doubles(8, 0.0));
  const Offsets no_rows = {0, 0, 0};
  const auto dw = reference::gemm_wgrad({.num_experts = 2, .out = 1, .in = 2, .rows = 0},
                                        {no_rows, {}}, 1.0, {}, {}, 0.5, four);
  EXPECT_EQ(dw.value, reference::Doubles(4, 2.5));
  const Offsets no_experts = {0};
  const auto nothing = reference::gemm_fprop({.num_experts = 0, .out = 2, .in = 2, .rows = 0},
                                             {no_experts, {}}, 1.0, {}, {});
  EXPECT_TRUE(nothing.value.empty());
}

}  // namespace
}  // namespace dropless::oracles
