// SPDX-License-Identifier: Apache-2.0
// Bytes, ids and weights that a rank receives, and the way home of the weights: EXCHANGE-1 to 4, 7.
#include "reference/exchange_dispatch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "reference/permutation.h"
#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::List;
using testing::PaperExample;
using testing::RandomExchange;
using testing::views;

constexpr int kFlat = DROPLESS_DISPATCH_FLAT;
constexpr int kMajor = DROPLESS_DISPATCH_EXPERT_MAJOR;

// `width` bytes of every token (or pair), each its own: 16 * rank + 2 * index + byte, plus 128.
std::vector<Bytes> tagged(const ExchangePlan& plan, Index per_token, Index width) {
  std::vector<Bytes> arrays;
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    Bytes bytes;
    for (Index i = 0; i < plan.tokens(rank) * per_token; ++i) {
      for (Index b = 0; b < width; ++b) {
        bytes.push_back(static_cast<std::byte>(128 + 16 * rank + 2 * i + b));
      }
    }
    arrays.push_back(std::move(bytes));
  }
  return arrays;
}

std::vector<int> numbers(const Bytes& bytes) {
  std::vector<int> list;
  for (const std::byte byte : bytes) {
    list.push_back(byte == std::byte{0} ? 0 : static_cast<int>(byte) - 128);
  }
  return list;
}

TEST(ExchangeDispatch, FlatOnPaper) {
  dropless_profile profile = exchange_profile(kFlat);
  const ExchangePlan plan = PaperExample().plan(profile);
  const std::vector<Bytes> x = tagged(plan, 1, 2), weights = tagged(plan, 2, 1);
  // Tokens of rank 0 are 0 1, 2 3, 4 5, of rank 1 16 17, 18 19; weights 0 2 4 6 8 10, 16 18 20 22.
  EXPECT_EQ(numbers(dispatch_rows(plan, 0, views(x), 2)), (std::vector<int>{0, 1, 2, 3, 18, 19}));
  EXPECT_EQ(numbers(dispatch_rows(plan, 1, views(x), 2)), (std::vector<int>{0, 1, 4, 5, 18, 19}));
  EXPECT_EQ(dispatch_sources(plan, 1), (List{0, 0, 0, 2, 1, 1}));
  EXPECT_EQ(dispatch_ids(plan, 0), (List{0, -1, 0, 1, 0, -1}));
  EXPECT_EQ(dispatch_ids(plan, 1), (List{0, -1, 0, 1, 1, -1}));
  EXPECT_EQ(numbers(dispatch_weights(plan, 0, views(weights), 1)),
            (std::vector<int>{2, 0, 6, 4, 20, 0}));
  EXPECT_EQ(numbers(dispatch_weights(plan, 1, views(weights), 1)),
            (std::vector<int>{0, 0, 10, 8, 22, 0}));

  profile.flat_ids = DROPLESS_FLAT_IDS_IN_PLACE;
  const ExchangePlan in_place = PaperExample().plan(profile);
  EXPECT_EQ(dispatch_ids(in_place, 0), (List{-1, 0, 1, 0, 0, -1}));
  EXPECT_EQ(dispatch_ids(in_place, 1), (List{0, -1, 1, 0, -1, 1}));
  EXPECT_EQ(numbers(dispatch_weights(in_place, 0, views(weights), 1)),
            (std::vector<int>{0, 2, 4, 6, 20, 0}));
  EXPECT_EQ(numbers(dispatch_weights(in_place, 1, views(weights), 1)),
            (std::vector<int>{0, 0, 8, 10, 0, 22}));
}

TEST(ExchangeDispatch, ExpertMajorOnPaper) {
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kMajor));
  const std::vector<Bytes> x = tagged(plan, 1, 1), weights = tagged(plan, 2, 1);
  EXPECT_EQ(numbers(dispatch_rows(plan, 0, views(x), 1)), (std::vector<int>{0, 2, 18, 2}));
  EXPECT_EQ(numbers(dispatch_rows(plan, 1, views(x), 1)), (std::vector<int>{0, 4, 4, 18}));
  EXPECT_EQ(numbers(dispatch_weights(plan, 0, views(weights), 1)), (std::vector<int>{2, 6, 20, 4}));
  EXPECT_EQ(dispatch_sources(plan, 0), (List{0, 0, 0, 1, 1, 1, 0, 1}));
  testing::expect_refused([&] { dispatch_ids(plan, 0); }, "flat layouts");

  const ExchangePlan aligned = PaperExample().plan(exchange_profile(kMajor, 16));
  const Bytes rows = dispatch_rows(aligned, 1, views(x), 1);
  const Bytes row_weights = dispatch_weights(aligned, 1, views(weights), 1);
  const List sources = dispatch_sources(aligned, 1);
  ASSERT_EQ(rows.size(), 32u);
  for (const std::size_t real : {0, 1, 16, 17}) EXPECT_NE(rows[real], std::byte{0});
  for (std::size_t row = 0; row < 32; ++row) {
    if (row % 16 < 2) continue;
    EXPECT_EQ(rows[row], std::byte{0});
    EXPECT_EQ(row_weights[row], std::byte{0});
    EXPECT_EQ(sources[2 * row], -1);
    EXPECT_EQ(sources[2 * row + 1], -1);
  }
}

TEST(ExchangeDispatch, SpecialBytesAndZeroWeights) {
  // A NaN with a payload, -0 and a subnormal number; a weight of 0 does not erase a row.
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kMajor));
  const std::uint32_t patterns[] = {0x7FA12345u, 0x80000000u, 0x00000001u};
  std::vector<Bytes> x(2), weights(2);
  for (Index rank = 0; rank < 2; ++rank) {
    for (Index t = 0; t < plan.tokens(rank); ++t) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&patterns[(rank + t) % 3]);
      x[rank].insert(x[rank].end(), bytes, bytes + 4);
    }
    weights[rank].assign(4 * 2 * plan.tokens(rank), std::byte{0});
  }
  const Bytes rows = dispatch_rows(plan, 0, views(x), 4);
  const List sources = dispatch_sources(plan, 0);
  ASSERT_EQ(rows.size(), 16u);
  for (std::size_t row = 0; row < 4; ++row) {
    const Index pattern = (sources[2 * row] + sources[2 * row + 1]) % 3;
    EXPECT_EQ(std::memcmp(&rows[4 * row], &patterns[pattern], 4), 0);
  }
  EXPECT_EQ(dispatch_weights(plan, 0, views(weights), 4), Bytes(16, std::byte{0}));
}

// Every pair's weight arrives in one place, beside its local id, and its gradient comes back to it.
TEST(ExchangeDispatch, WeightsGoAndComeBack) {
  test::RandomData random(31);
  Index pairs = 0;
  for (int round = 0; round < 40; ++round) {
    dropless_profile profile = exchange_profile(round % 2 == 0 ? kFlat : kMajor, 16);
    profile.flat_ids = round % 4 < 2 ? DROPLESS_FLAT_IDS_ASCENDING : DROPLESS_FLAT_IDS_IN_PLACE;
    profile.overflow_policy = DROPLESS_OVERFLOW_DROP;
    const RandomExchange exchange(random, 2 * random.integer(1, 3), 4, 3, 20, round % 3 == 0);
    const ExchangePlan plan = exchange.plan(profile, round % 5 == 0 ? 16 : -1);
    const Index ranks = plan.topology.ranks;
    // Distinct positive weights: the number of the pair + 1.
    std::vector<Bytes> weights(ranks);
    for (Index rank = 0; rank < ranks; ++rank) {
      Doubles values;
      for (Index i = 0; i < plan.tokens(rank) * plan.top_k; ++i) {
        values.push_back(static_cast<double>(plan.first_token[rank] * plan.top_k + i + 1));
      }
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      weights[rank].assign(bytes, bytes + values.size() * sizeof(double));
    }
    std::vector<Doubles> arrived(ranks);
    std::vector<int> arrivals(plan.row_of_pair.size(), 0);
    for (Index rank = 0; rank < ranks; ++rank) {
      const Bytes bytes = dispatch_weights(plan, rank, views(weights), sizeof(double));
      arrived[rank].resize(bytes.size() / sizeof(double));
      if (!bytes.empty()) std::memcpy(arrived[rank].data(), bytes.data(), bytes.size());
      const List ids = plan.flat ? dispatch_ids(plan, rank) : List();
      for (std::size_t i = 0; i < arrived[rank].size(); ++i) {
        if (plan.flat) {
          EXPECT_EQ(ids[i] >= 0, arrived[rank][i] > 0);
        }
        if (arrived[rank][i] == 0) continue;
        const auto pair = static_cast<Index>(arrived[rank][i]) - 1;
        ++arrivals[pair];
        const Index slot = plan.slot_of_pair[pair];
        EXPECT_EQ(plan.topology.rank_of(slot), rank);
        const Index row = static_cast<Index>(i) / (plan.flat ? plan.top_k : 1);
        EXPECT_EQ(plan.row_of_pair[pair], row);
        if (plan.flat) {
          EXPECT_EQ(ids[i], plan.topology.local_id(slot));
        }
      }
      if (!plan.flat || profile.flat_ids != DROPLESS_FLAT_IDS_ASCENDING) continue;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {  // ascending, then -1
        if ((i + 1) % 3 == 0) continue;
        EXPECT_TRUE(ids[i + 1] == -1 || (ids[i] >= 0 && ids[i] < ids[i + 1]));
      }
    }
    for (std::size_t pair = 0; pair < arrivals.size(); ++pair) {
      EXPECT_EQ(arrivals[pair], plan.row_of_pair[pair] >= 0);
      pairs += arrivals[pair];
    }
    for (Index rank = 0; rank < ranks; ++rank) {
      arrived[rank].resize(arrived[rank].size() + 5, 777);  // buffers are longer than their rows
    }
    for (Index rank = 0; rank < ranks; ++rank) {
      const Doubles back = dispatch_weights_backward(plan, rank, views(arrived));
      ASSERT_EQ(static_cast<Index>(back.size()), plan.tokens(rank) * plan.top_k);
      for (std::size_t i = 0; i < back.size(); ++i) {
        const Index pair = plan.first_token[rank] * plan.top_k + static_cast<Index>(i);
        EXPECT_EQ(back[i], plan.row_of_pair[pair] < 0 ? 0 : static_cast<double>(pair + 1));
      }
    }
  }
  EXPECT_GT(pairs, 1000);
}

// EXCHANGE-13: on one rank, expert-major dispatch is the permutation.
TEST(ExchangeDispatch, OneRankIsThePermutation) {
  test::RandomData random(5);
  for (const int alignment : {1, 16}) {
    const dropless_profile profile = exchange_profile(kMajor, alignment);
    const std::vector<List> ids = {random.ids(40, 3, 6, 0.3)};
    const ExchangePlan plan =
        exchange_plan(profile, testing::exchange_settings(1, 6, 3, 40), views(ids));
    const PermutePlan permutation = permute_plan(profile, 40, 3, 6, ids[0]);
    EXPECT_EQ(plan.received[0].tokens_per_local_expert, permutation.tokens_per_expert);
    EXPECT_EQ(plan.received[0].offsets, permutation.offsets);
    EXPECT_EQ(List(plan.received[0].source.begin(), plan.received[0].source.end()),
              permutation.source);
    EXPECT_EQ(List(plan.row_of_pair.begin(), plan.row_of_pair.end()), permutation.row_map);
    const std::vector<Bytes> x = tagged(plan, 1, 3), weights = tagged(plan, 3, 2);
    EXPECT_EQ(dispatch_rows(plan, 0, views(x), 3), permute(permutation, x[0], 3));
    EXPECT_EQ(dispatch_weights(plan, 0, views(weights), 2),
              permute_slots(permutation, weights[0], 2));
  }
}

TEST(ExchangeDispatch, Refusals) {
  const ExchangePlan plan = PaperExample().plan(exchange_profile(kFlat));
  std::vector<Bytes> x = tagged(plan, 1, 2);
  x[1].pop_back();
  testing::expect_refused([&] { dispatch_rows(plan, 0, views(x), 2); }, "x of rank 1 has 3");
  x.pop_back();
  testing::expect_refused([&] { dispatch_rows(plan, 0, views(x), 2); }, "x of all ranks");
  testing::expect_refused([&] { dispatch_weights(plan, 0, views(tagged(plan, 1, 4)), 4); },
                          "weights of rank 0");
  const std::vector<Doubles> short_rows = {Doubles(6), Doubles(5)};
  testing::expect_refused([&] { dispatch_weights_backward(plan, 0, views(short_rows)); },
                          "d_row_weights of rank 1 has 5");
  EXPECT_TRUE(dispatch_rows(plan, 0, views(std::vector<Bytes>(2)), 0).empty());

  const ExchangePlan overflowed = PaperExample().plan(exchange_profile(kFlat), 2);
  EXPECT_THROW(dispatch_rows(overflowed, 0, views(tagged(plan, 1, 2)), 2), ExchangeOverflow);
  EXPECT_THROW(dispatch_weights(overflowed, 0, views(tagged(plan, 2, 2)), 2), ExchangeOverflow);
  EXPECT_THROW(dispatch_ids(overflowed, 0), ExchangeOverflow);
  EXPECT_THROW(dispatch_sources(overflowed, 0), ExchangeOverflow);
}

}  // namespace
}  // namespace dropless::reference
