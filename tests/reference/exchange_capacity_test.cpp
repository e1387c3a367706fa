// SPDX-License-Identifier: Apache-2.0
// The capacity formula with numbers worked out on paper: EXCHANGE-9.
#include "reference/exchange_capacity.h"

#include <gtest/gtest.h>

#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;

constexpr int kFlat = DROPLESS_DISPATCH_FLAT;
constexpr int kMajor = DROPLESS_DISPATCH_EXPERT_MAJOR;

Index capacity(int layout, int alignment, ExchangeSettings settings, double factor) {
  settings.ragged_buffer_factor = factor;
  return exchange_capacity(exchange_profile(layout, alignment), settings);
}

TEST(ExchangeCapacity, WorstCase) {
  // R = 4, E = 16, L = 4, T = 10, K = 2: 40 tokens, 80 pairs.
  const ExchangeSettings settings = exchange_settings(4, 16, 2, 10);
  EXPECT_EQ(capacity(kFlat, 1, settings, -1), 40);
  EXPECT_EQ(capacity(kFlat, 16, settings, -1), 40);  // flat rows are never padded
  EXPECT_EQ(capacity(DROPLESS_DISPATCH_UNORDERED_FLAT, 16, settings, -1), 40);
  EXPECT_EQ(capacity(kMajor, 1, settings, -1), 80);    // min(4 * 40, 80)
  EXPECT_EQ(capacity(kMajor, 16, settings, -1), 144);  // min(4 * 48, up(80 + 15 * 4) = up(140))
  EXPECT_EQ(capacity(DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR, 16, settings, -1), 144);
  EXPECT_EQ(capacity(kMajor, 0, settings, -1), 80);  // 0 stands for 1

  // One expert a rank: K = 2, but a token brings one pair. min(1 * 48, up(40 + 15)) = 48.
  EXPECT_EQ(capacity(kMajor, 16, exchange_settings(4, 4, 2, 10), -1), 48);
  // One pair in all, eight experts: min(8 * 16, up(1 + 15 * 1)) = 16.
  EXPECT_EQ(capacity(kMajor, 16, exchange_settings(1, 8, 1, 1), -1), 16);
  EXPECT_EQ(capacity(kMajor, 16, exchange_settings(4, 16, 2, 0), -1), 0);
  EXPECT_EQ(capacity(kFlat, 16, exchange_settings(4, 16, 2, 0), -1), 0);
}

TEST(ExchangeCapacity, Factor) {
  // ceil(10 * 2 / 4) = 5 rows an expert, 4 * 5 = 20 rows a rank.
  const ExchangeSettings settings = exchange_settings(4, 16, 2, 10);
  EXPECT_EQ(capacity(kFlat, 1, settings, 1.0), 20);
  EXPECT_EQ(capacity(kFlat, 1, settings, 1.25), 25);
  EXPECT_EQ(capacity(kFlat, 1, settings, 1.26), 26);  // 25.2
  EXPECT_EQ(capacity(kFlat, 1, settings, 2.0), 40);
  EXPECT_EQ(capacity(kFlat, 1, settings, 2.5), 40);  // the worst case
  EXPECT_EQ(capacity(kFlat, 1, settings, 1e300), 40);
  EXPECT_EQ(capacity(kMajor, 1, settings, 1.0), 20);
  EXPECT_EQ(capacity(kMajor, 1, settings, 3.0), 60);
  EXPECT_EQ(capacity(kMajor, 1, settings, 5.0), 80);  // the worst case
  // up(5) = 16, 4 * 16 = 64.
  EXPECT_EQ(capacity(kMajor, 16, settings, 1.0), 64);
  EXPECT_EQ(capacity(kMajor, 16, settings, 1.3), 96);  // up(ceil(83.2))
  EXPECT_EQ(capacity(kMajor, 16, settings, 2.0), 128);
  EXPECT_EQ(capacity(kMajor, 16, settings, 2.5), 144);  // up(160), the worst case
  // up(T) counts where a rank's own tokens are more: ceil(1 * 9 / 4) = 3, 4 * 3 = 12, up(9) = 16.
  EXPECT_EQ(capacity(kMajor, 16, exchange_settings(2, 8, 1, 9), 1.0), 64);
  EXPECT_EQ(capacity(kFlat, 1, exchange_settings(2, 8, 1, 9), 1.0), 12);
}

TEST(ExchangeCapacity, DecimalFactorsDoNotCostARow) {
  // 20 * 1.1 is 22.000000000000004 in double, and 1.1f is larger than 1.1 as well.
  const ExchangeSettings settings = exchange_settings(4, 16, 2, 10);
  EXPECT_EQ(capacity(kFlat, 1, settings, 1.1), 22);
  EXPECT_EQ(capacity(kFlat, 1, settings, static_cast<double>(1.1f)), 22);
  // 2^21 rows * (1 - 2^-20) = 2^21 - 2, so that T decides.
  EXPECT_EQ(capacity(kFlat, 1, exchange_settings(2, 2, 1, 2097152), 1.0), 2097152);
  // 2^21 * 1.5 * (1 - 2^-20) = 3145728 - 3.
  EXPECT_EQ(capacity(kFlat, 1, exchange_settings(2, 2, 1, 2097152), 1.5), 3145725);
}

TEST(ExchangeCapacity, PlacementCountsSlots) {
  // Slots 0 1 | 2 0: L = 2, T = 5, K = 3; 10 tokens, at most 2 pairs each on a rank.
  ExchangeSettings settings = exchange_settings(2, 3, 3, 5);
  settings.placement = {0, 1, 2, 0};
  EXPECT_EQ(capacity(kFlat, 1, settings, -1), 10);
  EXPECT_EQ(capacity(kMajor, 1, settings, -1), 20);
  EXPECT_EQ(capacity(kMajor, 16, settings, -1), 32);  // min(2 * 16, up(20 + 30))
  EXPECT_EQ(capacity(kMajor, 1, settings, 1.0), 16);  // 2 * ceil(15 / 2)
  EXPECT_EQ(capacity(kFlat, 1, settings, 1.0), 10);
}

// The worst case is one: no routing needs more, and some routing needs all of it.
TEST(ExchangeCapacity, WorstCaseIsReached) {
  test::RandomData random(3);
  for (const int alignment : {1, 16}) {
    // All four tokens choose experts 0 and 1 of rank 0: 8 pairs in two zones.
    const std::vector<testing::List> same = {{0, 1, 0, 1}, {0, 1, 1, 0}};
    const ExchangeSettings settings = exchange_settings(2, 4, 2, 2);
    for (const int layout : {kFlat, kMajor}) {
      const dropless_profile profile = exchange_profile(layout, alignment);
      EXPECT_EQ(exchange_plan(profile, settings, testing::views(same)).demand,
                worst_capacity(profile, settings));
    }
  }
  for (int round = 0; round < 50; ++round) {
    const testing::RandomExchange exchange(random, random.integer(1, 4), random.integer(1, 5), 1, 6,
                                           false);
    for (const int layout : {kFlat, kMajor}) {
      const dropless_profile profile = exchange_profile(layout, 16);
      EXPECT_LE(exchange.plan(profile).demand, worst_capacity(profile, exchange.settings));
    }
  }
}

TEST(ExchangeCapacity, Refusals) {
  testing::expect_refused([] { capacity(kFlat, 1, exchange_settings(2, 3, 1, 1), 1); },
                          "not divisible");
  testing::expect_refused([] { capacity(kFlat, 1, exchange_settings(2, 2, 1, 1), 0.5); },
                          "ragged_buffer_factor");
  testing::expect_refused([] { capacity(kMajor, -16, exchange_settings(2, 2, 1, 1), 1); },
                          "alignment");
  testing::expect_refused([] { capacity(kFlat, 1, exchange_settings(2, 2, 1, 1LL << 60), 1); },
                          "2^53");
}

}  // namespace
}  // namespace dropless::reference
