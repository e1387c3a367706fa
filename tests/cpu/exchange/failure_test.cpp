// SPDX-License-Identifier: Apache-2.0
// EXCHANGE-14 between threads, refusals that leave everything as it was, and the roundings that a
// profile declares.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Failure, AMissingRankEndsInTheTimeOutOnEveryOther) {
  const Routing routing = random_routing(3, 6, 2, {20, 20, 20}, 2);
  const auto gathering = make_gathering(3);
  run_threads(3, [&](int r) {
    Rank mine(routing.profile(), r, 3, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    mine.settings.timeout_seconds = 0.4;
    ASSERT_EQ(mine.open().status, DROPLESS_OK);
    ASSERT_EQ(mine.plan(routing.ids_of(r)).outcome.status, DROPLESS_OK);
    char all[3];
    if (r == 2) {
      gathering->gather(r, "", all, 1);  // stays until the others have given up
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    const Array x = Array(DROPLESS_FP32, {20, 3}).fill(1);
    const Array rows = Array(DROPLESS_FP32, {60, 3}).fill(-1);
    const Outcome late = mine.dispatch(x, rows);
    EXPECT_EQ(late.status, DROPLESS_TIMEOUT);
    EXPECT_NE(late.message.find("exchange_dispatch: no rows from rank 2 within 0.4 s"),
              std::string::npos)
        << late.message;
    EXPECT_GT(seconds_since(start), 0.3);
    EXPECT_LT(seconds_since(start), 5);
    EXPECT_EQ(rows.values(), std::vector<double>(180, -1));
    const Outcome after = mine.combine(rows, x);
    EXPECT_EQ(after.status, DROPLESS_TIMEOUT);
    EXPECT_NE(after.message.find("must be opened anew"), std::string::npos);
    gathering->gather(r, "", all, 1);
  });
}

TEST(Failure, ARankThatClosedIsLost) {
  const Routing routing = random_routing(2, 4, 2, {20, 20}, 2);
  const auto gathering = make_gathering(2);
  run_threads(2, [&](int r) {
    Rank mine(routing.profile(), r, 2, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    ASSERT_EQ(mine.open().status, DROPLESS_OK);
    if (r == 1) return;  // closes
    const Outcome lost = mine.plan(routing.ids_of(r)).outcome;
    EXPECT_EQ(lost.status, DROPLESS_PEER_LOST);
    EXPECT_NE(lost.message.find("no routing from rank 1"), std::string::npos) << lost.message;
  });
}

// Handles come and go: a failed one is closed, a new one works.
TEST(Failure, TheGroupIsMadeAnew) {
  const Routing routing = random_routing(2, 4, 2, {20, 20}, 2);
  const auto gathering = make_gathering(2);
  std::vector<std::string> wrong(2);
  run_threads(2, [&](int r) {
    {
      Rank mine(routing.profile(), r, 2, *gathering);
      std::vector<Array> memory;
      routing.complete(mine.settings, memory);
      mine.settings.timeout_seconds = 0.1;
      ASSERT_EQ(mine.open().status, DROPLESS_OK);
      if (r == 0) {
        EXPECT_NE(mine.plan(routing.ids_of(r)).outcome.status, DROPLESS_OK);
      }
    }
    for (int i = 0; i < 10 && wrong[static_cast<std::size_t>(r)].empty(); ++i) {
      wrong[static_cast<std::size_t>(r)] = check_all(r, *gathering, routing, "threads");
    }
  });
  EXPECT_EQ(wrong, std::vector<std::string>(2));
}

// One rank is enough: refusals are the caller's own affair.
class Refusals : public ::testing::Test {
 protected:
  Refusals() : gathering_(make_gathering(1)), rank_(default_profile(), 0, 1, *gathering_) {
    rank_.settings.num_experts = 4, rank_.settings.top_k = 2, rank_.settings.max_tokens = 3;
    rank_.settings.row_bytes = 16, rank_.settings.scale_bytes = 2;
    EXPECT_EQ(rank_.open().status, DROPLESS_OK);
  }
  void expect_refused(const Outcome& outcome, const char* message) {
    EXPECT_EQ(outcome.status, DROPLESS_INVALID_ARGUMENT) << message;
    EXPECT_NE(outcome.message.find(message), std::string::npos) << outcome.message;
  }
  std::unique_ptr<Gathering> gathering_;
  Rank rank_;
  const Array x_ = Array(DROPLESS_FP32, {3, 4}).fill(1);
  const Array rows_ = Array(DROPLESS_FP32, {3, 4}).fill(-1);
};

TEST_F(Refusals, Ids) {
  const auto ids = [](Shape shape, const std::vector<double>& values) {
    return Array(DROPLESS_I64, shape).set(values);
  };
  const auto refused = [&](const Array& wrong, const char* message) {
    const PlanResult p = rank_.plan(wrong);
    expect_refused(p.outcome, message);
    EXPECT_EQ(p.demand, -77);
  };
  refused(ids({1, 2}, {0, 4}), "4 of token 0 is outside");
  refused(ids({1, 2}, {0, -2}), "-2 of token 0 is outside");
  refused(ids({2, 2}, {0, 1, 3, 3}), "3 twice in token 1");
  refused(ids({4, 2}, {0, 1, 0, 1, 0, 1, 0, 1}), "4 tokens, opened for at most 3");
  refused(ids({2, 1}, {0, 1}), "ids: shape");
  EXPECT_EQ(rank_.plan(ids({1, 2}, {-1, -1})).total, 0);
}

TEST_F(Refusals, DispatchWithoutAPlanOrWithWrongTensors) {
  expect_refused(rank_.dispatch(x_, rows_), "nothing is planned");
  const Array ids = Array(DROPLESS_I32, {3, 2}).set({0, 1, 2, 3, 0, 3});
  ASSERT_EQ(rank_.plan(ids).total, 3);
  expect_refused(rank_.dispatch(Array(DROPLESS_FP32, {2, 4}), rows_), "x: shape");
  expect_refused(rank_.dispatch(Array(DROPLESS_FP32, {3, 5}), Array(DROPLESS_FP32, {3, 5})),
                 "rows of more bytes");
  expect_refused(rank_.dispatch(x_, Array(DROPLESS_FP32, {2, 4})), "2 rows, but the plan has 3");
  expect_refused(rank_.dispatch(x_, Array(DROPLESS_BF16, {3, 4})), "rows: dtype");
  const Array weights = Array(DROPLESS_FP32, {3, 2}).fill(1);
  const Array wide = Array(DROPLESS_U8, {3, 3}).fill(1);
  expect_refused(rank_.dispatch(x_, rows_, &weights), "weights and row_weights");
  expect_refused(rank_.dispatch(x_, rows_, nullptr, nullptr, &wide, &wide), "scales: more bytes");
  expect_refused(rank_.combine(rows_, x_, &weights), "row_weights: only where");
  expect_refused(rank_.dispatch_backward(rows_, x_, nullptr, &weights), "without d_row_weights");
  EXPECT_EQ(rows_.values(), std::vector<double>(12, -1));
  EXPECT_EQ(rank_.dispatch(x_, rows_).status, DROPLESS_OK);
  EXPECT_EQ(rows_.values(), std::vector<double>(12, 1));
}

TEST_F(Refusals, AClosedHandleIsNotFollowed) {
  auto args = make_args<dropless_exchange_close_args>();
  args.exchange = reinterpret_cast<dropless_exchange*>(&args);
  auto call = make_args<dropless_call>();
  const dropless_implementation* table = exchange::implementation(default_profile());
  EXPECT_EQ(table->exchange_close(table->context, &call, &args), DROPLESS_INVALID_ARGUMENT);
}

// The sum of rank 0's only token, in bf16 rows of one column. `values`: of its rows on each rank.
double rounded_sum(int rounding, const std::vector<Index>& ids, const std::vector<int>& nodes,
                   const std::vector<std::vector<double>>& values) {
  Routing routing;
  routing.ranks = 3, routing.experts = 6, routing.top_k = 3;
  routing.ids = {ids, {}, {}};
  routing.node_of_rank = nodes;
  routing.expert_major = true;
  dropless_profile profile = routing.profile();
  profile.combine_rounding = rounding;
  const auto gathering = make_gathering(3);
  double result = -1;
  run_threads(3, [&](int r) {
    Rank mine(profile, r, 3, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    ASSERT_EQ(mine.open().status, DROPLESS_OK);
    const auto& own = values[static_cast<std::size_t>(r)];
    ASSERT_EQ(mine.plan(routing.ids_of(r)).total, static_cast<Index>(own.size()));
    const Array rows = Array(DROPLESS_BF16, {static_cast<Index>(own.size()), 1}).set(own);
    const Array y = Array(DROPLESS_FP32, {routing.tokens(r), 1}).fill(-1);
    ASSERT_EQ(mine.combine(rows, y).status, DROPLESS_OK);
    if (r == 0) result = y.at(0);
  });
  return result;
}

// In bf16 1 + 2^-8 rounds to 1 (a tie, to even).
TEST(Roundings, AsDeclared) {
  const std::vector<int> one_node = {0, 0, 0}, own_nodes = {0, 1, 2}, pair = {0, 1, 1};
  const auto sum = [](int rounding, const std::vector<int>& nodes) {  // two rows on rank 1
    return rounded_sum(rounding, {2, 3, 4}, nodes, {{}, {1, 0x1p-8}, {0x1p-8}});
  };
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_ONCE, one_node), 1 + 0x1p-7);
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_PER_RANK, one_node), 1 + 0x1p-8);
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_PER_NODE, own_nodes), 1 + 0x1p-8);
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_PER_NODE, pair), 1 + 0x1p-7);
}

// Ranks 0 and 2 share a node: their rows are added and rounded together.
TEST(Roundings, NodesThatAreNotContiguous) {
  const auto sum = [](int rounding) {
    return rounded_sum(rounding, {0, 2, 4}, {0, 1, 0}, {{1}, {4}, {0x1p-8}});
  };
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_ONCE), 5 + 0x1p-8);
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_PER_RANK), 5 + 0x1p-8);
  EXPECT_EQ(sum(DROPLESS_COMBINE_ROUNDS_PER_NODE), 5);
}

}  // namespace
}  // namespace dropless::cpu::testing
