// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, in every layout and for every number of ranks.
#include <gtest/gtest.h>

#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

void expect_right(const Routing& routing, const char* transport) {
  const auto gathering = make_gathering(routing.ranks);
  std::vector<std::string> wrong(static_cast<std::size_t>(routing.ranks));
  run_threads(routing.ranks, [&](int r) {
    wrong[static_cast<std::size_t>(r)] = check_all(r, *gathering, routing, transport);
  });
  for (const std::string& each : wrong) EXPECT_EQ(each, "");
}

class Layouts : public ::testing::TestWithParam<int> {};

std::vector<Index> uneven_tokens(int ranks) {
  std::vector<Index> tokens;
  for (int r = 0; r < ranks; ++r) tokens.push_back(5 + 7 * (r % 3));
  return tokens;
}

TEST_P(Layouts, EveryLayoutOverThreads) {
  const int ranks = GetParam();
  const char* transport = ranks == 1 ? "self" : "threads";
  for (const bool expert_major : {false, true}) {
    for (const bool second : {false, true}) {
      Routing routing = random_routing(ranks, 24, 4, uneven_tokens(ranks), 3);
      routing.expert_major = expert_major;
      routing.in_place = second;
      routing.weighted = second && expert_major;
      routing.alignment = expert_major && second ? 16 : 1;
      SCOPED_TRACE(expert_major ? "expert-major" : "flat");
      SCOPED_TRACE(second ? "second" : "first");
      expect_right(routing, transport);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Layouts, ::testing::Values(1, 2, 3, 4, 8));

// Expert 0 has three copies, the placement is not in blocks, and two nodes are not contiguous.
TEST(Placement, ReplicasAndNodes) {
  for (const bool expert_major : {false, true}) {
    Routing routing = random_routing(4, 6, 3, {9, 4, 0, 11}, 8);
    routing.placement = {{0, 5}, {1, 0}, {3, 2}, {0, 4}};
    routing.node_of_rank = {1, 0, 1, 0};
    routing.expert_major = expert_major;
    expect_right(routing, "threads");
  }
}

// Nothing to send, nothing to receive, both, all.
TEST(ZeroLattice, EveryCorner) {
  const Index tokens = 6;
  for (const int idle : {0, 1, 2}) {
    for (const bool expert_major : {false, true}) {
      Routing routing = random_routing(3, 6, 2, {tokens, tokens, tokens}, 4);
      routing.expert_major = expert_major;
      routing.ids[static_cast<std::size_t>(idle)].clear();  // sends nothing
      const int deaf = (idle + (expert_major ? 0 : 1)) % 3;
      for (auto& ids : routing.ids) {
        for (Index& id : ids) {
          if (id / 2 == deaf) id = -1;  // receives nothing
        }
      }
      expect_right(routing, "threads");
    }
  }
  Routing nothing = random_routing(3, 6, 2, {0, 0, 0}, 4);
  expect_right(nothing, "threads");
  Routing unrouted = random_routing(2, 6, 2, {3, 4}, 4);
  for (auto& ids : unrouted.ids) std::fill(ids.begin(), ids.end(), -1);
  expect_right(unrouted, "threads");
}

TEST(Everybody, ToOneRank) {
  Routing routing = random_routing(4, 8, 2, {5, 6, 7, 8}, 4);
  for (auto& ids : routing.ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = 4 + static_cast<Index>(i % 2);
  }
  expect_right(routing, "threads");
  routing.expert_major = true;
  routing.alignment = 32;
  expect_right(routing, "threads");
}

// Random floats, where every other order of the sums would show.
std::vector<std::byte> combined(const char* transport, int rounding, bool expert_major) {
  Routing routing = random_routing(4, 12, 6, {40, 41, 0, 42}, 21);
  routing.expert_major = routing.weighted = expert_major;
  routing.node_of_rank = {0, 1, 0, 1};
  dropless_profile profile = routing.profile();
  profile.combine_rounding = rounding;
  setenv("DROPLESS_TRANSPORT", transport, 1);
  const auto gathering = make_gathering(4);
  std::vector<std::byte> bytes[4];
  run_threads(4, [&](int r) {
    Rank mine(profile, r, 4, *gathering);
    std::vector<Array> memory;
    routing.complete(mine.settings, memory);
    ASSERT_EQ(mine.open().status, DROPLESS_OK);
    const Index total = mine.plan(routing.ids_of(r)).total;
    const unsigned seed = static_cast<unsigned>(r) + 1;
    const Array rows = Array(DROPLESS_BF16, {total, 600}).random(seed);
    const Array weights = Array(DROPLESS_FP32, {total}).random(seed + 10);
    const Array y(DROPLESS_FP32, {routing.tokens(r), 600});
    ASSERT_EQ(mine.combine(rows, y, expert_major ? &weights : nullptr).status, DROPLESS_OK);
    bytes[r] = y.bytes();
  });
  unsetenv("DROPLESS_TRANSPORT");
  std::vector<std::byte> all;
  for (const auto& each : bytes) all.insert(all.end(), each.begin(), each.end());
  return all;
}

TEST(Transports, GiveTheSameBits) {
  std::vector<std::vector<std::byte>> results;
  for (const bool expert_major : {false, true}) {
    for (const int rounding : {DROPLESS_COMBINE_ROUNDS_ONCE, DROPLESS_COMBINE_ROUNDS_PER_RANK,
                               DROPLESS_COMBINE_ROUNDS_PER_NODE}) {
      results.push_back(combined("threads", rounding, expert_major));
      EXPECT_EQ(results.back(), combined("sockets", rounding, expert_major)) << rounding;
    }
  }
  // And the roundings of the expert-major layout are not one and the same.
  EXPECT_NE(results[3], results[4]);
  EXPECT_NE(results[3], results[5]);
  EXPECT_NE(results[4], results[5]);
}

// <D x, r> = <x, D* r> and <C r, x> = <r, C* x>, exactly, on integers.
TEST(Adjoint, OfDispatchAndOfCombine) {
  for (const bool expert_major : {false, true}) {
    Routing routing = random_routing(3, 9, 4, {20, 0, 33}, 13);
    routing.expert_major = routing.weighted = expert_major;
    const auto gathering = make_gathering(3);
    double products[3][4] = {};
    run_threads(3, [&](int r) {
      Rank mine(routing.profile(), r, 3, *gathering);
      std::vector<Array> memory;
      routing.complete(mine.settings, memory);
      ASSERT_EQ(mine.open().status, DROPLESS_OK);
      const Index total = mine.plan(routing.ids_of(r)).total, tokens = routing.tokens(r);
      std::mt19937 engine(static_cast<unsigned>(r));
      const auto integers = [&](const Shape& shape) {
        Array array(DROPLESS_FP32, shape);
        std::vector<double> values(static_cast<std::size_t>(array.size()));
        for (double& v : values) v = static_cast<double>(engine() % 9) - 4;
        return array.set(values);
      };
      const auto dot = [](const Array& a, const Array& b) {
        double sum = 0;
        for (Index i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
        return sum;
      };
      const Array x = integers({tokens, 7}), rows = integers({total, 7});
      const Array weights = integers({total});
      const Array d_x(DROPLESS_FP32, {tokens, 7}), moved(DROPLESS_FP32, {total, 7});
      const Array y(DROPLESS_FP32, {tokens, 7}), d_rows(DROPLESS_FP32, {total, 7});
      const Array* w = expert_major ? &weights : nullptr;
      ASSERT_EQ(mine.dispatch(x, moved).status, DROPLESS_OK);
      ASSERT_EQ(mine.dispatch_backward(rows, d_x).status, DROPLESS_OK);
      ASSERT_EQ(mine.combine(rows, y, w).status, DROPLESS_OK);
      ASSERT_EQ(mine.combine_backward(x, d_rows, w != nullptr ? &rows : nullptr, w).status,
                DROPLESS_OK);
      const double all[4] = {dot(moved, rows), dot(x, d_x), dot(y, x), dot(rows, d_rows)};
      std::copy(all, all + 4, products[r]);
    });
    double sums[4] = {};
    for (int i = 0; i < 4; ++i) {
      for (const auto& of_rank : products) sums[i] += of_rank[i];
    }
    EXPECT_NE(sums[0], 0);
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_NE(sums[2], 0);
    EXPECT_EQ(sums[2], sums[3]);
  }
}

}  // namespace
}  // namespace dropless::cpu::testing
