// SPDX-License-Identifier: Apache-2.0
// Loads: the taxonomy, and how it becomes rows or ids.
#include "conformance/cases/loads.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <stdexcept>
#include <string>

namespace dropless::conformance {
namespace {

constexpr std::size_t longest_list = 64;  // experts

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// `rows` in proportion to `weights`, by largest remainders: adds up exactly.
std::vector<Index> apportion(const std::vector<double>& weights, Index rows) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Index> out(weights.size(), 0);
  std::vector<std::pair<double, std::size_t>> remainders;
  Index left = rows;
  for (std::size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] == 0) continue;
    const double share = static_cast<double>(rows) * weights[e] / total;
    out[e] = static_cast<Index>(share);
    left -= out[e];
    remainders.emplace_back(static_cast<double>(out[e]) - share, e);
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) {
    ++out[remainders[i].second];
  }
  return out;
}

std::vector<double> uneven(Index experts, Random& random) {
  std::vector<double> weights(at(experts));
  for (double& weight : weights) {
    const double draw = random.uniform();
    weight = draw * draw + 1e-3;
  }
  return weights;
}

// Experts [first, last) get nothing. One expert alone keeps its rows.
std::vector<Index> with_gap(Index experts, Index rows, Index first, Index last, Random& random) {
  std::vector<double> weights = uneven(experts, random);
  if (last - first < experts) {
    for (Index e = first; e < last; ++e) weights[at(e)] = 0;
  }
  return apportion(weights, rows);
}

// Sizes just below, at and above the edges of common tiles, as many as fit.
std::vector<Index> tile_edges(Index experts, Index rows, Random& random) {
  constexpr Index tiles[] = {16, 32, 64, 128, 256};
  std::vector<Index> sizes;
  for (const Index tile : tiles) {
    for (Index step = -1; step <= 1; ++step) sizes.push_back(tile + step);
  }
  std::vector<Index> out(at(experts), 0);
  Index left = rows;
  std::vector<Index> order;
  for (Index e = 0; e < experts; ++e) {
    if (order.empty()) order = random.permutation(static_cast<Index>(sizes.size()));
    const Index size = sizes[at(order.back())];
    order.pop_back();
    if (size <= left) out[at(e)] = size, left -= size;
  }
  if (experts > 0 && left == rows && rows >= sizes[0]) out[0] = sizes[0];  // none drawn fitted
  return out;
}

// "3.0.17": what the first experts get, as far as the rows last.
std::vector<Index> listed(std::string_view list, Index experts, Index rows) {
  std::vector<Index> out(at(experts), 0);
  Index left = rows;
  for (Index& count : out) {
    std::from_chars(list.data(), list.data() + list.size(), count);
    count = std::min(count, left);
    left -= count;
    const std::size_t dot = list.find('.');
    if (dot == std::string_view::npos) break;
    list.remove_prefix(dot + 1);
  }
  return out;
}

// No expert can take a token twice: what exceeds T moves on, to the busiest experts with room, so
// that the load stays as uneven as it can be.
void cap_at_tokens(std::vector<Index>& demand, Index tokens, Random& random) {
  std::vector<Index> order = random.permutation(static_cast<Index>(demand.size()));
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return demand[at(a)] > demand[at(b)]; });
  Index excess = 0;
  for (Index& rows : demand) {
    excess += std::max<Index>(rows - tokens, 0);
    rows = std::min(rows, tokens);
  }
  for (const Index e : order) {
    const Index moved = std::min(excess, tokens - demand[at(e)]);
    demand[at(e)] += moved;
    excess -= moved;
  }
}

}  // namespace

Parameter load_parameter(std::string meaning) {
  return {"load", load_names(), 0, 1 << 20, std::move(meaning), longest_list};
}

const std::vector<std::string>& load_names() {
  static const std::vector<std::string> names = {
      "balanced",   "zipf",      "one_hot",   "one_row_each", "empty_first", "empty_middle",
      "empty_last", "all_empty", "tile_edge", "alternating",  "ragged"};
  return names;
}

std::vector<Index> rows_per_expert(std::string_view load, Index experts, Index rows,
                                   Random& random) {
  const auto count = at(experts);
  const Index gap = std::max<Index>(experts / 4, 1);
  if (load == "balanced") return apportion(std::vector<double>(count, 1.0), rows);
  if (load == "ragged") return apportion(uneven(experts, random), rows);
  if (load == "one_row_each") return std::vector<Index>(count, 1);
  if (load == "all_empty") return std::vector<Index>(count, 0);
  if (load == "tile_edge") return tile_edges(experts, rows, random);
  if (load == "empty_first") return with_gap(experts, rows, 0, gap, random);
  if (load == "empty_last") return with_gap(experts, rows, experts - gap, experts, random);
  if (load == "empty_middle") {
    const Index first = (experts - gap) / 2;
    return with_gap(experts, rows, first, first + gap, random);
  }
  if (load == "one_hot") {
    std::vector<Index> out(count, 0);
    out[at(random.below(experts))] = rows;
    return out;
  }
  if (load == "alternating") {
    std::vector<double> weights(count, 0);
    for (std::size_t e = experts > 1 ? 1 : 0; e < count; e += 2) weights[e] = 1;
    return apportion(weights, rows);
  }
  if (load == "zipf") {
    std::vector<double> weights(count);
    const std::vector<Index> rank = random.permutation(experts);
    for (std::size_t e = 0; e < count; ++e) weights[e] = 1.0 / static_cast<double>(rank[e] + 1);
    return apportion(weights, rows);
  }
  if (!load.empty() && load[0] >= '0' && load[0] <= '9') return listed(load, experts, rows);
  throw std::logic_error("no load '" + std::string(load) + "'");
}

std::vector<Index> ids_for_load(std::string_view load, Index tokens, Index experts, Index top_k,
                                Random& random, double missing) {
  std::vector<Index> demand = rows_per_expert(load, experts, tokens * top_k, random);
  cap_at_tokens(demand, tokens, random);
  while (std::accumulate(demand.begin(), demand.end(), Index{0}) > tokens * top_k) {
    // one_row_each with more experts than pairs: some experts get nothing.
    --*std::max_element(demand.rbegin(), demand.rend());
  }
  std::vector<Index> by_demand = random.permutation(experts);
  std::stable_sort(by_demand.begin(), by_demand.end(),
                   [&](Index a, Index b) { return demand[at(a)] > demand[at(b)]; });

  // Busiest expert first, each to the tokens with the most free slots: succeeds whenever no demand
  // exceeds T and the sum fits (Gale-Ryser).
  std::vector<std::vector<Index>> chosen(at(tokens));
  for (const Index e : by_demand) {
    std::vector<Index> order = random.permutation(tokens);
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return chosen[at(a)].size() < chosen[at(b)].size(); });
    for (Index i = 0; i < demand[at(e)]; ++i) chosen[at(order[at(i)])].push_back(e);
  }

  std::vector<Index> ids(at(tokens * top_k), -1);
  for (Index t = 0; t < tokens; ++t) {
    const std::vector<Index> slots = random.permutation(top_k);
    for (std::size_t i = 0; i < chosen[at(t)].size(); ++i) {
      const bool dropped = missing > 0 && random.chance(missing);
      if (!dropped) ids[at(t * top_k + slots[i])] = chosen[at(t)][i];
    }
  }
  return ids;
}

std::vector<Index> aligned_offsets(const std::vector<Index>& counts, Index alignment,
                                   bool empty_gets_block) {
  std::vector<Index> offsets = {0};
  for (const Index count : counts) {
    const Index blocks = (count + alignment - 1) / alignment;
    offsets.push_back(offsets.back() + alignment * (count == 0 && empty_gets_block ? 1 : blocks));
  }
  return offsets;
}

}  // namespace dropless::conformance
