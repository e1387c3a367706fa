// SPDX-License-Identifier: Apache-2.0
// Rows on their way home and the gradients of both ways: EXCHANGE-6, 7.
#include "reference/exchange_combine.h"

#include <dropless/formats/dtype.h>

#include <algorithm>
#include <cmath>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

bool is_weighted(const ExchangePlan& plan) {
  return !plan.flat && plan.profile.combine_weighting == DROPLESS_COMBINE_WEIGHTED;
}

void check_weights(bool weighted, bool given) {
  if (weighted != given) {
    throw Refused(weighted ? "this profile combines with row_weights, and there are none"
                           : "row_weights are given to an unweighted combine");
  }
}

void check_buffers(const ExchangePlan& plan, RankInputs arrays, Index width,
                   const std::string& what) {
  check_size(arrays.size(), plan.topology.ranks, (what + " of all ranks").c_str());
  for (Index rank = 0; rank < plan.topology.ranks; ++rank) {
    check_at_least(arrays[at(rank)].size(), plan.received[at(rank)].rows() * width,
                   (what + " of rank " + std::to_string(rank)).c_str());
  }
}

struct RowOfToken {
  Index node, rank, row;
};

// The rows of a token in ascending order of (node, rank, position); a flat row once.
std::vector<RowOfToken> rows_of_token(const ExchangePlan& plan, Index token) {
  std::vector<RowOfToken> rows;
  for (Index pair = token * plan.top_k; pair < (token + 1) * plan.top_k; ++pair) {
    const Index row = plan.row_of_pair[at(pair)];
    if (row < 0) continue;
    const Index rank = plan.rank_of_pair(pair);
    const auto same_rank = [&](const RowOfToken& other) { return other.rank == rank; };
    if (plan.flat && std::any_of(rows.begin(), rows.end(), same_rank)) continue;
    rows.push_back({plan.topology.node_of_rank[at(rank)], rank, row});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const RowOfToken& a, const RowOfToken& b) {
    return a.node != b.node ? a.node < b.node : a.rank < b.rank;
  });
  return rows;
}

// EXCHANGE-6: do two neighbouring rows belong to the same rounded partial sum?
bool share_rounding(const ExchangePlan& plan, const RowOfToken& a, const RowOfToken& b) {
  return plan.profile.combine_rounding == DROPLESS_COMBINE_ROUNDS_PER_NODE ? a.node == b.node
                                                                           : a.rank == b.rank;
}

Combined add_up(const ExchangePlan& plan, Index source_rank, Index hidden, dropless_dtype payload,
                RankInputs inputs, RankInputs weights) {
  const bool rounds_once = plan.profile.combine_rounding == DROPLESS_COMBINE_ROUNDS_ONCE;
  const std::size_t size = at(plan.tokens(source_rank) * hidden);
  Combined y{{Doubles(size, 0.0), Doubles(size, 0.0)}, Doubles(size, 0.0)};
  for (Index t = 0; t < plan.tokens(source_rank); ++t) {
    const auto rows = rows_of_token(plan, plan.first_token[at(source_rank)] + t);
    for (Index h = 0; h < hidden; ++h) {
      const std::size_t i = at(t * hidden + h);
      double partial = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto [node, rank, row] = rows[r];
        const double weight = weights.empty() ? 1.0 : weights[at(rank)][at(row)];
        const double term = weight * inputs[at(rank)][at(row * hidden + h)];
        y.exact.value[i] += term;
        y.exact.gauge[i] += std::abs(term);
        partial += term;
        if (r + 1 < rows.size() && share_rounding(plan, rows[r], rows[r + 1])) continue;
        y.declared[i] += rounds_once ? 0 : round_to(payload, partial);
        partial = 0;
      }
    }
  }
  if (rounds_once) y.declared = y.exact.value;
  return y;
}

}  // namespace

Combined combine(const ExchangePlan& plan, Index source_rank, Index hidden, dropless_dtype payload,
                 RankInputs rows, RankInputs row_weights) {
  check_delivers(plan, source_rank);
  check_buffers(plan, rows, hidden, "rows");
  check_weights(is_weighted(plan), !row_weights.empty());
  if (is_weighted(plan)) check_buffers(plan, row_weights, 1, "row_weights");
  return add_up(plan, source_rank, hidden, payload, rows, row_weights);
}

Combined dispatch_backward(const ExchangePlan& plan, Index source_rank, Index hidden,
                           dropless_dtype payload, RankInputs d_rows) {
  check_delivers(plan, source_rank);
  check_buffers(plan, d_rows, hidden, "d_rows");
  return add_up(plan, source_rank, hidden, payload, d_rows, {});
}

CombineGradient combine_backward(const ExchangePlan& plan, Index rank, Index hidden, RankInputs d_y,
                                 Input rows, Input row_weights) {
  check_delivers(plan, rank);
  check_size(d_y.size(), plan.topology.ranks, "d_y of all ranks");
  for (Index from = 0; from < plan.topology.ranks; ++from) {
    check_size(d_y[at(from)].size(), plan.tokens(from) * hidden, "d_y of a rank");
  }
  const bool weighted = is_weighted(plan);
  const std::vector<Compact>& source = plan.received[at(rank)].source;
  const Index in_use = plan.received[at(rank)].rows();
  if (weighted) {
    check_at_least(rows.size(), in_use * hidden, "rows");
    check_at_least(row_weights.size(), in_use, "row_weights");
  } else {
    check_weights(false, !row_weights.empty());
  }
  CombineGradient gradient;
  gradient.d_rows = {Doubles(at(in_use * hidden), 0.0), Doubles(at(in_use * hidden), 0.0)};
  const std::size_t weights = weighted ? at(in_use) : 0;
  gradient.d_row_weights = {Doubles(weights, 0.0), Doubles(weights, 0.0)};
  for (Index row = 0; row < in_use; ++row) {
    if (source[at(row)] < 0) continue;
    const Index token = plan.flat ? source[at(row)] : source[at(row)] / plan.top_k;
    const Index from = plan.source_rank(token);
    const Index t = token - plan.first_token[at(from)];
    for (Index h = 0; h < hidden; ++h) {
      const std::size_t i = at(row * hidden + h);
      const double dy = d_y[at(from)][at(t * hidden + h)];
      gradient.d_rows.value[i] = weighted ? row_weights[at(row)] * dy : dy;
      gradient.d_rows.gauge[i] = std::abs(gradient.d_rows.value[i]);
      if (!weighted) continue;
      const double term = dy * rows[i];
      gradient.d_row_weights.value[at(row)] += term;
      gradient.d_row_weights.gauge[at(row)] += std::abs(term);
    }
  }
  return gradient;
}

}  // namespace dropless::reference
