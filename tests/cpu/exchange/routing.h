// SPDX-License-Identifier: Apache-2.0
// What the tests expect, by plain loops over the routing of all ranks: no code of the
// implementation is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpu/exchange/ranks.h"

namespace dropless::cpu::testing {

// The routing of all ranks in one step, and how it is laid out.
struct Routing {
  int ranks = 1;
  Index experts = 1, top_k = 1;
  std::vector<std::vector<Index>> ids;      // [R][T * K]
  std::vector<std::vector<int>> placement;  // [R][slots] or empty: blocks
  std::vector<int> node_of_rank;            // [R] or empty: one node
  bool expert_major = false, in_place = false, weighted = false;
  Index alignment = 1;

  [[nodiscard]] Index tokens(int rank) const {
    return static_cast<Index>(ids[static_cast<std::size_t>(rank)].size()) / top_k;
  }
  [[nodiscard]] Index id(int rank, Index token, Index k) const {
    return ids[static_cast<std::size_t>(rank)][static_cast<std::size_t>(token * top_k + k)];
  }
  [[nodiscard]] Index slots() const {
    return placement.empty() ? experts / ranks : static_cast<Index>(placement[0].size());
  }
  [[nodiscard]] int expert_at(int rank, Index slot) const;
  [[nodiscard]] int node(int rank) const {
    return node_of_rank.empty() ? 0 : node_of_rank[static_cast<std::size_t>(rank)];
  }
  // Slot on `rank` where this pair goes, or -1.
  [[nodiscard]] Index slot_on(int rank, int source, Index token, Index k) const;
  [[nodiscard]] dropless_profile profile() const;
  [[nodiscard]] Array ids_of(int rank) const;
  void complete(dropless_exchange_settings& settings, std::vector<Array>& memory) const;
};

// Random ids with some -1; `tokens` per rank.
Routing random_routing(int ranks, Index experts, Index top_k, const std::vector<Index>& tokens,
                       unsigned seed);

// A row of a receive buffer. Padding: source -1.
struct Row {
  int source = -1;
  Index token = -1;
  struct Part {
    Index k, slot;
  };
  std::vector<Part> parts;  // of this row, in k order; one in the expert-major layout
};
std::vector<Row> expected_rows(const Routing& routing, int rank);
// Column of part p of a flat row among its K.
Index column_of(const Routing& routing, const Row& row, std::size_t p);

// Compares everything one plan, dispatch, combine and both backwards give on this rank; "" or the
// first difference. `generation` goes into the tags.
std::string check_step(Rank& rank, const Routing& routing, int generation);
// Opens, checks steps of growing and shrinking token counts, and closes.
std::string check_all(int rank, Gathering& gathering, Routing routing, const char* transport);

}  // namespace dropless::cpu::testing
