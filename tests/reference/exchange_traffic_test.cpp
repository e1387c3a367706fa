// SPDX-License-Identifier: Apache-2.0
// Bytes between ranks and nodes, counted on paper and by sets: EXCHANGE-5.
#include "reference/exchange_traffic.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::List;
using testing::PaperExample;

TEST(ExchangeTraffic, OnPaper) {
  for (const int layout : {DROPLESS_DISPATCH_FLAT, DROPLESS_DISPATCH_EXPERT_MAJOR}) {
    // Rank 0 keeps tokens 0 and 1 and sends 0 and 2; rank 1 keeps its token 1 and sends it, too.
    const ExchangeTraffic traffic =
        exchange_traffic(PaperExample().plan(exchange_profile(layout, 16)), 10);
    EXPECT_EQ(traffic.tokens, (List{2, 2, 1, 1}));
    EXPECT_EQ(traffic.bytes(0, 1), 20);
    EXPECT_EQ(traffic.bytes(1, 0), 10);
    EXPECT_EQ(traffic.bytes(0, 0), 0);
    EXPECT_EQ(traffic.sent_bytes(0), 20);
    EXPECT_EQ(traffic.sent_bytes(1), 10);
    EXPECT_EQ(traffic.sent_node_bytes(0), 0);  // one node
  }
}

TEST(ExchangeTraffic, OneCopyPerRankAndOnePerNode) {
  // Four ranks of two experts on two nodes. Rank 0's token 0 goes to experts 2 3 (rank 1), 4
  // (rank 2) and 6 (rank 3); token 1 to 0 1 (its own), 6 7 (rank 3).
  ExchangeSettings settings = exchange_settings(4, 8, 4, 2);
  settings.node_of_rank = contiguous_nodes(4, 2);
  const std::vector<List> ids = {{4, 2, 6, 3, 7, 0, 6, 1}, {}, {}, {5, -1, -1, 0}};
  const dropless_profile profile = exchange_profile(DROPLESS_DISPATCH_FLAT);
  const ExchangeTraffic traffic =
      exchange_traffic(exchange_plan(profile, settings, testing::views(ids)), 100);
  EXPECT_EQ(traffic.tokens, (List{1, 1, 1, 2,     // from rank 0
                                  0, 0, 0, 0,     //
                                  0, 0, 0, 0,     //
                                  1, 0, 1, 0}));  // from rank 3
  EXPECT_EQ(traffic.node_tokens, (List{2, 2, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(traffic.sent_bytes(0), 400);       // ranks 1, 2 and twice 3
  EXPECT_EQ(traffic.sent_node_bytes(0), 200);  // both tokens cross to node 1 once
  EXPECT_EQ(traffic.sent_bytes(3), 200);
  EXPECT_EQ(traffic.sent_node_bytes(3), 100);
  EXPECT_EQ(traffic.sent_bytes(1), 0);

  // Ranks 0 and 3 share a node now: token 1 stays inside.
  settings.node_of_rank = {0, 1, 1, 0};
  const ExchangeTraffic mapped =
      exchange_traffic(exchange_plan(profile, settings, testing::views(ids)), 100);
  EXPECT_EQ(mapped.sent_bytes(0), 400);
  EXPECT_EQ(mapped.sent_node_bytes(0), 100);
  EXPECT_EQ(mapped.sent_node_bytes(3), 100);
}

TEST(ExchangeTraffic, DroppedTokensDoNotTravel) {
  // Expert-major, three rows: pairs 2 and 9 are dropped. Token 4 still goes to rank 0, but no
  // longer stays on rank 1; token 1 still stays on rank 0 for expert 0.
  const dropless_profile profile =
      exchange_profile(DROPLESS_DISPATCH_EXPERT_MAJOR, 1, DROPLESS_OVERFLOW_DROP);
  EXPECT_EQ(exchange_traffic(PaperExample().plan(profile, 3), 10).tokens, (List{2, 2, 1, 0}));
  EXPECT_EQ(exchange_traffic(PaperExample().plan(profile, 0), 10).tokens, (List{0, 0, 0, 0}));
  testing::expect_refused([&] { exchange_traffic(PaperExample().plan(profile), -1); },
                          "token_bytes");
}

TEST(ExchangeTraffic, EqualsTheSetsOfTokens) {
  test::RandomData random(23);
  for (int round = 0; round < 20; ++round) {
    const testing::RandomExchange exchange(random, 2 * random.integer(1, 4), 3, 3, 15,
                                           round % 2 == 0);
    const ExchangePlan plan = exchange.plan(exchange_profile(DROPLESS_DISPATCH_EXPERT_MAJOR, 16));
    const ExchangeTraffic traffic = exchange_traffic(plan, 7);
    const Index ranks = plan.topology.ranks;
    for (Index from = 0; from < ranks; ++from) {
      std::vector<std::set<Index>> to_rank(ranks), to_node(plan.topology.nodes);
      for (Index pair = plan.first_token[from] * plan.top_k;
           pair < plan.first_token[from + 1] * plan.top_k; ++pair) {
        if (plan.slot_of_pair[pair] < 0) continue;
        const Index to = plan.rank_of_pair(pair);
        to_rank[to].insert(pair / plan.top_k);
        to_node[plan.topology.node_of_rank[to]].insert(pair / plan.top_k);
      }
      Index sent = 0, sent_nodes = 0;
      for (Index to = 0; to < ranks; ++to) {
        if (to != from) sent += 7 * static_cast<Index>(to_rank[to].size());
      }
      for (Index node = 0; node < plan.topology.nodes; ++node) {
        if (node == plan.topology.node_of_rank[from]) continue;
        sent_nodes += 7 * static_cast<Index>(to_node[node].size());
      }
      EXPECT_EQ(traffic.sent_bytes(from), sent);
      EXPECT_EQ(traffic.sent_node_bytes(from), sent_nodes);
    }
    // Flat plans receive one row for each of these tokens.
    const ExchangePlan flat = exchange.plan(exchange_profile(DROPLESS_DISPATCH_FLAT));
    for (Index to = 0; to < ranks; ++to) {
      for (Index from = 0; from < ranks; ++from) {
        EXPECT_EQ(flat.received[to].rows_per_source[from], traffic.tokens[from * ranks + to]);
      }
    }
  }
}

}  // namespace
}  // namespace dropless::reference
