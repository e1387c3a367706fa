// SPDX-License-Identifier: Apache-2.0
// Slots, copies, nodes and what cannot be opened: EXCHANGE-0, GENERAL-3.
#include "reference/exchange_topology.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/exchange_setup.h"
#include "tests/reference/refusal.h"

namespace dropless::reference {
namespace {

using testing::exchange_profile;
using testing::exchange_settings;
using testing::expect_refused;
using testing::List;

const dropless_profile kFlat = exchange_profile(DROPLESS_DISPATCH_FLAT);

TEST(ExchangeTopology, BlocksOfExperts) {
  const ExchangeTopology topology = exchange_topology(exchange_settings(2, 6, 2, 1));
  EXPECT_EQ(topology.slots, 3);
  EXPECT_EQ(topology.nodes, 1);
  EXPECT_EQ(topology.node_of_rank, (List{0, 0}));
  for (Index expert = 0; expert < 6; ++expert) {
    const Index slot = serving_slot(kFlat, topology, 0, 5, 1, expert);
    EXPECT_EQ(topology.rank_of(slot), expert < 3 ? 0 : 1);
    EXPECT_EQ(topology.local_id(slot), expert % 3);
  }
}

// Slots 0 to 5 hold experts 1 0 | 2 1 | 0 1: expert 0 in slots 1 and 4, expert 1 in 0, 3 and 5.
ExchangeSettings replicated() {
  ExchangeSettings settings = exchange_settings(3, 3, 2, 9);
  settings.placement = {1, 0, 2, 1, 0, 1};
  return settings;
}

TEST(ExchangeTopology, CopiesTakeTurnsByToken) {
  const ExchangeTopology topology = exchange_topology(replicated());
  EXPECT_EQ(topology.slots, 2);
  EXPECT_EQ(topology.first_copy, (List{0, 2, 5, 6}));
  EXPECT_EQ(topology.copies, (List{1, 4, 0, 3, 5, 2}));
  const auto served = [&](Index expert) {
    List slots;
    // Neither the source rank nor the position has a say.
    for (Index t = 0; t < 4; ++t) slots.push_back(serving_slot(kFlat, topology, t, t, 1, expert));
    return slots;
  };
  EXPECT_EQ(served(0), (List{1, 4, 1, 4}));
  EXPECT_EQ(served(1), (List{0, 3, 5, 0}));
  EXPECT_EQ(served(2), (List{2, 2, 2, 2}));
}

TEST(ExchangeTopology, DeclaredCopies) {
  const ExchangeTopology topology = exchange_topology(replicated());
  dropless_profile profile = kFlat;
  profile.replica_map = DROPLESS_REPLICA_DECLARED;
  expect_refused([&] { serving_slot(profile, topology, 0, 0, 0, 1); }, "without a map");
  profile.replica_copy = [](int64_t rank, int64_t token, int64_t position, int64_t expert,
                            int64_t copies) -> int64_t {
    return (rank + 2 * token + position + expert) % copies;
  };
  EXPECT_EQ(serving_slot(profile, topology, 1, 2, 1, 1), 3);  // (1 + 4 + 1 + 1) % 3 = 1
  EXPECT_EQ(serving_slot(profile, topology, 0, 0, 1, 0), 4);  // 1 % 2 = 1
  profile.replica_copy = [](int64_t, int64_t, int64_t, int64_t, int64_t copies) -> int64_t {
    return copies;
  };
  expect_refused([&] { serving_slot(profile, topology, 0, 0, 0, 1); }, "copy 3 of 3 of expert 1");
  EXPECT_EQ(serving_slot(profile, topology, 0, 0, 0, 2), 2);  // one copy leaves no choice
}

TEST(ExchangeTopology, Nodes) {
  EXPECT_EQ(contiguous_nodes(6, 3), (List{0, 0, 1, 1, 2, 2}));
  expect_refused([] { contiguous_nodes(6, 4); }, "6 ranks do not form 4");
  ExchangeSettings settings = exchange_settings(4, 4, 1, 1);
  settings.node_of_rank = {1, 0, 1, 0};
  EXPECT_EQ(exchange_topology(settings).nodes, 2);
  settings.node_of_rank = {0, 0, 0};
  expect_refused([&] { exchange_topology(settings); }, "node_of_rank has 3 elements");
  settings.node_of_rank = {0, 0, 0, 4};
  expect_refused([&] { exchange_topology(settings); }, "node 4 is outside 0 .. 3");
  settings.node_of_rank = {0, -1, 0, 0};
  expect_refused([&] { exchange_topology(settings); }, "node -1");
}

TEST(ExchangeTopology, RefusedPlacements) {
  const auto refused = [](List placement, const std::string& culprit) {
    ExchangeSettings settings = exchange_settings(2, 3, 2, 1);
    settings.placement = std::move(placement);
    expect_refused([&] { exchange_topology(settings); }, culprit);
  };
  refused({}, "num_experts = 3 is not divisible by ranks = 2");
  refused({0, 1, 2}, "3 slots, which 2 ranks cannot share");
  refused({0, 0, 1, 2}, "expert 0 is twice on rank 0");
  refused({0, 1, 1, 0}, "expert 2 has no slot");
  refused({0, 1, 2, 3}, "expert 3 on rank 1 is outside 0 .. 2");
  refused({0, -1, 2, 1}, "expert -1 on rank 0");
  ExchangeSettings legal = exchange_settings(2, 3, 2, 1);
  legal.placement = {0, 1, 2, 0};
  EXPECT_EQ(exchange_topology(legal).slots, 2);
}

TEST(ExchangeTopology, RefusedSettings) {
  const auto refused = [](const std::string& culprit, const auto& change) {
    ExchangeSettings settings = exchange_settings(2, 4, 2, 1);
    exchange_topology(settings);  // legal before the change
    change(settings);
    expect_refused([&] { exchange_topology(settings); }, culprit);
  };
  using S = ExchangeSettings;
  refused("ranks = 0", [](S& s) { s.ranks = 0; });
  refused("num_experts = 0", [](S& s) { s.num_experts = 0; });
  refused("top_k = 0", [](S& s) { s.top_k = 0; });
  refused("top_k = 5 is above the 4", [](S& s) { s.top_k = 5; });
  refused("max_tokens = -1", [](S& s) { s.max_tokens = -1; });
  refused("row_bytes = -1", [](S& s) { s.row_bytes = -1; });
  refused("scale_bytes = -1", [](S& s) { s.scale_bytes = -1; });
  refused("overflow_check_every = -1", [](S& s) { s.overflow_check_every = -1; });
  for (const double factor : {0.0, 0.999, -1.5, -2.0, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
    refused("ragged_buffer_factor", [&](S& s) { s.ragged_buffer_factor = factor; });
  }
}

}  // namespace
}  // namespace dropless::reference
