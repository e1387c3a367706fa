// SPDX-License-Identifier: Apache-2.0
// Profiles, settings and views for the tests of the reference exchange, and an example small enough
// to be worked out on paper.
#pragma once

#include <span>
#include <vector>

#include "reference/exchange.h"
#include "tests/reference/random_data.h"

namespace dropless::reference::testing {

using List = std::vector<Index>;

inline dropless_profile exchange_profile(int layout, int alignment = 1,
                                         int overflow_policy = DROPLESS_OVERFLOW_ERROR) {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  profile.dispatch_layout = layout;
  profile.alignment = alignment;
  profile.overflow_policy = overflow_policy;
  return profile;
}

inline ExchangeSettings exchange_settings(Index ranks, Index experts, Index top_k, Index tokens) {
  ExchangeSettings settings;
  settings.ranks = ranks;
  settings.num_experts = experts;
  settings.top_k = top_k;
  settings.max_tokens = tokens;
  return settings;
}

// One view per rank.
template <typename T>
std::vector<std::span<const T>> views(const std::vector<std::vector<T>>& arrays) {
  return {arrays.begin(), arrays.end()};
}

// Two ranks with two experts each (0, 1 and 2, 3), top-2. Rank 0 has three tokens, rank 1 has two,
// of which the first is routed nowhere. Over both ranks they are the tokens 0 to 4, pairs 0 to 9:
//   rank 0, token 0 (pairs 0, 1): experts 2, 0      rank 1, token 0 (pairs 6, 7): none
//           token 1 (pairs 2, 3): experts 1, 0              token 1 (pairs 8, 9): experts 0, 3
//           token 2 (pairs 4, 5): experts 3, 2
struct PaperExample {
  ExchangeSettings settings = exchange_settings(2, 4, 2, 3);
  std::vector<List> ids = {{2, 0, 1, 0, 3, 2}, {-1, -1, 0, 3}};

  [[nodiscard]] ExchangePlan plan(const dropless_profile& profile, Index capacity = -1) const {
    return exchange_plan(profile, settings, views(ids), capacity);
  }
};

// Ranks with different token counts (also none), pairs that are missing, and on request experts
// with copies on several ranks, in a shuffled placement.
struct RandomExchange {
  ExchangeSettings settings;
  std::vector<List> ids;

  RandomExchange(test::RandomData& random, Index ranks, Index slots, Index top_k, Index most_tokens,
                 bool replicated) {
    const Index experts = replicated ? ranks * slots / 2 : ranks * slots;
    settings = exchange_settings(ranks, experts, top_k, most_tokens);
    settings.node_of_rank = contiguous_nodes(ranks, ranks % 2 == 0 ? 2 : 1);
    if (replicated) {
      // Every expert twice, half of the ranks apart; inside a rank in descending order.
      for (Index rank = 0; rank < ranks; ++rank) {
        for (Index local = slots - 1; local >= 0; --local) {
          settings.placement.push_back((rank * slots + local) % experts);
        }
      }
    }
    for (Index rank = 0; rank < ranks; ++rank) {
      const Index tokens = random.integer(0, 3) == 0 ? 0 : random.integer(1, most_tokens);
      ids.push_back(random.ids(tokens, top_k, experts, 0.2));
    }
  }

  [[nodiscard]] ExchangePlan plan(const dropless_profile& profile, Index capacity = -1) const {
    return exchange_plan(profile, settings, views(ids), capacity);
  }
};

}  // namespace dropless::reference::testing
