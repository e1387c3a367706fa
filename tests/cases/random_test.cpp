// SPDX-License-Identifier: Apache-2.0
// Random numbers: golden values (a change would change every case), and what they are like.
#include "conformance/cases/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace dropless::conformance {
namespace {

TEST(Random, IsTheSameEverywhere) {
  Random random(Random::key_of("seed"));
  EXPECT_EQ(random.bits(), 0xa1724b446ee70f24u);
  EXPECT_EQ(random.bits(), 0x00bf525f8a815654u);
  EXPECT_EQ(random.bits(), 0x22a5d54853f03757u);
  EXPECT_EQ(random.below(1000), 174);
  EXPECT_EQ(random.between(-5, 5), -5);
  EXPECT_EQ(random.uniform(), 0x1.e36ae4c57038p-8);
  EXPECT_EQ(random.normal(), -0x1.b1e981028bf52p-1);
  EXPECT_EQ(random.permutation(8), (std::vector<std::int64_t>{6, 1, 7, 4, 0, 5, 2, 3}));
}

TEST(Random, RelatedKeysAreUnrelatedStreams) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t key = 0; key < 64; ++key) {
    Random random(key * 0x9e3779b97f4a7c15u);  // the step of the counter itself
    for (int i = 0; i < 64; ++i) EXPECT_TRUE(seen.insert(random.bits()).second);
  }
}

TEST(Random, BelowIsEvenAndInRange) {
  Random random(1);
  std::vector<int> count(7, 0);
  for (int i = 0; i < 70000; ++i) ++count[static_cast<std::size_t>(random.below(7))];
  for (const int n : count) EXPECT_NEAR(n, 10000, 500);  // 5 standard deviations are 463
  EXPECT_EQ(random.below(1), 0);
}

TEST(Random, NormalHasUnitVariance) {
  Random random(2);
  double sum = 0, squares = 0, largest = 0;
  constexpr int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
  }
  EXPECT_NEAR(sum / n, 0, 0.016);
  EXPECT_NEAR(squares / n, 1, 0.03);
  EXPECT_GT(largest, 3.5);
  EXPECT_LE(largest, 6);
}

TEST(Random, PermutationIsOne) {
  Random random(3);
  std::vector<std::int64_t> order = random.permutation(100);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_TRUE(random.permutation(0).empty());
}

}  // namespace
}  // namespace dropless::conformance
