// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan moves between ranks and between nodes: EXCHANGE-5.
#include "reference/exchange_traffic.h"

#include "reference/checks.h"

namespace dropless::reference {

ExchangeTraffic exchange_traffic(const ExchangePlan& plan, Index token_bytes) {
  if (token_bytes < 0) throw Refused("token_bytes is negative");
  const ExchangeTopology& topology = plan.topology;
  ExchangeTraffic traffic;
  traffic.topology = topology;
  traffic.token_bytes = token_bytes;
  traffic.tokens.assign(at(topology.ranks * topology.ranks), 0);
  traffic.node_tokens.assign(at(topology.ranks * topology.nodes), 0);
  // The last token that was counted for each rank and for each node.
  std::vector<Index> rank_token(at(topology.ranks), -1), node_token(at(topology.nodes), -1);
  for (Index from = 0; from < topology.ranks; ++from) {
    for (Index t = 0; t < plan.tokens(from); ++t) {
      const Index token = plan.first_token[at(from)] + t;
      for (Index pair = token * plan.top_k; pair < (token + 1) * plan.top_k; ++pair) {
        if (plan.row_of_pair[at(pair)] < 0) continue;
        const Index to = plan.rank_of_pair(pair);
        const Index node = topology.node_of_rank[at(to)];
        if (rank_token[at(to)] != token) ++traffic.tokens[at(from * topology.ranks + to)];
        if (node_token[at(node)] != token) ++traffic.node_tokens[at(from * topology.nodes + node)];
        rank_token[at(to)] = node_token[at(node)] = token;
      }
    }
  }
  return traffic;
}

Index ExchangeTraffic::bytes(Index from, Index to) const {
  return from == to ? 0 : tokens[at(from * topology.ranks + to)] * token_bytes;
}

Index ExchangeTraffic::sent_bytes(Index rank) const {
  Index sum = 0;
  for (Index to = 0; to < topology.ranks; ++to) sum += bytes(rank, to);
  return sum;
}

Index ExchangeTraffic::sent_node_bytes(Index rank) const {
  Index sum = 0;
  for (Index node = 0; node < topology.nodes; ++node) {
    if (node == topology.node_of_rank[at(rank)]) continue;
    sum += node_tokens[at(rank * topology.nodes + node)] * token_bytes;
  }
  return sum;
}

}  // namespace dropless::reference
