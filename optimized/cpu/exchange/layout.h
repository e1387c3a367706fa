// SPDX-License-Identifier: Apache-2.0
// Where received rows lie (EXCHANGE-3, 4), how many a rank needs, and what a drop leaves
// (EXCHANGE-10). Made of the counts of all ranks, so that every rank comes to the same result.
#pragma once

#include "optimized/cpu/exchange/links.h"

namespace dropless::cpu::exchange {

// Rows that `rank` needs, padding included. totals: the counts of all ranks, added up.
[[nodiscard]] Index rows_needed(const Group& group, const Counts& totals, Index rank);

// The zones of a destination rank: first row and kept pairs of each local expert (expert-major), or
// the whole buffer as one zone (flat). `capacity` -1: everything is kept.
struct RowZones {
  std::vector<Index> first;  // [L+1] expert-major, [2] flat
  std::vector<Index> kept;   // [L] or [1]
  [[nodiscard]] Index rows() const { return first.back(); }
};
[[nodiscard]] RowZones make_zones(const Group& group, const Counts& totals, Index rank,
                                  Index capacity);

// Removes from the link what does not fit into the zones of its destination. `next`: how much the
// sources before this one bring to each zone; the link's own share is added. Source and destination
// come to the same result.
void drop(const Group& group, const RowZones& zones, std::vector<Index>& next, Link& link);

// The rows of a received link, after the drop.
struct LinkRows {
  Index first = 0;                   // flat: row of the link's first token, the others follow
  std::vector<std::int32_t> pair;    // expert-major: row of each pair
  std::vector<std::int32_t> column;  // flat: place of each pair in the K ids of its row
};

// Rows of the links [R] that this rank received, by the zones of this rank.
void make_rows(const Group& group, const RowZones& zones, const std::vector<Link>& received,
               std::vector<LinkRows>& rows);

}  // namespace dropless::cpu::exchange
