// SPDX-License-Identifier: Apache-2.0
// Plans for 1,024 ranks, 256 experts, top-8 and 4,096 tokens a rank take seconds: EXCHANGE-1, 4, 5.
#include <gtest/gtest.h>

#include <ctime>
#include <iostream>
#include <numeric>

#include "tests/reference/exchange_setup.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::List;

constexpr Index kRanks = 1024, kExperts = 256, kTopK = 8, kTokens = 4096;

class ExchangeScale : public ::testing::TestWithParam<int> {};

TEST_P(ExchangeScale, PlansInSeconds) {
  // One slot a rank, so every expert has four copies; eight ranks a node.
  ExchangeSettings settings = exchange_settings(kRanks, kExperts, kTopK, kTokens);
  settings.node_of_rank = contiguous_nodes(kRanks, kRanks / 8);
  for (Index rank = 0; rank < kRanks; ++rank) settings.placement.push_back(rank % kExperts);
  // Sixteen routings, shared by the ranks to save memory: eight experts 33 apart are distinct.
  std::vector<List> routings(16);
  for (Index r = 0; r < 16; ++r) {
    for (Index t = 0; t < kTokens; ++t) {
      for (Index j = 0; j < kTopK; ++j) {
        routings[r].push_back((13 * r + t * t / 7 + 33 * j) % kExperts);
      }
    }
  }
  std::vector<Indices> ids;
  for (Index rank = 0; rank < kRanks; ++rank) ids.push_back(routings[rank % 16]);

  // Processor time, which other processes do not lengthen.
  const std::clock_t start = std::clock();
  const ExchangePlan plan = exchange_plan(exchange_profile(GetParam(), 128), settings, ids);
  const ExchangeTraffic traffic = exchange_traffic(plan, 7168);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::cout << "plan and traffic: " << seconds << " s\n";
  EXPECT_LT(seconds, 5.0);

  constexpr Index kPairs = kRanks * kTokens * kTopK;
  Index pairs = 0, rows = 0, tokens = 0;
  for (const ReceivedRows& received : plan.received) {
    pairs += received.tokens_per_local_expert[0];
    rows +=
        std::accumulate(received.rows_per_source.begin(), received.rows_per_source.end(), Index{0});
    if (!plan.flat) {
      EXPECT_EQ(received.rows() % 128, 0);
    }
  }
  for (const Index count : traffic.tokens) tokens += count;
  EXPECT_EQ(pairs, kPairs);
  EXPECT_EQ(rows, kPairs);    // one expert a rank: every pair is a row
  EXPECT_EQ(tokens, kPairs);  // and a token of its own
  EXPECT_EQ(std::accumulate(plan.global_counts.begin(), plan.global_counts.end(), Index{0}),
            kPairs);
  EXPECT_LE(plan.demand, worst_capacity(plan.profile, settings));
  // One pair in depth: rank 1000, token 77, position 5. Copy 77 % 4 = 1 of its expert.
  const Index expert = routings[1000 % 16][77 * kTopK + 5];
  const Index pair = (1000 * kTokens + 77) * kTopK + 5;
  EXPECT_EQ(plan.slot_of_pair[pair], expert + kExperts);
  const ReceivedRows& received = plan.received[expert + kExperts];
  EXPECT_EQ(received.source[plan.row_of_pair[pair]], plan.flat ? pair / kTopK : pair);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangeScale,
                         ::testing::Values(DROPLESS_DISPATCH_FLAT, DROPLESS_DISPATCH_EXPERT_MAJOR));

}  // namespace
}  // namespace dropless::reference
