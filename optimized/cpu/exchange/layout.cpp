// SPDX-License-Identifier: Apache-2.0
// RowZones, rows and drops out of the counts of all ranks.
#include "optimized/cpu/exchange/layout.h"

namespace dropless::cpu::exchange {
namespace {

// Ascending local id, compacted to the front, or in place of k (EXCHANGE-3).
void make_columns(bool in_place, const Link& link, std::vector<std::int32_t>& column) {
  column.resize(link.pairs.size());
  for (Index i = 0; i < link.size(); ++i) {
    for (Index p = link.pairs_begin(i); p < link.pairs_end(i); ++p) {
      const Pair& pair = link.pairs[at(p)];
      std::int32_t place = pair.k;
      if (!in_place) {
        place = 0;
        for (Index q = link.pairs_begin(i); q < link.pairs_end(i); ++q) {
          place += link.pairs[at(q)].slot < pair.slot ? 1 : 0;
        }
      }
      column[at(p)] = place;
    }
  }
}

}  // namespace

Index rows_needed(const Group& g, const Counts& totals, Index rank) {
  if (!g.choices.expert_major) return totals.tokens(g, rank);
  Index sum = 0;
  for (Index s = 0; s < g.slots; ++s) {
    sum += align_up(totals.pairs(g, rank, s), g.choices.alignment);
  }
  return sum;
}

RowZones make_zones(const Group& g, const Counts& totals, Index rank, Index capacity) {
  RowZones zones;
  zones.first.push_back(0);
  const Index count = g.choices.expert_major ? g.slots : 1;
  for (Index s = 0; s < count; ++s) {
    const Index demand = g.choices.expert_major ? totals.pairs(g, rank, s) : totals.tokens(g, rank);
    // Experts in order take what room is left; an empty expert takes none (EXCHANGE-4, 10).
    const Index room = capacity < 0 ? demand : capacity - zones.first.back();
    const Index kept = std::min(demand, room);
    zones.kept.push_back(kept);
    zones.first.push_back(zones.first.back() + align_up(kept, g.choices.alignment));
  }
  return zones;
}

void drop(const Group& g, const RowZones& zones, std::vector<Index>& next, Link& link) {
  if (!g.choices.expert_major) {
    const Index before = next[0];
    next[0] += link.size();
    link.filter([&](Index, Index i) { return before + i < zones.kept[0]; });
    return;
  }
  link.filter([&](Index p, Index) {
    const std::size_t slot = at(link.pairs[at(p)].slot);
    return next[slot]++ < zones.kept[slot];
  });
}

void make_rows(const Group& g, const RowZones& zones, const std::vector<Link>& received,
               std::vector<LinkRows>& rows) {
  rows.resize(received.size());
  Index flat_row = 0;
  std::vector<Index> next(zones.first.begin(), zones.first.end() - 1);
  for (std::size_t r = 0; r < received.size(); ++r) {
    const Link& link = received[r];
    if (!g.choices.expert_major) {
      rows[r].first = flat_row;
      flat_row += link.size();
      make_columns(g.choices.ids_in_place, link, rows[r].column);
      continue;
    }
    rows[r].pair.resize(link.pairs.size());
    for (std::size_t p = 0; p < link.pairs.size(); ++p) {
      rows[r].pair[p] = static_cast<std::int32_t>(next[at(link.pairs[p].slot)]++);
    }
  }
}

}  // namespace dropless::cpu::exchange
