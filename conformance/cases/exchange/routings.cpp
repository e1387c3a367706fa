// SPDX-License-Identifier: Apache-2.0
// What the ranks route: loads over experts and patterns over pairs of ranks, numbers of tokens and
// placements of experts.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "conformance/cases/exchange/setup.h"

namespace dropless::conformance {
namespace {

const std::vector<std::string>& pair_patterns() {
  static const std::vector<std::string> names = {"to_self",  "to_next", "to_first",  "not_to_self",
                                                 "one_rank", "spread",  "some_pairs"};
  return names;
}

// Experts by the rank that holds their first slot.
std::vector<std::vector<Index>> experts_of_ranks(const reference::ExchangeSettings& settings) {
  const auto topology = reference::exchange_topology(settings);
  std::vector<std::vector<Index>> experts(at(settings.ranks));
  for (Index e = 0; e < settings.num_experts; ++e) {
    const Index slot = topology.copies[at(topology.first_copy[at(e)])];
    experts[at(topology.rank_of(slot))].push_back(e);
  }
  return experts;
}

void shuffle(std::vector<Index>& values, Random& random) {
  std::vector<Index> mixed;
  for (const Index i : random.permutation(static_cast<Index>(values.size()))) {
    mixed.push_back(values[at(i)]);
  }
  values = std::move(mixed);
}

// Candidates of one token, the preferred ones first.
std::vector<Index> candidates(const std::string& pattern,
                              const std::vector<std::vector<Index>>& by_rank, Index rank,
                              Random& random) {
  const auto ranks = static_cast<Index>(by_rank.size());
  std::vector<Index> chosen;
  const auto take = [&](Index from) {
    const std::vector<Index>& all = by_rank[at(from)];
    chosen.insert(chosen.end(), all.begin(), all.end());
  };
  if (pattern == "to_self") take(rank);
  if (pattern == "to_next") take((rank + 1) % ranks);
  if (pattern == "to_first") take(0);
  if (pattern == "one_rank") take(random.below(ranks));
  for (Index other = 0; other < ranks; ++other) {
    if (pattern == "not_to_self" && other != rank) take(other);
    if (pattern == "some_pairs" && (other - rank + ranks) % ranks % 2 == 0) take(other);
  }
  if (chosen.empty() && ranks > 1 && pattern != "spread") {  // ranks without experts
    for (Index other = 0; other < ranks; ++other) take(other);
  }
  shuffle(chosen, random);
  if (pattern == "spread") {
    const std::vector<Index> order = random.permutation(ranks);
    for (std::size_t round = 0; round < 2; ++round) {
      for (const Index other : order) {
        const std::vector<Index>& all = by_rank[at(other)];
        if (all.size() > round) chosen.push_back(all[round]);
      }
    }
  }
  return chosen;
}

}  // namespace

const std::vector<std::string>& exchange_load_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = load_names();
    all.insert(all.end(), pair_patterns().begin(), pair_patterns().end());
    return all;
  }();
  return names;
}

std::vector<Index> exchange_ids(const std::string& load,
                                const reference::ExchangeSettings& settings, Index rank,
                                Index tokens, Random& random, double missing) {
  const std::vector<std::string>& patterns = pair_patterns();
  if (std::find(patterns.begin(), patterns.end(), load) == patterns.end()) {
    return ids_for_load(load, tokens, settings.num_experts, settings.top_k, random, missing);
  }
  const auto by_rank = experts_of_ranks(settings);
  std::vector<Index> ids(at(tokens * settings.top_k), -1);
  for (Index t = 0; t < tokens; ++t) {
    const std::vector<Index> experts = candidates(load, by_rank, rank, random);
    const std::vector<Index> positions = random.permutation(settings.top_k);
    for (std::size_t i = 0; i < std::min(experts.size(), positions.size()); ++i) {
      if (missing > 0 && random.chance(missing)) continue;
      ids[at(t * settings.top_k + positions[i])] = experts[i];
    }
  }
  return ids;
}

const std::vector<std::string>& share_names() {
  static const std::vector<std::string> names = {"even", "uneven", "none_on_first", "only_on_last",
                                                 "none"};
  return names;
}

std::vector<Index> tokens_of_ranks(const std::string& share, Index tokens, Index ranks) {
  std::vector<Index> out(at(ranks), tokens);
  for (Index rank = 0; rank < ranks; ++rank) {
    Index& mine = out[at(rank)];
    if (share == "uneven")
      mine = rank % 2 == 0 ? std::max<Index>(tokens - 3 * rank, 0) : tokens / (rank + 1);
    if (share == "none_on_first" && rank == 0) mine = 0;
    if (share == "only_on_last" && rank + 1 < ranks) mine = 0;
    if (share == "none") mine = 0;
  }
  return out;
}

std::vector<Index> placement_of(const std::string& placement, Index ranks, Index experts,
                                Random& random) {
  std::vector<Index> slots;
  if (placement == "shuffled") slots = random.permutation(experts);
  if (placement == "cyclic") {
    const bool divides = experts % ranks == 0;
    const Index own = (experts + ranks - 1) / ranks;
    const Index local = divides && ranks > 1 && own < experts ? own + 1 : own;
    for (Index slot = 0; slot < ranks * local; ++slot) slots.push_back(slot % experts);
  }
  if (placement == "hot") {
    const Index local = experts / ranks;
    for (Index rank = 0; rank < ranks; ++rank) {
      // Expert 0 everywhere; where it is already, the last one.
      if (ranks > 1) slots.push_back(rank == 0 ? experts - 1 : 0);
      for (Index i = 0; i < local; ++i) slots.push_back(rank * local + i);
    }
  }
  return slots;
}

void wait_for(Index milliseconds) {
  if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace dropless::conformance
