// SPDX-License-Identifier: Apache-2.0
// Ranks, nodes and slots from the settings of an exchange: EXCHANGE-0, GENERAL-3.
#include "reference/exchange_topology.h"

#include <algorithm>
#include <cmath>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

std::string number(Index value) {
  return std::to_string(value);
}

void check_least(Index value, Index least, const char* name) {
  if (value < least) {
    throw Refused(std::string(name) + " = " + number(value) + " is below " + number(least));
  }
}

void check_sizes(const ExchangeSettings& s) {
  check_least(s.ranks, 1, "ranks");
  check_least(s.num_experts, 1, "num_experts");
  check_least(s.top_k, 1, "top_k");
  check_least(s.max_tokens, 0, "max_tokens");
  check_least(s.row_bytes, 0, "row_bytes");
  check_least(s.scale_bytes, 0, "scale_bytes");
  check_least(s.overflow_check_every, 0, "overflow_check_every");
  if (s.top_k > s.num_experts) {
    throw Refused("top_k = " + number(s.top_k) + " is above the " + number(s.num_experts) +
                  " experts");
  }
  const double factor = s.ragged_buffer_factor;
  if (factor != -1 && !(factor >= 1 && std::isfinite(factor))) {
    throw Refused("ragged_buffer_factor = " + std::to_string(factor) +
                  " is neither -1 nor a finite number >= 1");
  }
}

// One expert a slot. Every expert has a slot, and no rank holds one twice: its rows would be in two
// zones, or one of them would stay empty for a reason that no caller sees.
void check_placement(const ExchangeTopology& topology) {
  std::vector<Index> last_rank(at(topology.num_experts), -1);
  for (std::size_t slot = 0; slot < topology.expert_of_slot.size(); ++slot) {
    const Index expert = topology.expert_of_slot[slot];
    const Index rank = topology.rank_of(static_cast<Index>(slot));
    if (expert < 0 || expert >= topology.num_experts) {
      throw Refused("placement: expert " + number(expert) + " on rank " + number(rank) +
                    " is outside 0 .. " + number(topology.num_experts - 1));
    }
    if (last_rank[at(expert)] == rank) {
      throw Refused("placement: expert " + number(expert) + " is twice on rank " + number(rank));
    }
    last_rank[at(expert)] = rank;
  }
  for (Index expert = 0; expert < topology.num_experts; ++expert) {
    if (last_rank[at(expert)] < 0) {
      throw Refused("placement: expert " + number(expert) + " has no slot");
    }
  }
}

std::vector<Index> experts_of_slots(const ExchangeSettings& s) {
  if (!s.placement.empty()) {
    if (static_cast<Index>(s.placement.size()) % s.ranks != 0) {
      throw Refused("placement has " + std::to_string(s.placement.size()) + " slots, which " +
                    number(s.ranks) + " ranks cannot share equally");
    }
    return s.placement;
  }
  if (s.num_experts % s.ranks != 0) {
    throw Refused("num_experts = " + number(s.num_experts) +
                  " is not divisible by ranks = " + number(s.ranks) + " and there is no placement");
  }
  std::vector<Index> experts;
  for (Index expert = 0; expert < s.num_experts; ++expert) experts.push_back(expert);
  return experts;
}

std::vector<Index> nodes_of_ranks(const ExchangeSettings& s) {
  if (s.node_of_rank.empty()) return std::vector<Index>(at(s.ranks), 0);
  check_size(s.node_of_rank.size(), s.ranks, "node_of_rank");
  for (const Index node : s.node_of_rank) {
    if (node < 0 || node >= s.ranks) {
      throw Refused("node_of_rank: node " + number(node) + " is outside 0 .. " +
                    number(s.ranks - 1));
    }
  }
  return s.node_of_rank;
}

}  // namespace

ExchangeTopology exchange_topology(const ExchangeSettings& settings) {
  check_sizes(settings);
  ExchangeTopology topology;
  topology.ranks = settings.ranks;
  topology.num_experts = settings.num_experts;
  topology.expert_of_slot = experts_of_slots(settings);
  topology.slots = static_cast<Index>(topology.expert_of_slot.size()) / settings.ranks;
  topology.node_of_rank = nodes_of_ranks(settings);
  topology.nodes =
      1 + *std::max_element(topology.node_of_rank.begin(), topology.node_of_rank.end());
  check_placement(topology);

  topology.first_copy.assign(at(settings.num_experts + 1), 0);
  for (const Index expert : topology.expert_of_slot) ++topology.first_copy[at(expert + 1)];
  for (Index e = 0; e < settings.num_experts; ++e) {
    topology.first_copy[at(e + 1)] += topology.first_copy[at(e)];
  }
  topology.copies.resize(topology.expert_of_slot.size());
  std::vector<Index> next(topology.first_copy.begin(), topology.first_copy.end() - 1);
  for (std::size_t slot = 0; slot < topology.expert_of_slot.size(); ++slot) {
    const Index place = next[at(topology.expert_of_slot[slot])]++;
    topology.copies[at(place)] = static_cast<Index>(slot);
  }
  return topology;
}

std::vector<Index> contiguous_nodes(Index ranks, Index nodes) {
  if (ranks < 1 || nodes < 1 || ranks % nodes != 0) {
    throw Refused(number(ranks) + " ranks do not form " + number(nodes) + " equal nodes");
  }
  std::vector<Index> node_of_rank;
  for (Index rank = 0; rank < ranks; ++rank) node_of_rank.push_back(rank / (ranks / nodes));
  return node_of_rank;
}

Index serving_slot(const dropless_profile& profile, const ExchangeTopology& topology,
                   Index source_rank, Index token, Index position, Index expert) {
  const Index first = topology.first_copy[at(expert)];
  const Index copies = topology.first_copy[at(expert + 1)] - first;
  if (copies == 1) return topology.copies[at(first)];
  Index copy = token % copies;
  if (profile.replica_map == DROPLESS_REPLICA_DECLARED) {
    if (profile.replica_copy == nullptr) throw Refused("replica_map is declared without a map");
    copy = profile.replica_copy(source_rank, token, position, expert, copies);
    if (copy < 0 || copy >= copies) {
      throw Refused("replica_copy names copy " + number(copy) + " of " + number(copies) +
                    " of expert " + number(expert));
    }
  }
  return topology.copies[at(first + copy)];
}

}  // namespace dropless::reference
