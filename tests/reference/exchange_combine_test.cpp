// SPDX-License-Identifier: Apache-2.0
// Combine, its roundings, and both backwards: EXCHANGE-6, 7, 10, 13.
#include "reference/exchange_combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "reference/exchange_dispatch.h"
#include "reference/permutation.h"
#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::List;
using testing::PaperExample;
using testing::RandomExchange;
using testing::views;

constexpr int kFlat = DROPLESS_DISPATCH_FLAT;
constexpr int kMajor = DROPLESS_DISPATCH_EXPERT_MAJOR;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

dropless_profile weighted_profile(int alignment = 1) {
  dropless_profile profile = exchange_profile(kMajor, alignment);
  profile.combine_weighting = DROPLESS_COMBINE_WEIGHTED;
  return profile;
}

TEST(ExchangeCombine, OnPaper) {
  // Flat: token 0 has row 0 of both ranks, token 1 row 1 of rank 0, token 2 row 1 of rank 1.
  const ExchangePlan flat = PaperExample().plan(exchange_profile(kFlat));
  const std::vector<Doubles> rows = {{1, 2, -3}, {10, 20, 30}};
  const Combined y = combine(flat, 0, 1, DROPLESS_FP32, views(rows));
  EXPECT_EQ(y.exact.value, (Doubles{11, 2, 20}));
  EXPECT_EQ(y.declared, y.exact.value);
  EXPECT_EQ(combine(flat, 1, 1, DROPLESS_FP32, views(rows)).exact.value, (Doubles{0, 27}));
  EXPECT_EQ(combine(flat, 1, 1, DROPLESS_FP32, views(rows)).exact.gauge, (Doubles{0, 33}));

  // Expert-major, rows (0: pairs 1 3 8 2; 1: pairs 0 5 4 9), weighted.
  const ExchangePlan major = PaperExample().plan(weighted_profile());
  const std::vector<Doubles> four = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  const std::vector<Doubles> weights = {{2, 3, 0.5, -1}, {1, 2, 0, 0.25}};
  EXPECT_EQ(combine(major, 0, 1, DROPLESS_FP32, views(four), views(weights)).exact.value,
            (Doubles{1 * 10 + 2 * 1, -1 * 4 + 3 * 2, 0 * 30 + 2 * 20}));
  EXPECT_EQ(combine(major, 0, 1, DROPLESS_FP32, views(four), views(weights)).exact.gauge,
            (Doubles{12, 10, 40}));
  EXPECT_EQ(combine(major, 1, 1, DROPLESS_FP32, views(four), views(weights)).exact.value,
            (Doubles{0, 0.5 * 3 + 0.25 * 40}));
  const ExchangePlan plain = PaperExample().plan(exchange_profile(kMajor));
  EXPECT_EQ(combine(plain, 0, 1, DROPLESS_FP32, views(four)).exact.value, (Doubles{11, 6, 50}));
}

// One token whose four experts hold the given values; bf16 has eight significant bits, so that 257
// rounds to 256 and 259 to 260.
double combined(int rounding, Index ranks, std::vector<Index> nodes, const Doubles& values,
                dropless_dtype payload = DROPLESS_BF16, int layout = kMajor) {
  dropless_profile profile = exchange_profile(layout);
  profile.combine_rounding = rounding;
  ExchangeSettings settings = exchange_settings(ranks, 4, 4, 1);
  settings.node_of_rank = std::move(nodes);
  std::vector<List> ids(ranks);
  ids[0] = {3, 1, 0, 2};
  const ExchangePlan plan = exchange_plan(profile, settings, views(ids));
  std::vector<Doubles> rows(ranks);
  for (std::size_t e = 0; e < values.size(); ++e) {
    rows[static_cast<Index>(e) * ranks / static_cast<Index>(values.size())].push_back(values[e]);
  }
  const Combined y = combine(plan, 0, 1, payload, views(rows));
  double sum = 0;
  for (const double value : values) sum += value;
  EXPECT_EQ(y.exact.value[0], sum);  // whatever is rounded in between
  return y.declared[0];
}

TEST(ExchangeCombine, DeclaredRoundings) {
  constexpr int kOnce = DROPLESS_COMBINE_ROUNDS_ONCE;
  constexpr int kRank = DROPLESS_COMBINE_ROUNDS_PER_RANK;
  constexpr int kNode = DROPLESS_COMBINE_ROUNDS_PER_NODE;
  EXPECT_EQ(combined(kOnce, 2, {}, {256, 1, 1, 1}), 259);
  EXPECT_EQ(combined(kRank, 2, {}, {256, 1, 1, 1}), 258);  // 256 + 2
  EXPECT_EQ(combined(kRank, 4, {}, {256, 1, 1, 1}), 259);  // every row is exact
  EXPECT_EQ(combined(kNode, 4, {0, 0, 1, 1}, {256, 1, 1, 1}), 258);
  EXPECT_EQ(combined(kNode, 4, {0, 0, 1, 1}, {256, 3, 1, 1}), 262);  // 260 + 2
  EXPECT_EQ(combined(kNode, 4, {0, 1, 0, 1}, {256, 3, 1, 1}), 260);  // 256 + 4
  EXPECT_EQ(combined(kNode, 4, {}, {256, 1, 1, 1}), 260);            // one node: 259
  EXPECT_EQ(combined(kRank, 2, {}, {256, 1, 1, 1}, DROPLESS_FP32), 259);
  // A flat row is its rank's sum already.
  EXPECT_EQ(combined(kRank, 2, {}, {257, 2}, DROPLESS_FP32, kFlat), 259);
  EXPECT_EQ(combined(kNode, 2, {0, 1}, {256, 3}, DROPLESS_BF16, kFlat), 259);
  EXPECT_EQ(combined(kNode, 2, {}, {256, 3}, DROPLESS_BF16, kFlat), 260);
}

TEST(ExchangeCombine, BackwardOnPaper) {
  // Pairs of the rows: rank 0 has 1 3 8 2 (tokens 0 1 4 1), rank 1 has 0 5 4 9 (0 2 2 4).
  const ExchangePlan plan = PaperExample().plan(weighted_profile());
  const std::vector<Doubles> d_y = {{1, 2, 3}, {100, 5}};
  const Doubles rows = {1, 2, 3, 4}, weights = {2, 3, 0.5, -1};
  const CombineGradient gradient = combine_backward(plan, 0, 1, views(d_y), rows, weights);
  EXPECT_EQ(gradient.d_rows.value, (Doubles{2, 6, 2.5, -2}));
  EXPECT_EQ(gradient.d_rows.gauge, (Doubles{2, 6, 2.5, 2}));
  EXPECT_EQ(gradient.d_row_weights.value, (Doubles{1, 4, 15, 8}));
  EXPECT_EQ(gradient.d_row_weights.gauge, (Doubles{1, 4, 15, 8}));
  const ExchangePlan plain = PaperExample().plan(exchange_profile(kMajor));
  const CombineGradient copied = combine_backward(plain, 1, 1, views(d_y));
  EXPECT_EQ(copied.d_rows.value, (Doubles{1, 3, 3, 5}));
  EXPECT_TRUE(copied.d_row_weights.value.empty());
  EXPECT_EQ(dispatch_backward(plain, 0, 1, DROPLESS_FP32,
                              views(std::vector<Doubles>{{1, 2, 3, 4}, {10, 20, 30, 40}}))
                .exact.value,
            (Doubles{11, 6, 50}));
}

// <D x, y> = <x, C y> for both pairs of operations, exactly, on integers; under drop, too.
TEST(ExchangeCombine, AdjointIdentities) {
  test::RandomData random(41);
  constexpr Index kHidden = 3;
  double seen = 0;
  for (int round = 0; round < 40; ++round) {
    dropless_profile profile = exchange_profile(round % 2 == 0 ? kFlat : kMajor, 16);
    const bool weighted = round % 4 == 1;
    if (weighted) profile.combine_weighting = DROPLESS_COMBINE_WEIGHTED;
    profile.combine_rounding = round % 3;  // integers this small are exact in bf16
    profile.overflow_policy = DROPLESS_OVERFLOW_DROP;
    const RandomExchange exchange(random, 2 * random.integer(1, 3), 3, 2, 15, round % 5 == 0);
    const ExchangePlan plan = exchange.plan(profile, round % 7 == 0 ? 16 : -1);
    const Index ranks = plan.topology.ranks;
    std::vector<Doubles> x(ranks), d_y(ranks), rows(ranks), weights(ranks);
    for (Index rank = 0; rank < ranks; ++rank) {
      x[rank] = random.integers(plan.tokens(rank) * kHidden, -3, 3);
      d_y[rank] = random.integers(plan.tokens(rank) * kHidden, -3, 3);
      const ReceivedRows& received = plan.received[rank];
      rows[rank] = random.integers(received.rows() * kHidden, -3, 3);
      weights[rank] = random.integers(received.rows(), -2, 2);
      for (Index row = 0; row < received.rows(); ++row) {
        if (received.source[row] >= 0) continue;  // what padding holds does not matter
        weights[rank][row] = kNan;
        for (Index h = 0; h < kHidden; ++h) rows[rank][row * kHidden + h] = kNan;
      }
    }
    const auto weight_views = views(weights);
    const RankInputs used = weighted ? RankInputs(weight_views) : RankInputs();

    double combine_side = 0, rows_side = 0, weights_side = 0, x_side = 0, dispatch_side = 0;
    for (Index rank = 0; rank < ranks; ++rank) {
      const Combined y = combine(plan, rank, kHidden, DROPLESS_BF16, views(rows), used);
      EXPECT_EQ(y.declared, y.exact.value);
      combine_side += test::inner_product(y.exact.value, d_y[rank]);
      const CombineGradient gradient =
          combine_backward(plan, rank, kHidden, views(d_y), weighted ? Input(rows[rank]) : Input(),
                           weighted ? Input(weights[rank]) : Input());
      const Combined d_x = dispatch_backward(plan, rank, kHidden, DROPLESS_BF16, views(rows));
      x_side += test::inner_product(d_x.exact.value, x[rank]);

      std::vector<Bytes> x_bytes;
      for (const Doubles& values : x) {
        const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
        x_bytes.emplace_back(bytes, bytes + values.size() * sizeof(double));
      }
      const Bytes sent = dispatch_rows(plan, rank, views(x_bytes), kHidden * sizeof(double));
      for (std::size_t i = 0; i < rows[rank].size(); ++i) {
        const std::size_t row = i / kHidden;
        double arrived = 0;
        std::memcpy(&arrived, &sent[i * sizeof(double)], sizeof(double));
        if (plan.received[rank].source[row] < 0) {
          EXPECT_EQ(gradient.d_rows.value[i], 0);
          EXPECT_EQ(arrived, 0);
          continue;
        }
        rows_side += gradient.d_rows.value[i] * rows[rank][i];
        dispatch_side += arrived * rows[rank][i];
        if (weighted && i % kHidden == 0) {
          weights_side += gradient.d_row_weights.value[row] * weights[rank][row];
        }
      }
    }
    EXPECT_EQ(combine_side, rows_side);
    if (weighted) {
      EXPECT_EQ(combine_side, weights_side);
    }
    EXPECT_EQ(dispatch_side, x_side);
    seen += std::abs(combine_side) + std::abs(x_side);
  }
  EXPECT_GT(seen, 0);
}

// EXCHANGE-13: one rank, expert-major, weighted: the numbers of unpermute, to the last bit.
TEST(ExchangeCombine, OneRankIsThePermutation) {
  test::RandomData random(6);
  constexpr Index kTokens = 30, kTopK = 3, kExperts = 6, kHidden = 4;
  const List ids = random.ids(kTokens, kTopK, kExperts, 0.3);
  const dropless_profile profile = weighted_profile(16);
  const ExchangePlan plan = exchange_plan(profile, exchange_settings(1, kExperts, kTopK, kTokens),
                                          views(std::vector<List>{ids}));
  const PermutePlan permutation = permute_plan(profile, kTokens, kTopK, kExperts, ids);
  const Doubles weights = random.uniforms(kTokens * kTopK, -1, 1);
  const Doubles d_y = random.uniforms(kTokens * kHidden, -1, 1);
  const Doubles rows = random.uniforms(permutation.rows() * kHidden, -1, 1);
  Doubles row_weights(permutation.rows(), 0.0);
  for (Index row = 0; row < permutation.rows(); ++row) {
    if (permutation.source[row] >= 0) row_weights[row] = weights[permutation.source[row]];
  }
  const Combined y = combine(plan, 0, kHidden, DROPLESS_FP32, views(std::vector<Doubles>{rows}),
                             views(std::vector<Doubles>{row_weights}));
  const Gauged expected = unpermute(permutation, kHidden, rows, weights);
  EXPECT_EQ(y.exact.value, expected.value);
  EXPECT_EQ(y.exact.gauge, expected.gauge);
  const UnpermuteGradient there = unpermute_backward(permutation, kHidden, rows, weights, d_y);
  const CombineGradient here =
      combine_backward(plan, 0, kHidden, views(std::vector<Doubles>{d_y}), rows, row_weights);
  EXPECT_EQ(here.d_rows.value, there.d_rows.value);
  EXPECT_EQ(
      dispatch_weights_backward(plan, 0, views(std::vector<Doubles>{here.d_row_weights.value})),
      there.d_weights.value);
  const Combined d_x =
      dispatch_backward(plan, 0, kHidden, DROPLESS_FP32, views(std::vector<Doubles>{rows}));
  EXPECT_EQ(d_x.exact.value, permute_backward(permutation, kHidden, rows).value);
}

// Experts that multiply by their number + 1, on integers: any number of ranks, any layout, copies
// or not, the same outputs and gradients as the definition of a MoE layer.
TEST(ExchangeCombine, AnyNumberOfRanksGivesTheLayer) {
  test::RandomData random(51);
  for (int round = 0; round < 30; ++round) {
    dropless_profile profile = exchange_profile(round % 3 == 0 ? kFlat : kMajor, 16);
    const bool weighted = round % 3 == 2;
    if (weighted) profile.combine_weighting = DROPLESS_COMBINE_WEIGHTED;
    const RandomExchange exchange(random, 2 * random.integer(1, 4), 2, 2, 12, round % 2 == 0);
    const ExchangePlan plan = exchange.plan(profile);
    const Index ranks = plan.topology.ranks;
    std::vector<Doubles> x(ranks), weights(ranks);
    std::vector<Bytes> x_bytes(ranks), weight_bytes(ranks);
    const auto bytes_of = [](const Doubles& values) {
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      return Bytes(bytes, bytes + values.size() * sizeof(double));
    };
    const auto doubles_of = [](const Bytes& bytes) {
      Doubles values(bytes.size() / sizeof(double));
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    };
    for (Index rank = 0; rank < ranks; ++rank) {
      x[rank] = random.integers(plan.tokens(rank), -9, 9);
      weights[rank] = random.integers(plan.tokens(rank) * plan.top_k, -9, 9);
      x_bytes[rank] = bytes_of(x[rank]);
      weight_bytes[rank] = bytes_of(weights[rank]);
    }
    std::vector<Doubles> rows(ranks), row_weights(ranks);
    for (Index rank = 0; rank < ranks; ++rank) {
      rows[rank] = doubles_of(dispatch_rows(plan, rank, views(x_bytes), sizeof(double)));
      row_weights[rank] =
          doubles_of(dispatch_weights(plan, rank, views(weight_bytes), sizeof(double)));
      const ReceivedRows& received = plan.received[rank];
      const auto factor = [&](Index local) {
        return 1.0 + static_cast<double>(
                         plan.topology.expert_of_slot[rank * plan.topology.slots + local]);
      };
      if (plan.flat) {
        const List ids = dispatch_ids(plan, rank);
        for (Index row = 0; row < received.rows(); ++row) {
          double sum = 0;
          for (Index i = row * plan.top_k; i < (row + 1) * plan.top_k; ++i) {
            if (ids[i] >= 0) sum += row_weights[rank][i] * factor(ids[i]) * rows[rank][row];
          }
          rows[rank][row] = sum;
        }
        continue;
      }
      for (Index local = 0; local < plan.topology.slots; ++local) {
        for (Index row = received.offsets[local]; row < received.offsets[local + 1]; ++row) {
          rows[rank][row] *= factor(local) * (weighted ? 1 : row_weights[rank][row]);
        }
      }
    }
    const auto weight_views = views(row_weights);
    const RankInputs used = weighted ? RankInputs(weight_views) : RankInputs();
    for (Index rank = 0; rank < ranks; ++rank) {
      const Combined y = combine(plan, rank, 1, DROPLESS_FP32, views(rows), used);
      for (Index t = 0; t < plan.tokens(rank); ++t) {
        double expected = 0;
        for (Index j = 0; j < plan.top_k; ++j) {
          const Index id = exchange.ids[rank][t * plan.top_k + j];
          if (id < 0) continue;
          expected +=
              weights[rank][t * plan.top_k + j] * (1.0 + static_cast<double>(id)) * x[rank][t];
        }
        EXPECT_EQ(y.exact.value[t], expected);
      }
    }
  }
}

TEST(ExchangeCombine, DroppedPairsGiveZero) {
  const dropless_profile profile = exchange_profile(kFlat, 1, DROPLESS_OVERFLOW_DROP);
  const ExchangePlan plan = PaperExample().plan(profile, 2);  // token 4 is dropped everywhere
  const std::vector<Doubles> rows = {{1, 2}, {10, 20}}, d_y = {{1, 2, 3}, {4, 5}};
  EXPECT_EQ(combine(plan, 0, 1, DROPLESS_FP32, views(rows)).exact.value, (Doubles{11, 2, 20}));
  EXPECT_EQ(combine(plan, 1, 1, DROPLESS_FP32, views(rows)).exact.value, (Doubles{0, 0}));
  EXPECT_EQ(combine_backward(plan, 0, 1, views(d_y)).d_rows.value, (Doubles{1, 2}));
  EXPECT_EQ(
      dispatch_weights_backward(plan, 1, views(std::vector<Doubles>{{1, 2, 3, 4}, {5, 6, 7, 8}})),
      (Doubles{0, 0, 0, 0}));
}

TEST(ExchangeCombine, Refusals) {
  const ExchangePlan weighted = PaperExample().plan(weighted_profile());
  const ExchangePlan flat = PaperExample().plan(exchange_profile(kFlat));
  const std::vector<Doubles> four = {Doubles(4), Doubles(4)}, two = {Doubles(4), Doubles(2)};
  const std::vector<Doubles> d_y = {Doubles(3), Doubles(2)};
  const auto refused = [](const std::string& culprit, const auto& call) {
    testing::expect_refused(call, culprit);
  };
  refused("there are none", [&] { combine(weighted, 0, 1, DROPLESS_FP32, views(four)); });
  refused("unweighted combine",
          [&] { combine(flat, 0, 1, DROPLESS_FP32, views(four), views(four)); });
  refused("rows of rank 1 has 2", [&] { combine(flat, 0, 1, DROPLESS_FP32, views(two)); });
  refused("row_weights of rank 1 has 2",
          [&] { combine(weighted, 0, 1, DROPLESS_FP32, views(four), views(two)); });
  refused("d_rows of rank 1", [&] { dispatch_backward(flat, 0, 1, DROPLESS_FP32, views(two)); });
  refused("rows has 0", [&] { combine_backward(weighted, 0, 1, views(d_y)); });
  refused("row_weights has 0", [&] { combine_backward(weighted, 0, 1, views(d_y), four[0]); });
  refused("unweighted combine",
          [&] { combine_backward(flat, 0, 1, views(d_y), four[0], four[0]); });
  refused("d_y of a rank", [&] { combine_backward(flat, 0, 1, views(four)); });
  const ExchangePlan overflowed = PaperExample().plan(exchange_profile(kFlat), 2);
  EXPECT_THROW(combine(overflowed, 0, 1, DROPLESS_FP32, views(four)), ExchangeOverflow);
  EXPECT_THROW(dispatch_backward(overflowed, 0, 1, DROPLESS_FP32, views(four)), ExchangeOverflow);
  EXPECT_THROW(combine_backward(overflowed, 0, 1, views(d_y)), ExchangeOverflow);
  EXPECT_THROW(dispatch_weights_backward(overflowed, 0, views(four)), ExchangeOverflow);
}

}  // namespace
}  // namespace dropless::reference
