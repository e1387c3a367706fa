// SPDX-License-Identifier: Apache-2.0
// Rows, scales, weights and ids on their way to the experts: EXCHANGE-1 to 4, 7.
#include "reference/exchange_dispatch.h"

#include <cstring>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

void check_arrays(const ExchangePlan& plan, RankBytes arrays, Index token_bytes,
                  const std::string& what) {
  check_size(arrays.size(), plan.topology.ranks, (what + " of all ranks").c_str());
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    check_size(arrays[at(rank)].size(), plan.tokens(rank) * token_bytes,
               (what + " of rank " + std::to_string(rank)).c_str());
  }
}

// The bytes of element `index` in the row of all ranks' arrays, `first` being the first element of
// its source rank.
const std::byte* element(RankBytes arrays, Index source_rank, Index index, Index first,
                         std::size_t bytes) {
  return arrays[at(source_rank)].data() + at(index - first) * bytes;
}

// EXCHANGE-3, flat: where among the K columns of its row a pair's local id and weight stand.
Index flat_column(const ExchangePlan& plan, Index pair) {
  const Index first = pair / plan.top_k * plan.top_k;
  if (plan.profile.flat_ids == DROPLESS_FLAT_IDS_IN_PLACE) return pair - first;
  const Index slot = plan.slot_of_pair[at(pair)];
  const Index first_slot_of_rank = slot - plan.topology.local_id(slot);
  Index smaller = 0;
  for (Index other = first; other < first + plan.top_k; ++other) {
    const Index other_slot = plan.slot_of_pair[at(other)];
    smaller += other_slot >= first_slot_of_rank && other_slot < slot;
  }
  return smaller;
}

// Calls visit(column, pair) for the pairs of a flat row.
template <typename Visit>
void for_each_pair_of_row(const ExchangePlan& plan, Index rank, Index token, const Visit& visit) {
  for (Index pair = token * plan.top_k; pair < (token + 1) * plan.top_k; ++pair) {
    if (plan.row_of_pair[at(pair)] < 0 || plan.rank_of_pair(pair) != rank) continue;
    visit(flat_column(plan, pair), pair);
  }
}

}  // namespace

Bytes dispatch_rows(const ExchangePlan& plan, Index rank, RankBytes x, std::size_t row_bytes) {
  check_delivers(plan, rank);
  check_arrays(plan, x, static_cast<Index>(row_bytes), "x");
  const std::vector<Compact>& source = plan.received[at(rank)].source;
  Bytes rows(source.size() * row_bytes, std::byte{0});
  if (row_bytes == 0) return rows;
  for (std::size_t row = 0; row < source.size(); ++row) {
    if (source[row] < 0) continue;
    const Index token = plan.flat ? source[row] : source[row] / plan.top_k;
    const Index from = plan.source_rank(token);
    std::memcpy(&rows[row * row_bytes],
                element(x, from, token, plan.first_token[at(from)], row_bytes), row_bytes);
  }
  return rows;
}

Bytes dispatch_weights(const ExchangePlan& plan, Index rank, RankBytes weights,
                       std::size_t element_bytes) {
  check_delivers(plan, rank);
  check_arrays(plan, weights, plan.top_k * static_cast<Index>(element_bytes), "weights");
  const std::vector<Compact>& source = plan.received[at(rank)].source;
  const std::size_t columns = plan.flat ? at(plan.top_k) : 1;
  Bytes out(source.size() * columns * element_bytes, std::byte{0});
  if (element_bytes == 0) return out;
  for (std::size_t row = 0; row < source.size(); ++row) {
    if (source[row] < 0) continue;
    const Index from = plan.source_rank(plan.flat ? source[row] : source[row] / plan.top_k);
    const Index first_pair = plan.first_token[at(from)] * plan.top_k;
    const auto copy = [&](Index column, Index pair) {
      std::memcpy(&out[(row * columns + at(column)) * element_bytes],
                  element(weights, from, pair, first_pair, element_bytes), element_bytes);
    };
    if (plan.flat) {
      for_each_pair_of_row(plan, rank, source[row], copy);
    } else {
      copy(0, source[row]);
    }
  }
  return out;
}

std::vector<Index> dispatch_ids(const ExchangePlan& plan, Index rank) {
  check_delivers(plan, rank);
  if (!plan.flat) throw Refused("row ids belong to the flat layouts");
  const std::vector<Compact>& source = plan.received[at(rank)].source;
  std::vector<Index> ids(source.size() * at(plan.top_k), -1);
  for (std::size_t row = 0; row < source.size(); ++row) {
    for_each_pair_of_row(plan, rank, source[row], [&](Index column, Index pair) {
      ids[row * at(plan.top_k) + at(column)] = plan.topology.local_id(plan.slot_of_pair[at(pair)]);
    });
  }
  return ids;
}

std::vector<Index> dispatch_sources(const ExchangePlan& plan, Index rank) {
  check_delivers(plan, rank);
  std::vector<Index> sources;
  for (const Compact source : plan.received[at(rank)].source) {
    const Index token = plan.flat || source < 0 ? source : source / plan.top_k;
    const Index from = token < 0 ? -1 : plan.source_rank(token);
    sources.push_back(from);
    sources.push_back(token < 0 ? -1 : token - plan.first_token[at(from)]);
  }
  return sources;
}

Doubles dispatch_weights_backward(const ExchangePlan& plan, Index source_rank,
                                  std::span<const Input> d_row_weights) {
  check_delivers(plan, source_rank);
  check_size(d_row_weights.size(), plan.topology.ranks, "d_row_weights of all ranks");
  const Index columns = plan.flat ? plan.top_k : 1;
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    check_at_least(d_row_weights[at(rank)].size(), plan.received[at(rank)].rows() * columns,
                   ("d_row_weights of rank " + std::to_string(rank)).c_str());
  }
  const Index first = plan.first_token[at(source_rank)] * plan.top_k;
  Doubles d_weights(at(plan.tokens(source_rank) * plan.top_k), 0.0);
  for (Index i = 0; i < static_cast<Index>(d_weights.size()); ++i) {
    const Index row = plan.row_of_pair[at(first + i)];
    if (row < 0) continue;
    const Index column = plan.flat ? flat_column(plan, first + i) : 0;
    d_weights[at(i)] = d_row_weights[at(plan.rank_of_pair(first + i))][at(row * columns + column)];
  }
  return d_weights;
}

}  // namespace dropless::reference
