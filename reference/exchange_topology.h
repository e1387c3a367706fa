// SPDX-License-Identifier: Apache-2.0
// Who holds which expert: ranks, nodes and physical slots of an expert-parallel group (EXCHANGE-0).
//
// A rank has L physical slots, and a slot holds one expert. Without a placement there is one slot
// for every expert, in contiguous blocks of L = E / R. With one, an expert may have copies on
// several ranks. "Slot s" is a physical slot, numbered rank * L + local id over all ranks; the slot
// of a pair in top-k is called its position.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

// What all ranks agree on when they open an exchange (dropless_exchange_settings without
// transport).
struct ExchangeSettings {
  Index ranks = 1, num_experts = 1, top_k = 1;
  Index max_tokens = 0;                  // largest T of any rank and step
  Index row_bytes = 0, scale_bytes = 0;  // of one row
  double ragged_buffer_factor = -1;      // EXCHANGE-9
  Index overflow_check_every = 0;        // steps; 0 is every step (EXCHANGE-11)
  std::vector<Index> node_of_rank = {};  // [R]; empty: one node
  std::vector<Index> placement = {};     // [R,L] expert of each slot; empty: contiguous blocks
};

struct ExchangeTopology {
  Index ranks = 0, num_experts = 0;
  Index slots = 0;                    // L, slots of one rank
  Index nodes = 0;                    // 1 + the largest node number
  std::vector<Index> node_of_rank;    // [R]
  std::vector<Index> expert_of_slot;  // [R * L]
  std::vector<Index> first_copy;      // [E+1] into copies
  std::vector<Index> copies;          // [R * L] slots sorted by (expert, slot)

  [[nodiscard]] Index rank_of(Index slot) const { return slot / slots; }
  [[nodiscard]] Index local_id(Index slot) const { return slot % slots; }
};

// Throws Refused for settings that no exchange can be opened with (GENERAL-3): sizes; E not
// divisible by R without a placement; a placement that does not fill whole ranks, names no expert,
// names one twice on a rank or leaves one out; a node map of another size or with node numbers
// outside 0 .. R-1; a factor other than -1 or a finite one >= 1.
ExchangeTopology exchange_topology(const ExchangeSettings& settings);

// node_of_rank [R] for contiguous blocks of R / nodes ranks; Refused unless that divides.
std::vector<Index> contiguous_nodes(Index ranks, Index nodes);

// The slot that serves a pair: the only one of its expert, or the copy number (token mod copies) in
// ascending slot order, or the one that the profile's replica_copy names (Refused outside its
// range). `token` is the index on its source rank, `position` the one in top-k.
Index serving_slot(const dropless_profile& profile, const ExchangeTopology& topology,
                   Index source_rank, Index token, Index position, Index expert);

}  // namespace dropless::reference
