// SPDX-License-Identifier: Apache-2.0
// Every selected pair gets its row: EXCHANGE-1, 3, 4, 10.
//
// Source ranks, tokens and positions are always walked in ascending order, so rows and zones fill
// in ascending (source rank, token), and what lies below the capacity is a prefix of each of them.
#include "reference/exchange_plan.h"

#include <algorithm>
#include <limits>

#include "reference/checks.h"
#include "reference/exchange_capacity.h"

namespace dropless::reference {
namespace {

constexpr Index no_limit = std::numeric_limits<Compact>::max();

std::string number(Index value) {
  return std::to_string(value);
}

void check_capacity(Index capacity, Index alignment) {
  if (capacity < -1 || (capacity >= 0 && capacity % alignment != 0)) {
    throw Refused("capacity " + number(capacity) + " is not a multiple of the alignment " +
                  number(alignment));
  }
}

// The tokens of all ranks in one row.
std::vector<Index> number_tokens(const ExchangeSettings& settings, RankIds ids) {
  check_size(ids.size(), settings.ranks, "ids of all ranks");
  std::vector<Index> first_token{0};
  for (const Indices rank_ids : ids) {
    const Index size = static_cast<Index>(rank_ids.size());
    const std::string of_rank = " on rank " + number(static_cast<Index>(first_token.size()) - 1);
    if (size % settings.top_k != 0) {
      throw Refused(number(size) + " ids" + of_rank +
                    " are not a multiple of top_k = " + number(settings.top_k));
    }
    if (size / settings.top_k > settings.max_tokens) {
      throw Refused(number(size / settings.top_k) + " tokens" + of_rank +
                    " are more than max_tokens = " + number(settings.max_tokens));
    }
    first_token.push_back(first_token.back() + size / settings.top_k);
  }
  if (first_token.back() >= no_limit / settings.top_k) throw Refused("2^31 pairs and more");
  return first_token;
}

// slot_of_pair and global_counts. GENERAL-3: ids outside -1 .. E-1 and duplicates in a token.
void choose_slots(ExchangePlan& plan, RankIds ids) {
  const Index experts = plan.topology.num_experts;
  plan.global_counts.assign(at(experts), 0);
  plan.slot_of_pair.assign(at(plan.first_token.back() * plan.top_k), -1);
  std::vector<Index> last_token(at(experts), -1);
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    for (Index t = 0; t < plan.tokens(rank); ++t) {
      const Index token = plan.first_token[at(rank)] + t;
      for (Index j = 0; j < plan.top_k; ++j) {
        const Index id = ids[at(rank)][at(t * plan.top_k + j)];
        if (id == -1) continue;
        const bool outside = id < 0 || id >= experts;
        if (outside || last_token[at(id)] == token) {
          throw Refused(
              "id " + number(id) + " at rank " + number(rank) + ", token " + number(t) +
              ", position " + number(j) +
              (outside ? " is outside -1 .. " + number(experts - 1) : " repeats in its token"));
        }
        last_token[at(id)] = token;
        ++plan.global_counts[at(id)];
        plan.slot_of_pair[at(token * plan.top_k + j)] =
            static_cast<Compact>(serving_slot(plan.profile, plan.topology, rank, t, j, id));
      }
    }
  }
}

// The pair gets `row` on the rank of its slot, or is dropped when that lies beyond the limit.
// new_row: it is the first pair there (in flat layouts the token's others share the row).
void place_pair(ExchangePlan& plan, Index source_rank, Index pair, Index row, Index limit,
                bool new_row) {
  const Index slot = plan.slot_of_pair[at(pair)];
  ReceivedRows& received = plan.received[at(plan.topology.rank_of(slot))];
  if (row >= limit) {
    ++received.dropped_pairs;
    return;
  }
  plan.row_of_pair[at(pair)] = static_cast<Compact>(row);
  ++received.tokens_per_local_expert[at(plan.topology.local_id(slot))];
  if (!new_row) return;
  ++received.rows_per_source[at(source_rank)];
  received.source[at(row)] = static_cast<Compact>(plan.flat ? pair / plan.top_k : pair);
}

void check_rows(Index rank, Index rows) {
  if (rows > no_limit) {
    throw Refused("rank " + number(rank) + " would receive " + number(rows) +
                  " rows, 2^31 and more");
  }
}

std::vector<Index> prefix_sums(const std::vector<Index>& sizes) {
  std::vector<Index> sums{0};
  for (const Index size : sizes) sums.push_back(sums.back() + size);
  return sums;
}

// Calls visit(source rank, pair) for every pair that has a slot, in ascending order.
template <typename Visit>
void for_each_pair(const ExchangePlan& plan, const Visit& visit) {
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    const Index end = plan.first_token[at(rank + 1)] * plan.top_k;
    for (Index pair = plan.first_token[at(rank)] * plan.top_k; pair < end; ++pair) {
      if (plan.slot_of_pair[at(pair)] >= 0) visit(rank, pair);
    }
  }
}

// One row per (token, rank), in ascending order of tokens.
void place_flat(ExchangePlan& plan, Index limit) {
  std::vector<Index> last_token(at(plan.topology.ranks), -1);
  const auto is_first_on_rank = [&](Index pair) {
    const Index token = pair / plan.top_k;
    Index& last = last_token[at(plan.rank_of_pair(pair))];
    return last == token ? false : (last = token, true);
  };
  for_each_pair(plan, [&](Index, Index pair) {
    plan.received[at(plan.rank_of_pair(pair))].demand += is_first_on_rank(pair);
  });
  for (ReceivedRows& received : plan.received) {  // at most one row a token: fewer than 2^31
    received.source.assign(at(std::min(received.demand, limit)), -1);
  }
  last_token.assign(last_token.size(), -1);
  std::vector<Index> rows(at(plan.topology.ranks), 0);
  for_each_pair(plan, [&](Index source_rank, Index pair) {
    const Index rank = plan.rank_of_pair(pair);
    const bool new_row = is_first_on_rank(pair);
    rows[at(rank)] += new_row;
    place_pair(plan, source_rank, pair, rows[at(rank)] - 1, limit, new_row);
  });
  for (ReceivedRows& received : plan.received) {
    received.offsets = prefix_sums(received.tokens_per_local_expert);
  }
}

// One row per (token, expert): a zone per slot, rounded up to the alignment. As the limit is a
// multiple of it, cutting the offsets keeps whole zones and the prefix of one (PERMUTATION-5).
void place_expert_major(ExchangePlan& plan, Index limit, Index alignment) {
  std::vector<Index> next(plan.topology.expert_of_slot.size(), 0);
  for_each_pair(plan, [&](Index, Index pair) { ++next[at(plan.slot_of_pair[at(pair)])]; });
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    ReceivedRows& received = plan.received[at(rank)];
    std::vector<Index> offsets{0};
    for (Index local = 0; local < plan.topology.slots; ++local) {
      Index& count = next[at(rank * plan.topology.slots + local)];
      const Index zone = ceil_div(count, alignment) * alignment;  // an empty expert takes nothing
      count = offsets.back();                                     // from here on: the next row
      offsets.push_back(offsets.back() + zone);
    }
    received.demand = offsets.back();
    check_rows(rank, received.demand);
    for (Index& offset : offsets) offset = std::min(offset, limit);
    received.source.assign(at(offsets.back()), -1);
    received.offsets = std::move(offsets);
  }
  for_each_pair(plan, [&](Index source_rank, Index pair) {
    const Index row = next[at(plan.slot_of_pair[at(pair)])]++;
    place_pair(plan, source_rank, pair, row, limit, true);
  });
}

}  // namespace

Index ExchangePlan::tokens(Index rank) const {
  return first_token[at(rank + 1)] - first_token[at(rank)];
}

Index ExchangePlan::source_rank(Index token) const {
  const auto after = std::upper_bound(first_token.begin(), first_token.end(), token);
  return static_cast<Index>(after - first_token.begin()) - 1;
}

Index ExchangePlan::rank_of_pair(Index pair) const {
  return topology.rank_of(slot_of_pair[at(pair)]);
}

bool ExchangePlan::delivers() const {
  return !overflow || profile.overflow_policy == DROPLESS_OVERFLOW_DROP;
}

ExchangePlan exchange_plan(const dropless_profile& profile, const ExchangeSettings& settings,
                           RankIds ids, Index capacity) {
  const Index alignment = exchange_alignment(profile);
  ExchangePlan plan;
  plan.profile = profile;
  plan.topology = exchange_topology(settings);
  plan.top_k = settings.top_k;
  plan.flat = is_flat_layout(profile);
  check_capacity(capacity, alignment);
  plan.capacity = profile.overflow_policy == DROPLESS_OVERFLOW_RETRY ? -1 : capacity;
  plan.first_token = number_tokens(settings, ids);
  choose_slots(plan, ids);

  const bool cut = profile.overflow_policy == DROPLESS_OVERFLOW_DROP && plan.capacity >= 0;
  const Index limit = cut ? plan.capacity : no_limit;
  plan.row_of_pair.assign(plan.slot_of_pair.size(), -1);
  ReceivedRows nothing;
  nothing.tokens_per_local_expert.assign(at(plan.topology.slots), 0);
  nothing.rows_per_source.assign(at(plan.topology.ranks), 0);
  plan.received.assign(at(plan.topology.ranks), nothing);
  if (plan.flat) {
    place_flat(plan, limit);
  } else {
    place_expert_major(plan, limit, alignment);
  }
  for (const ReceivedRows& received : plan.received) {
    plan.demand = std::max(plan.demand, received.demand);
  }
  plan.overflow = plan.capacity >= 0 && plan.demand > plan.capacity;
  return plan;
}

void check_delivers(const ExchangePlan& plan, Index rank) {
  if (rank < 0 || rank >= plan.topology.ranks) {
    throw Refused("rank " + number(rank) + " is outside 0 .. " + number(plan.topology.ranks - 1));
  }
  if (!plan.delivers()) {
    throw ExchangeOverflow("the plan overflowed: " + number(plan.demand) + " rows for " +
                           number(plan.capacity));
  }
}

}  // namespace dropless::reference
