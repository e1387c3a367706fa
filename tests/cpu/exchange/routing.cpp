// SPDX-License-Identifier: Apache-2.0
// The plain loops behind routing.h: rows of every rank by the words of EXCHANGE-3.
#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {

int Routing::expert_at(int rank, Index slot) const {
  if (placement.empty()) return static_cast<int>(rank * slots() + slot);
  return placement[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)];
}

Index Routing::slot_on(int rank, int source, Index token, Index k) const {
  const Index expert = id(source, token, k);
  if (expert < 0) return -1;
  std::vector<std::pair<int, Index>> copies;
  for (int r = 0; r < ranks; ++r) {
    for (Index s = 0; s < slots(); ++s) {
      if (expert_at(r, s) == expert) copies.emplace_back(r, s);
    }
  }
  const auto& chosen = copies[static_cast<std::size_t>(token) % copies.size()];
  return chosen.first == rank ? chosen.second : -1;
}

dropless_profile Routing::profile() const {
  dropless_profile p = default_profile();
  p.dispatch_layout = expert_major ? DROPLESS_DISPATCH_EXPERT_MAJOR : DROPLESS_DISPATCH_FLAT;
  p.flat_ids = in_place ? DROPLESS_FLAT_IDS_IN_PLACE : DROPLESS_FLAT_IDS_ASCENDING;
  p.combine_weighting = weighted ? DROPLESS_COMBINE_WEIGHTED : DROPLESS_COMBINE_UNWEIGHTED;
  p.alignment = static_cast<std::int32_t>(alignment);
  return p;
}

Array Routing::ids_of(int rank) const {
  Array array(DROPLESS_I32, {tokens(rank), top_k});
  const auto& mine = ids[static_cast<std::size_t>(rank)];
  return array.set({mine.begin(), mine.end()});
}

void Routing::complete(dropless_exchange_settings& s, std::vector<Array>& memory) const {
  s.num_experts = experts, s.top_k = top_k;
  for (int r = 0; r < ranks; ++r) s.max_tokens = std::max(s.max_tokens, tokens(r));
  memory.reserve(2);
  if (!node_of_rank.empty()) {
    memory.emplace_back(DROPLESS_I32, Shape{ranks});
    memory.back().set({node_of_rank.begin(), node_of_rank.end()});
    s.node_of_rank = memory.back().get();
  }
  if (!placement.empty()) {
    std::vector<double> all;
    for (const auto& of_rank : placement) all.insert(all.end(), of_rank.begin(), of_rank.end());
    memory.emplace_back(DROPLESS_I32, Shape{ranks, slots()});
    memory.back().set(all);
    s.placement = memory.back().get();
  }
}

Routing random_routing(int ranks, Index experts, Index top_k, const std::vector<Index>& tokens,
                       unsigned seed) {
  std::mt19937 engine(seed);
  Routing routing;
  routing.ranks = ranks, routing.experts = experts, routing.top_k = top_k;
  std::vector<Index> all;
  for (Index e = 0; e < experts; ++e) all.push_back(e);
  for (int r = 0; r < ranks; ++r) {
    std::vector<Index> mine;
    for (Index t = 0; t < tokens[static_cast<std::size_t>(r)]; ++t) {
      std::shuffle(all.begin(), all.end(), engine);
      for (Index k = 0; k < top_k; ++k) {
        mine.push_back(engine() % 5 == 0 ? -1 : all[static_cast<std::size_t>(k)]);
      }
    }
    routing.ids.push_back(mine);
  }
  return routing;
}

std::vector<Row> expected_rows(const Routing& g, int rank) {
  std::vector<Row> rows;
  if (!g.expert_major) {
    for (int source = 0; source < g.ranks; ++source) {
      for (Index t = 0; t < g.tokens(source); ++t) {
        Row row{source, t, {}};
        for (Index k = 0; k < g.top_k; ++k) {
          const Index slot = g.slot_on(rank, source, t, k);
          if (slot >= 0) row.parts.push_back({k, slot});
        }
        if (!row.parts.empty()) rows.push_back(row);
      }
    }
    return rows;
  }
  for (Index slot = 0; slot < g.slots(); ++slot) {
    for (int source = 0; source < g.ranks; ++source) {
      for (Index t = 0; t < g.tokens(source); ++t) {
        for (Index k = 0; k < g.top_k; ++k) {
          if (g.slot_on(rank, source, t, k) == slot) rows.push_back({source, t, {{k, slot}}});
        }
      }
    }
    while (static_cast<Index>(rows.size()) % g.alignment != 0) rows.emplace_back();
  }
  return rows;
}

Index column_of(const Routing& g, const Row& row, std::size_t p) {
  if (g.in_place) return row.parts[p].k;
  Index smaller = 0;
  for (const Row::Part& other : row.parts) smaller += other.slot < row.parts[p].slot ? 1 : 0;
  return smaller;
}

}  // namespace dropless::cpu::testing
