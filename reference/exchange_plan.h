// SPDX-License-Identifier: Apache-2.0
// The plan of one exchange between R virtual ranks: which row of which rank every selected pair
// becomes (EXCHANGE-1, 3, 4, 10).
//
//     const ExchangePlan plan = exchange_plan(profile, settings, ids_of_ranks);
//     plan.received[rank].tokens_per_local_expert;      // what this rank is told
//     dispatch_rows(plan, rank, x_of_ranks, row_bytes); // exchange_dispatch.h
//
// A token is numbered over all ranks (first_token[rank] + index on its rank), and a pair over all
// ranks as token * K + position; all arrays are O(pairs + rows + R * R).
#pragma once

#include "reference/exchange_topology.h"

namespace dropless::reference {

using RankIds = std::span<const Indices>;  // [R] of [T_r,K]
using Compact = std::int32_t;              // rows, tokens and pairs of a plan

// What one rank receives. Under the policy drop, after the drop, except for demand.
struct ReceivedRows {
  std::vector<Index> tokens_per_local_expert;  // [L] real pairs
  std::vector<Index> offsets;                  // [L+1] flat: of the counts; else of the zones
  std::vector<Index> rows_per_source;          // [R] real rows
  std::vector<Compact> source;                 // [rows] flat: token, expert-major: pair; -1 padding
  Index demand = 0;                            // rows before any drop, padding included
  Index dropped_pairs = 0;
  [[nodiscard]] Index rows() const { return static_cast<Index>(source.size()); }
};

struct ExchangePlan {
  dropless_profile profile = {};
  ExchangeTopology topology;
  Index top_k = 0;
  bool flat = false;
  std::vector<Index> first_token;      // [R+1] tokens of the ranks before
  std::vector<Compact> slot_of_pair;   // [pairs] physical slot, -1 for id -1
  std::vector<Compact> row_of_pair;    // [pairs] row on the slot's rank, -1 none or dropped
  std::vector<ReceivedRows> received;  // [R]
  std::vector<Index> global_counts;    // [E] selected pairs, before any drop (ROUTING-10)
  Index capacity = -1;                 // -1: no limit
  Index demand = 0;                    // of the fullest rank
  bool overflow = false;               // demand > capacity

  [[nodiscard]] Index tokens(Index rank) const;
  [[nodiscard]] Index source_rank(Index token) const;
  [[nodiscard]] Index rank_of_pair(Index pair) const;
  // False when the policies error and trap refuse the plan; its arrays are then those without a
  // limit, and dispatch and combine throw ExchangeOverflow.
  [[nodiscard]] bool delivers() const;
};

// Dispatch or combine on a plan that overflowed (EXCHANGE-10).
struct ExchangeOverflow : Refused {
  using Refused::Refused;
};

// capacity: rows of every rank's buffers, -1 for no limit (also what the policy retry amounts to).
// Refused: settings as in exchange_topology; ids that are no [T,K] array of at most max_tokens
// rows, outside -1 .. E-1 or twice in a token; a capacity that is no multiple of the alignment;
// 2^31 pairs or rows and more.
ExchangePlan exchange_plan(const dropless_profile& profile, const ExchangeSettings& settings,
                           RankIds ids, Index capacity = -1);

// Throws ExchangeOverflow unless the plan delivers, Refused unless `rank` is one of its ranks.
void check_delivers(const ExchangePlan& plan, Index rank);

}  // namespace dropless::reference
