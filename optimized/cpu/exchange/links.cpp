// SPDX-License-Identifier: Apache-2.0
// Routing of one rank, sorted by destination.
#include "optimized/cpu/exchange/links.h"

namespace dropless::cpu::exchange {

void check_ids(const Tensor& ids, Index experts) {
  std::vector<Index> seen(at(experts), -1);  // last token with this id
  for (Index t = 0; t < ids.shape[0]; ++t) {
    for (Index k = 0; k < ids.shape[1]; ++k) {
      const Index id = ids.integer(t, k);
      if (id == -1) continue;
      if (id < -1 || id >= experts) {
        refuse("ids: " + std::to_string(id) + " of token " + std::to_string(t) +
               " is outside -1 .. E-1");
      }
      if (seen[at(id)] == t) {
        refuse("ids: " + std::to_string(id) + " twice in token " + std::to_string(t));
      }
      seen[at(id)] = t;
    }
  }
}

void make_links(const Group& group, const Tensor& ids, std::vector<Link>& links, Counts& counts) {
  links.resize(at(group.ranks));
  for (Link& link : links) link.clear();
  counts.reset(group);
  for (Index t = 0; t < ids.shape[0]; ++t) {
    for (Index k = 0; k < ids.shape[1]; ++k) {
      const Index id = ids.integer(t, k);
      if (id < 0) continue;
      const Place place = group.place(t, k, id);
      Link& link = links[at(place.rank)];
      link.pairs.push_back({static_cast<std::int32_t>(k), place.slot});
      const std::int32_t end = static_cast<std::int32_t>(link.pairs.size());
      if (!link.empty() && link.tokens.back().token == t) {
        link.tokens.back().pairs_end = end;
      } else {
        link.tokens.push_back({static_cast<std::int32_t>(t), end});
      }
      ++counts.pairs(group, place.rank, place.slot);
    }
  }
  for (Index r = 0; r < group.ranks; ++r) counts.tokens(group, r) = links[at(r)].size();
}

Index tokens_to_other_nodes(const Group& group, const std::vector<Link>& links, Index tokens) {
  const std::int32_t here = group.node_of_rank[at(group.rank)];
  std::vector<std::int32_t> nodes;
  for (const std::int32_t node : group.node_of_rank) {
    if (node != here && std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
      nodes.push_back(node);
    }
  }
  Index sum = 0;
  std::vector<Index> seen(at(tokens), -1);  // last node counted for this token
  for (const std::int32_t node : nodes) {
    for (Index r = 0; r < group.ranks; ++r) {
      if (group.node_of_rank[at(r)] != node) continue;
      for (const LinkToken& token : links[at(r)].tokens) {
        Index& last = seen[at(token.token)];
        sum += last != node ? 1 : 0;
        last = node;
      }
    }
  }
  return sum;
}

}  // namespace dropless::cpu::exchange
