// SPDX-License-Identifier: Apache-2.0
// The pairs between one source rank and one destination rank, as both of them keep them: the
// source makes the lists, the destination receives a copy, and a drop shortens both the same way.
#pragma once

#include <vector>

#include "optimized/cpu/exchange/group.h"

namespace dropless::cpu::exchange {

// One selected expert of a token: its place k in the token's ids, and the local id.
struct Pair {
  std::int32_t k, slot;
};
// A token on its source rank and the end of its pairs. Begins where the token before it ends.
struct LinkToken {
  std::int32_t token, pairs_end;
};

struct Link {
  std::vector<LinkToken> tokens;  // ascending; one row on the wire each (EXCHANGE-5)
  std::vector<Pair> pairs;        // in k order within a token

  [[nodiscard]] Index size() const { return static_cast<Index>(tokens.size()); }
  [[nodiscard]] Index pairs_begin(Index i) const {
    return i == 0 ? 0 : tokens[at(i - 1)].pairs_end;
  }
  [[nodiscard]] Index pairs_end(Index i) const { return tokens[at(i)].pairs_end; }
  [[nodiscard]] bool empty() const { return tokens.empty(); }
  void clear() {
    tokens.clear();
    pairs.clear();
  }
  // Keeps the pairs for which keep(pair index, token index) says so, and the tokens that have one.
  template <class Keep>
  void filter(const Keep& keep);
};

// What every rank tells every other one: real pairs per physical slot of the whole group, and
// distinct tokens per destination rank.
struct Counts {
  std::vector<std::int64_t> values;  // [R * L] then [R]
  [[nodiscard]] std::int64_t& pairs(const Group& g, Index rank, Index slot) {
    return values[at(rank * g.slots + slot)];
  }
  [[nodiscard]] std::int64_t pairs(const Group& g, Index rank, Index slot) const {
    return values[at(rank * g.slots + slot)];
  }
  [[nodiscard]] std::int64_t& tokens(const Group& g, Index rank) {
    return values[at(g.ranks * g.slots + rank)];
  }
  [[nodiscard]] std::int64_t tokens(const Group& g, Index rank) const {
    return values[at(g.ranks * g.slots + rank)];
  }
  void reset(const Group& g) { values.assign(at(g.ranks * g.slots + g.ranks), 0); }
};

// Refuses ids below -1, from E on, or twice in a token.
void check_ids(const Tensor& ids, Index experts);

// The links [R] from this rank to every destination (itself included), and their counts.
void make_links(const Group& group, const Tensor& ids, std::vector<Link>& links, Counts& counts);

// Distinct tokens that this rank sends to other nodes, a token once a node (EXCHANGE-5).
[[nodiscard]] Index tokens_to_other_nodes(const Group& group, const std::vector<Link>& links,
                                          Index tokens);

template <class Keep>
void Link::filter(const Keep& keep) {
  Index kept_tokens = 0, kept_pairs = 0, p = 0;
  for (Index i = 0; i < size(); ++i) {
    const LinkToken here = tokens[at(i)];
    const Index before = kept_pairs;
    for (; p < here.pairs_end; ++p) {
      if (keep(p, i)) pairs[at(kept_pairs++)] = pairs[at(p)];
    }
    if (kept_pairs != before) {
      tokens[at(kept_tokens++)] = {here.token, static_cast<std::int32_t>(kept_pairs)};
    }
  }
  tokens.resize(at(kept_tokens));
  pairs.resize(at(kept_pairs));
}

}  // namespace dropless::cpu::exchange
