// SPDX-License-Identifier: Apache-2.0
// The false-alarm rates of the statistical rules: few runs here, many by `dropless tolerances`.
#include "tests/tolerances/measure/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "conformance/judge/rounding_statistics.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

TEST(Statistics, TheNominalRateHoldsAndTheRulesInUseGiveNoAlarm) {
  int compared = 0;
  for (const Rule& rule : statistical_rules()) {
    const FalseAlarms found = rule.simulate(1000);
    ASSERT_GT(found.runs, 0) << rule.name;
    if (rule.in_use) {
      EXPECT_EQ(found.alarms, 0) << rule.name;
      EXPECT_LT(found.largest, 1) << rule.name;
      continue;
    }
    const Confidence seen = confidence_of(found);
    // Seeds are fixed: an interval that misses the nominal rate by chance would miss it always.
    EXPECT_LE(seen.low * 0.5, rule.nominal) << rule.name << " " << rule.threshold;
    EXPECT_GE(seen.high * 2, rule.nominal) << rule.name << " " << rule.threshold;
    ++compared;
  }
  EXPECT_GE(compared, 6);
}

// A rule without false alarms may be one without alarms.
TEST(Statistics, WrongRoundingsAreSeen) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> size(0.5, 2), uniform;
  std::vector<double> exact, nearest, cut, together;
  const double common = uniform(random);
  for (int i = 0; i < 4096; ++i) {
    const double x = size(random);
    const auto [low, high] = conformance::bf16_neighbours(x);
    exact.push_back(x);
    nearest.push_back(round_to(DROPLESS_BF16, x));
    cut.push_back(low);
    together.push_back(common * (high - low) < x - low ? high : low);
  }
  const auto largest = [&](const std::vector<double>& got) {
    double z = 0;
    for (const auto& test : conformance::rounding_tests(exact, got).tests) {
      z = std::max(z, std::abs(test.z));
    }
    return z;
  };
  EXPECT_GT(largest(nearest), 2 * conformance::rounding_z_limit);
  EXPECT_GT(largest(cut), 2 * conformance::rounding_z_limit);
  EXPECT_GT(largest(together), 2 * conformance::rounding_z_limit);
}

TEST(Statistics, ConfidenceIsClopperAndPearson) {
  // No alarm: 1 - 0.025^(1/n). Table values of 5 in 100.
  EXPECT_NEAR(confidence_of({0, 100}).high, 0.0362, 1e-4);
  EXPECT_EQ(confidence_of({0, 100}).low, 0);
  EXPECT_NEAR(confidence_of({5, 100}).low, 0.0164, 1e-4);
  EXPECT_NEAR(confidence_of({5, 100}).high, 0.1128, 1e-4);
  EXPECT_EQ(confidence_of({100, 100}).high, 1);
}

}  // namespace
}  // namespace dropless::tolerances
