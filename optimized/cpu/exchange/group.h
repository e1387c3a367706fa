// SPDX-License-Identifier: Apache-2.0
// The settings of an exchange, checked: ranks, nodes, physical slots and their experts, capacity.
#pragma once

#include <vector>

#include "optimized/cpu/arguments.h"
#include "optimized/cpu/exchange/choices.h"

namespace dropless::cpu::exchange {

[[nodiscard]] constexpr std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Where a pair goes: rank and local id (physical slot on that rank).
struct Place {
  std::int32_t rank, slot;
};

struct Group {
  Choices choices;
  int rank = 0, ranks = 1;
  Index experts = 0, top_k = 0, slots = 0;  // slots: L, physical slots of a rank
  Index max_tokens = 0, row_bytes = 0, scale_bytes = 0;
  double factor = -1, timeout_seconds = 0;
  Index check_every = 1;
  std::vector<std::int32_t> node_of_rank;    // [R]
  std::vector<std::int32_t> expert_of_slot;  // [R * L], -1: an empty slot
  std::vector<std::int32_t> copies_begin;    // [E+1] into copies
  std::vector<Place> copies;                 // of expert e in ascending physical slot order
  Index capacity = 0;                        // rows (EXCHANGE-9)
  dropless_all_gather all_gather = nullptr;
  void* all_gather_context = nullptr;

  // The copy of `expert` that serves this pair (EXCHANGE-0).
  [[nodiscard]] Place place(Index token, Index k, Index expert) const;
};

// Reads and checks the settings; calls nothing and keeps no pointer into them. Throws Refusal.
[[nodiscard]] Group read_group(const dropless_exchange_settings* settings, const Choices& choices);

// Rows of the receive buffers of a rank by EXCHANGE-9, in double. T: the largest token count of any
// rank; L: experts of a rank; factor -1 for the worst case. Throws Refusal when a count does not
// fit.
[[nodiscard]] Index capacity_rows(Index ranks, Index tokens, Index top_k, Index local_experts,
                                  double factor, bool expert_major, Index alignment);

[[nodiscard]] constexpr Index align_up(Index rows, Index alignment) {
  return (rows + alignment - 1) / alignment * alignment;
}

}  // namespace dropless::cpu::exchange
