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

}  // namespace
}  // namespace dropless::cpu::testing
