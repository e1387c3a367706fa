// SPDX-License-Identifier: Apache-2.0
// Rows sorted by (expert, token, slot) and their way back: PERMUTATION-1 to 7.
#include "reference/permutation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

std::string name_id(Index id, Index token, Index slot) {
  return "id " + std::to_string(id) + " at token " + std::to_string(token) + ", slot " +
         std::to_string(slot);
}

// GENERAL-3: ids outside -1 .. E-1 and duplicates in a token.
void check_ids(Index tokens, Index top_k, Index num_experts, Indices ids) {
  check_size(ids.size(), tokens * top_k, "ids");
  std::vector<Index> last_token(at(num_experts), -1);
  for (Index t = 0; t < tokens; ++t) {
    for (Index j = 0; j < top_k; ++j) {
      const Index id = ids[at(t * top_k + j)];
      if (id < -1 || id >= num_experts) {
        throw Refused(name_id(id, t, j) + " is outside -1 .. " + std::to_string(num_experts - 1));
      }
      if (id == -1) continue;
      if (last_token[at(id)] == t) throw Refused(name_id(id, t, j) + " repeats in its token");
      last_token[at(id)] = t;
    }
  }
}

// PERMUTATION-3: rows of a zone.
Index zone_size(Index count, Index alignment, int empty_expert) {
  if (count == 0) return empty_expert == DROPLESS_EMPTY_EXPERT_ONE_BLOCK ? alignment : 0;
  return ceil_div(count, alignment) * alignment;
}

}  // namespace

PermutePlan permute_plan(const dropless_profile& profile, Index tokens, Index top_k,
                         Index num_experts, Indices ids, Index row_capacity) {
  const Index alignment = profile.alignment == 0 ? 1 : profile.alignment;
  if (tokens < 0 || top_k < 0 || num_experts < 0) throw Refused("negative size");
  if (alignment < 0) throw Refused("alignment " + std::to_string(alignment) + " is negative");
  if (row_capacity < -1 || (row_capacity >= 0 && row_capacity % alignment != 0)) {
    throw Refused("row capacity " + std::to_string(row_capacity) +
                  " is not a multiple of the alignment " + std::to_string(alignment));
  }
  check_ids(tokens, top_k, num_experts, ids);

  PermutePlan plan;
  plan.tokens = tokens;
  plan.top_k = top_k;
  plan.num_experts = num_experts;
  std::vector<Index> counts(at(num_experts), 0);
  for (const Index id : ids) {
    if (id >= 0) ++counts[at(id)];
  }
  std::vector<Index> offsets{0};
  for (const Index count : counts) {
    offsets.push_back(offsets.back() + zone_size(count, alignment, profile.empty_expert));
  }
  plan.demand = offsets.back();

  // PERMUTATION-5: rows at and beyond the capacity do not survive. Without one, all do.
  const Index limit = row_capacity < 0 ? plan.demand : row_capacity;
  for (Index e = 0; e < num_experts; ++e) {
    const Index room = std::max<Index>(limit - offsets[at(e)], 0);
    plan.tokens_per_expert.push_back(std::min(counts[at(e)], room));
  }
  for (const Index offset : offsets) plan.offsets.push_back(std::min(offset, limit));

  // Tokens and slots are walked in ascending order, so every zone fills in that order.
  plan.row_map.assign(ids.size(), -1);
  plan.source.assign(at(plan.rows()), -1);
  std::vector<Index> next(offsets.begin(), offsets.end() - 1);
  for (Index pair = 0; pair < tokens * top_k; ++pair) {
    const Index id = ids[at(pair)];
    if (id < 0) continue;
    const Index row = next[at(id)]++;
    if (row >= limit) continue;
    plan.row_map[at(pair)] = row;
    plan.source[at(row)] = pair;
  }
  return plan;
}

std::vector<std::byte> permute(const PermutePlan& plan, std::span<const std::byte> x,
                               std::size_t row_bytes) {
  check_size(x.size(), plan.tokens * static_cast<Index>(row_bytes), "x");
  std::vector<std::byte> rows(at(plan.rows()) * row_bytes, std::byte{0});
  if (row_bytes == 0) return rows;
  for (std::size_t row = 0; row < plan.source.size(); ++row) {
    if (plan.source[row] < 0) continue;
    const std::size_t token = at(plan.source[row] / plan.top_k);
    std::memcpy(&rows[row * row_bytes], &x[token * row_bytes], row_bytes);
  }
  return rows;
}

std::vector<std::byte> permute_slots(const PermutePlan& plan, std::span<const std::byte> slots,
                                     std::size_t element_bytes) {
  check_size(slots.size(), plan.tokens * plan.top_k * static_cast<Index>(element_bytes), "slots");
  std::vector<std::byte> rows(at(plan.rows()) * element_bytes, std::byte{0});
  if (element_bytes == 0) return rows;
  for (std::size_t row = 0; row < plan.source.size(); ++row) {
    if (plan.source[row] < 0) continue;
    const std::size_t pair = at(plan.source[row]);
    std::memcpy(&rows[row * element_bytes], &slots[pair * element_bytes], element_bytes);
  }
  return rows;
}

Gauged permute_backward(const PermutePlan& plan, Index hidden, Input d_rows) {
  return unpermute(plan, hidden, d_rows, {});
}

Doubles permute_weights_backward(const PermutePlan& plan, Input d_row_weights) {
  check_at_least(d_row_weights.size(), plan.rows(), "d_row_weights");
  Doubles d_weights(plan.row_map.size(), 0.0);
  for (std::size_t pair = 0; pair < plan.row_map.size(); ++pair) {
    if (plan.row_map[pair] >= 0) d_weights[pair] = d_row_weights[at(plan.row_map[pair])];
  }
  return d_weights;
}

Gauged unpermute(const PermutePlan& plan, Index hidden, Input rows, Input weights) {
  check_at_least(rows.size(), plan.rows() * hidden, "rows");
  if (!weights.empty()) check_size(weights.size(), plan.tokens * plan.top_k, "weights");
  const std::size_t size = at(plan.tokens * hidden);
  Gauged y{Doubles(size, 0.0), Doubles(size, 0.0)};
  for (Index t = 0; t < plan.tokens; ++t) {
    for (Index j = 0; j < plan.top_k; ++j) {
      const Index pair = t * plan.top_k + j;
      const Index row = plan.row_map[at(pair)];
      if (row < 0) continue;
      const double weight = weights.empty() ? 1.0 : weights[at(pair)];
      for (Index h = 0; h < hidden; ++h) {
        const double term = weight * rows[at(row * hidden + h)];
        y.value[at(t * hidden + h)] += term;
        y.gauge[at(t * hidden + h)] += std::abs(term);
      }
    }
  }
  return y;
}

UnpermuteGradient unpermute_backward(const PermutePlan& plan, Index hidden, Input rows,
                                     Input weights, Input d_y) {
  check_size(d_y.size(), plan.tokens * hidden, "d_y");
  const bool weighted = !weights.empty();
  if (weighted) {
    check_size(weights.size(), plan.tokens * plan.top_k, "weights");
    check_at_least(rows.size(), plan.rows() * hidden, "rows");
  }
  const std::size_t size = at(plan.rows() * hidden);
  UnpermuteGradient gradient;
  gradient.d_rows = {Doubles(size, 0.0), Doubles(size, 0.0)};
  gradient.d_weights = {Doubles(weights.size(), 0.0), Doubles(weights.size(), 0.0)};
  for (Index pair = 0; pair < plan.tokens * plan.top_k; ++pair) {
    const Index row = plan.row_map[at(pair)];
    if (row < 0) continue;
    const Index t = pair / plan.top_k;
    for (Index h = 0; h < hidden; ++h) {
      const double dy = d_y[at(t * hidden + h)];
      const double d_row = weighted ? weights[at(pair)] * dy : dy;
      gradient.d_rows.value[at(row * hidden + h)] = d_row;
      gradient.d_rows.gauge[at(row * hidden + h)] = std::abs(d_row);
      if (!weighted) continue;
      const double term = dy * rows[at(row * hidden + h)];
      gradient.d_weights.value[at(pair)] += term;
      gradient.d_weights.gauge[at(pair)] += std::abs(term);
    }
  }
  return gradient;
}

}  // namespace dropless::reference
