// SPDX-License-Identifier: Apache-2.0
// Plans of the reference exchange against paper, and against the definition read the other way
// round: EXCHANGE-1, 3, 4, 10.
#include "reference/exchange_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::List;
using testing::PaperExample;
using testing::RandomExchange;
using Compacts = std::vector<Compact>;

constexpr int kFlat = DROPLESS_DISPATCH_FLAT;
constexpr int kMajor = DROPLESS_DISPATCH_EXPERT_MAJOR;

TEST(ExchangePlan, FlatOnPaper) {
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kFlat, 16));
  EXPECT_EQ(plan.first_token, (List{0, 3, 5}));
  EXPECT_EQ(plan.slot_of_pair, (Compacts{2, 0, 1, 0, 3, 2, -1, -1, 0, 3}));
  EXPECT_EQ(plan.row_of_pair, (Compacts{0, 0, 1, 1, 1, 1, -1, -1, 2, 2}));
  EXPECT_EQ(plan.received[0].source, (Compacts{0, 1, 4}));
  EXPECT_EQ(plan.received[0].tokens_per_local_expert, (List{3, 1}));
  EXPECT_EQ(plan.received[0].offsets, (List{0, 3, 4}));
  EXPECT_EQ(plan.received[0].rows_per_source, (List{2, 1}));
  EXPECT_EQ(plan.received[1].source, (Compacts{0, 2, 4}));
  EXPECT_EQ(plan.received[1].tokens_per_local_expert, (List{2, 2}));
  EXPECT_EQ(plan.received[1].offsets, (List{0, 2, 4}));
  EXPECT_EQ(plan.received[1].rows_per_source, (List{2, 1}));
  EXPECT_EQ(plan.global_counts, (List{3, 1, 2, 2}));
  EXPECT_EQ(plan.demand, 3);
  EXPECT_FALSE(plan.overflow);
}

TEST(ExchangePlan, ExpertMajorOnPaper) {
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kMajor));
  EXPECT_EQ(plan.row_of_pair, (Compacts{0, 0, 3, 1, 2, 1, -1, -1, 2, 3}));
  EXPECT_EQ(plan.received[0].source, (Compacts{1, 3, 8, 2}));
  EXPECT_EQ(plan.received[0].tokens_per_local_expert, (List{3, 1}));
  EXPECT_EQ(plan.received[0].offsets, (List{0, 3, 4}));
  EXPECT_EQ(plan.received[0].rows_per_source, (List{3, 1}));
  EXPECT_EQ(plan.received[1].source, (Compacts{0, 5, 4, 9}));
  EXPECT_EQ(plan.received[1].tokens_per_local_expert, (List{2, 2}));
  EXPECT_EQ(plan.received[1].rows_per_source, (List{3, 1}));
  EXPECT_EQ(plan.demand, 4);

  const ExchangePlan aligned = PaperExample().plan(exchange_profile(kMajor, 16));
  EXPECT_EQ(aligned.row_of_pair, (Compacts{0, 0, 16, 1, 16, 1, -1, -1, 2, 17}));
  EXPECT_EQ(aligned.received[0].offsets, (List{0, 16, 32}));
  EXPECT_EQ(aligned.received[0].rows(), 32);
  EXPECT_EQ(aligned.received[0].rows_per_source, (List{3, 1}));  // padding comes from nobody
  EXPECT_EQ(std::count(aligned.received[0].source.begin(), aligned.received[0].source.end(), -1),
            28);
  EXPECT_EQ(aligned.demand, 32);
}

TEST(ExchangePlan, DropOnPaper) {
  const dropless_profile major = exchange_profile(kMajor, 1, DROPLESS_OVERFLOW_DROP);
  const ExchangePlan plan = PaperExample().plan(major, 3);
  // Rank 0: expert 0 takes all three rows, expert 1 starves (pair 2). Rank 1: expert 2 takes two
  // rows, expert 3 gets the one that is left (pair 4, not 9).
  EXPECT_EQ(plan.received[0].source, (Compacts{1, 3, 8}));
  EXPECT_EQ(plan.received[0].tokens_per_local_expert, (List{3, 0}));
  EXPECT_EQ(plan.received[0].offsets, (List{0, 3, 3}));
  EXPECT_EQ(plan.received[0].rows_per_source, (List{2, 1}));
  EXPECT_EQ(plan.received[0].dropped_pairs, 1);
  EXPECT_EQ(plan.received[1].source, (Compacts{0, 5, 4}));
  EXPECT_EQ(plan.received[1].tokens_per_local_expert, (List{2, 1}));
  EXPECT_EQ(plan.received[1].rows_per_source, (List{3, 0}));
  EXPECT_EQ(plan.received[1].dropped_pairs, 1);
  EXPECT_EQ(plan.row_of_pair, (Compacts{0, 0, -1, 1, 2, 1, -1, -1, 2, -1}));
  EXPECT_EQ(plan.demand, 4);
  EXPECT_EQ(plan.global_counts, (List{3, 1, 2, 2}));
  EXPECT_TRUE(plan.overflow);
  EXPECT_TRUE(plan.delivers());

  const ExchangePlan aligned =
      PaperExample().plan(exchange_profile(kMajor, 16, DROPLESS_OVERFLOW_DROP), 16);
  EXPECT_EQ(aligned.received[0].offsets, (List{0, 16, 16}));
  EXPECT_EQ(aligned.received[0].tokens_per_local_expert, (List{3, 0}));
  EXPECT_EQ(aligned.demand, 32);

  // Flat: the third row of both ranks, token 4, is gone with its pair.
  const ExchangePlan flat =
      PaperExample().plan(exchange_profile(kFlat, 1, DROPLESS_OVERFLOW_DROP), 2);
  EXPECT_EQ(flat.received[0].source, (Compacts{0, 1}));
  EXPECT_EQ(flat.received[0].tokens_per_local_expert, (List{2, 1}));
  EXPECT_EQ(flat.received[0].offsets, (List{0, 2, 3}));
  EXPECT_EQ(flat.received[0].rows_per_source, (List{2, 0}));
  EXPECT_EQ(flat.received[0].dropped_pairs, 1);
  EXPECT_EQ(flat.received[1].tokens_per_local_expert, (List{2, 1}));
  EXPECT_EQ(flat.row_of_pair, (Compacts{0, 0, 1, 1, 1, 1, -1, -1, -1, -1}));
  EXPECT_EQ(flat.demand, 3);
}

TEST(ExchangePlan, OverflowByPolicy) {
  for (const int policy : {DROPLESS_OVERFLOW_ERROR, DROPLESS_OVERFLOW_TRAP, DROPLESS_OVERFLOW_DROP,
                           DROPLESS_OVERFLOW_RETRY}) {
    const dropless_profile profile = exchange_profile(kMajor, 1, policy);
    const bool retry = policy == DROPLESS_OVERFLOW_RETRY;
    const ExchangePlan exact = PaperExample().plan(profile, 4);
    EXPECT_FALSE(exact.overflow) << policy;
    const ExchangePlan one_short = PaperExample().plan(profile, 3);
    EXPECT_EQ(one_short.overflow, !retry) << policy;
    EXPECT_EQ(one_short.delivers(), retry || policy == DROPLESS_OVERFLOW_DROP) << policy;
    EXPECT_EQ(one_short.demand, 4) << policy;
    EXPECT_EQ(one_short.received[0].rows(), policy == DROPLESS_OVERFLOW_DROP ? 3 : 4) << policy;
  }
  // All ranks learn of the overflow of one.
  const ExchangePlan plan = exchange_plan(exchange_profile(kFlat), exchange_settings(2, 2, 1, 3),
                                          testing::views(std::vector<List>{{1, 1, 1}, {1}}), 3);
  EXPECT_EQ(plan.received[0].rows(), 0);
  EXPECT_EQ(plan.demand, 4);
  testing::expect_refused([&] { check_delivers(plan, 0); }, "4 rows for 3");
  EXPECT_THROW(check_delivers(plan, 0), ExchangeOverflow);
}

class ExchangePlanProperties : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(ExchangePlanProperties, FollowTheDefinition) {
  const auto [layout, alignment, replicated] = GetParam();
  const bool flat = layout == kFlat;
  const Index zone_unit = flat ? 1 : alignment;
  test::RandomData random(11);
  Index pairs = 0;
  for (int round = 0; round < 12; ++round) {
    const Index ranks = 2 * random.integer(1, 4), slots = random.integer(2, 4);
    const RandomExchange exchange(random, ranks, slots, random.integer(1, slots), 20, replicated);
    const dropless_profile profile = exchange_profile(layout, alignment);
    const ExchangePlan plan = exchange.plan(profile);

    // (rank, zone, source rank, token, position) of every pair, its slot found by looking.
    std::vector<std::tuple<Index, Index, Index, Index, Index>> sorted;
    for (Index from = 0; from < ranks; ++from) {
      for (Index i = 0; i < static_cast<Index>(exchange.ids[from].size()); ++i) {
        const Index token = i / plan.top_k;
        if (exchange.ids[from][i] < 0) continue;
        List holders;
        for (Index slot = 0; slot < ranks * slots; ++slot) {
          const Index expert = replicated ? exchange.settings.placement[slot] : slot;
          if (expert == exchange.ids[from][i]) holders.push_back(slot);
        }
        const Index slot = holders[token % static_cast<Index>(holders.size())];
        EXPECT_EQ(plan.slot_of_pair[plan.first_token[from] * plan.top_k + i], slot);
        sorted.emplace_back(slot / slots, slot % slots, from, token, i % plan.top_k);
      }
    }
    std::sort(sorted.begin(), sorted.end());
    pairs += static_cast<Index>(sorted.size());

    Index fullest = 0;
    for (Index rank = 0; rank < ranks; ++rank) {
      const ReceivedRows& received = plan.received[rank];
      List counts(slots, 0), per_source(ranks, 0);
      std::vector<Compact> rows;  // expected sources
      std::map<std::pair<Index, Index>, Index> flat_rows;
      Index zone = 0;
      for (const auto& [to, local, from, token, position] : sorted) {
        if (to != rank) continue;
        ++counts[local];
        const Index number = plan.first_token[from] + token;
        if (flat) {
          flat_rows[{from, token}] = number;
          continue;
        }
        for (; zone < local; ++zone) {
          while (rows.size() % zone_unit != 0) rows.push_back(-1);
        }
        rows.push_back(static_cast<Compact>(number * plan.top_k + position));
        ++per_source[from];
      }
      while (rows.size() % zone_unit != 0) rows.push_back(-1);
      for (const auto& [source, number] : flat_rows) {
        rows.push_back(static_cast<Compact>(number));
        ++per_source[source.first];
      }
      EXPECT_EQ(received.source, rows);
      EXPECT_EQ(received.tokens_per_local_expert, counts);
      EXPECT_EQ(received.rows_per_source, per_source);
      EXPECT_EQ(received.demand, received.rows());
      EXPECT_EQ(received.offsets[0], 0);
      for (Index local = 0; local < slots; ++local) {
        EXPECT_EQ(received.offsets[local + 1] - received.offsets[local],
                  (counts[local] + zone_unit - 1) / zone_unit * zone_unit);
      }
      fullest = std::max(fullest, received.rows());
    }
    EXPECT_EQ(plan.demand, fullest);

    // Both directions of the map agree: pair -> row -> token (flat) or pair.
    for (Index pair = 0; pair < static_cast<Index>(plan.row_of_pair.size()); ++pair) {
      EXPECT_EQ(plan.row_of_pair[pair] >= 0, plan.slot_of_pair[pair] >= 0);
      if (plan.row_of_pair[pair] < 0) continue;
      const Compact source = plan.received[plan.rank_of_pair(pair)].source[plan.row_of_pair[pair]];
      EXPECT_EQ(source, flat ? pair / plan.top_k : pair);
    }

    // Every capacity keeps exactly the rows below it.
    dropless_profile drop = profile;
    drop.overflow_policy = DROPLESS_OVERFLOW_DROP;
    for (Index capacity = 0; capacity <= fullest + zone_unit; capacity += zone_unit) {
      const ExchangePlan cut = exchange.plan(drop, capacity);
      EXPECT_EQ(cut.demand, fullest);
      EXPECT_EQ(cut.overflow, capacity < fullest);
      List dropped(ranks, 0), kept(ranks, 0);
      for (Index pair = 0; pair < static_cast<Index>(plan.row_of_pair.size()); ++pair) {
        if (plan.slot_of_pair[pair] < 0) continue;
        const Index row = plan.row_of_pair[pair], to = plan.rank_of_pair(pair);
        EXPECT_EQ(cut.row_of_pair[pair], row < capacity ? row : -1);
        ++(row < capacity ? kept : dropped)[to];
      }
      for (Index rank = 0; rank < ranks; ++rank) {
        const ReceivedRows& received = cut.received[rank];
        const ReceivedRows& full = plan.received[rank];
        const Index rows = std::min(capacity, full.rows());
        EXPECT_EQ(received.source, Compacts(full.source.begin(), full.source.begin() + rows));
        EXPECT_EQ(received.dropped_pairs, dropped[rank]);
        Index counted = 0;
        for (const Index count : received.tokens_per_local_expert) counted += count;
        EXPECT_EQ(counted, kept[rank]);
        EXPECT_EQ(received.offsets.back(), flat ? counted : rows);
      }
    }
  }
  EXPECT_GT(pairs, 300);  // the rounds were not empty
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangePlanProperties,
                         ::testing::Combine(::testing::Values(kFlat, kMajor),
                                            ::testing::Values(1, 16), ::testing::Bool()));

TEST(ExchangePlan, NothingToSend) {
  for (const int layout : {kFlat, kMajor}) {
    const ExchangePlan plan =
        exchange_plan(exchange_profile(layout, 16), exchange_settings(3, 6, 2, 4),
                      testing::views(std::vector<List>{{}, {-1, -1}, {}}), 0);
    EXPECT_FALSE(plan.overflow);
    EXPECT_EQ(plan.demand, 0);
    EXPECT_EQ(plan.global_counts, List(6, 0));
    for (const ReceivedRows& received : plan.received) {
      EXPECT_EQ(received.offsets, List(3, 0));
      EXPECT_EQ(received.tokens_per_local_expert, List(2, 0));
      EXPECT_EQ(received.rows_per_source, List(3, 0));
    }
  }
}

TEST(ExchangePlan, Refusals) {
  const auto refused = [](std::vector<List> ids, const std::string& culprit, Index capacity = -1) {
    testing::expect_refused(
        [&] {
          exchange_plan(exchange_profile(kMajor, 16), exchange_settings(2, 4, 2, 2),
                        testing::views(ids), capacity);
        },
        culprit);
  };
  refused({{0, 1}, {2, 4}}, "id 4 at rank 1, token 0, position 1 is outside -1 .. 3");
  refused({{0, 1, 2, -2}, {}}, "id -2 at rank 0, token 1, position 1 is outside");
  refused({{}, {3, 3}}, "id 3 at rank 1, token 0, position 1 repeats");
  refused({{0, 1}}, "ids of all ranks has 1 elements");
  refused({{0, 1}, {1}}, "1 ids on rank 1");
  refused({{0, 1, 0, 1, 0, 1}, {}}, "3 tokens on rank 0 are more than max_tokens = 2");
  refused({{0, 1}, {2, 3}}, "capacity 24 is not a multiple of the alignment 16", 24);
  refused({{0, 1}, {2, 3}}, "capacity -16", -16);
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kFlat));
  testing::expect_refused([&] { check_delivers(plan, 2); }, "rank 2 is outside 0 .. 1");
  testing::expect_refused([&] { check_delivers(plan, -1); }, "rank -1");
}

}  // namespace
}  // namespace dropless::reference
