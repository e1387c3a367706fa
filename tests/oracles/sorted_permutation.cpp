// SPDX-License-Identifier: Apache-2.0
// The permutation by sorting.
#include "tests/oracles/sorted_permutation.h"

#include <algorithm>
#include <tuple>

namespace dropless::oracles {
namespace {

using Index = std::int64_t;
using Triple = std::tuple<Index, Index, Index>;  // expert, token, slot

constexpr Index kPadding = -1;

// What each row of an unlimited buffer holds: the flat pair t * K + slot, or padding. Zone ends are
// appended to `ends`.
std::vector<Index> unlimited_rows(const PermutationProblem& problem, std::vector<Index>& ends) {
  std::vector<Triple> triples;
  // Slots first, so that only a correct sort can produce the order.
  for (Index slot = problem.top_k; slot-- > 0;) {
    for (Index token = 0; token < problem.tokens; ++token) {
      const Index id = problem.ids[static_cast<std::size_t>(token * problem.top_k + slot)];
      if (id >= 0) triples.emplace_back(id, token, slot);
    }
  }
  std::stable_sort(triples.begin(), triples.end());
  const Index block = problem.profile.alignment == 0 ? 1 : problem.profile.alignment;
  std::vector<Index> rows;
  auto next = triples.begin();
  for (Index expert = 0; expert < problem.num_experts; ++expert) {
    const bool empty = next == triples.end() || std::get<0>(*next) != expert;
    for (; next != triples.end() && std::get<0>(*next) == expert; ++next) {
      rows.push_back(std::get<1>(*next) * problem.top_k + std::get<2>(*next));
    }
    if (empty && problem.profile.empty_expert == DROPLESS_EMPTY_EXPERT_ONE_BLOCK) {
      rows.push_back(kPadding);
    }
    while (static_cast<Index>(rows.size()) % block != 0) rows.push_back(kPadding);
    ends.push_back(static_cast<Index>(rows.size()));
  }
  return rows;
}

}  // namespace

std::string check_plan(const PermutationProblem& problem, const reference::PermutePlan& got) {
  std::vector<Index> ends;
  std::vector<Index> rows = unlimited_rows(problem, ends);
  const auto demand = static_cast<Index>(rows.size());
  if (got.demand != demand) return "demand";
  if (problem.row_capacity >= 0 && demand > problem.row_capacity) {
    rows.resize(static_cast<std::size_t>(problem.row_capacity));
  }
  if (got.source != rows) return "source";
  const auto kept = static_cast<Index>(rows.size());
  std::vector<Index> offsets = {0};
  for (Index end : ends) offsets.push_back(std::min(end, kept));
  if (got.offsets != offsets) return "offsets";
  std::vector<Index> counts(static_cast<std::size_t>(problem.num_experts), 0);
  std::vector<Index> row_map(problem.ids.size(), -1);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == kPadding) continue;
    const auto pair = static_cast<std::size_t>(rows[row]);
    row_map[pair] = static_cast<Index>(row);
    ++counts[static_cast<std::size_t>(problem.ids[pair])];
  }
  if (got.tokens_per_expert != counts) return "tokens per expert";
  if (got.row_map != row_map) return "row map";
  if (got.tokens != problem.tokens || got.top_k != problem.top_k ||
      got.num_experts != problem.num_experts || got.rows() != kept) {
    return "sizes";
  }
  return "";
}

}  // namespace dropless::oracles
