// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan moves between ranks and between nodes: EXCHANGE-5.
#pragma once

#include "reference/exchange_plan.h"

namespace dropless::reference {

// Distinct tokens per ordered pair, the own rank and the own node included. A token whose pairs on
// a rank were all dropped does not travel there and is not counted.
struct ExchangeTraffic {
  ExchangeTopology topology;
  Index token_bytes = 0;           // payload and scales of a token; metadata is not counted
  std::vector<Index> tokens;       // [R,R] from, to
  std::vector<Index> node_tokens;  // [R,nodes] from a rank, to a node: a token once a node

  // Bytes of an ordered pair of different ranks; 0 from a rank to itself.
  [[nodiscard]] Index bytes(Index from, Index to) const;
  // Bytes from a rank to all other ranks, and to all other nodes.
  [[nodiscard]] Index sent_bytes(Index rank) const;
  [[nodiscard]] Index sent_node_bytes(Index rank) const;
};

// token_bytes: row_bytes + scale_bytes of the settings.
ExchangeTraffic exchange_traffic(const ExchangePlan& plan, Index token_bytes);

}  // namespace dropless::reference
