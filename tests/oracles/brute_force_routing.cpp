// SPDX-License-Identifier: Apache-2.0
// Routing by enumeration of subsets.
#include "tests/oracles/brute_force_routing.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "tests/oracles/routing_formula.h"

namespace dropless::oracles {
namespace {

using Index = std::int64_t;
using Row = std::vector<double>;

template <typename T>
std::vector<T> row_of(const std::vector<T>& matrix, Index row, Index width) {
  if (matrix.empty()) return {};
  return {matrix.begin() + row * width, matrix.begin() + (row + 1) * width};
}

// Who comes first among equal values (ROUTING-5).
Index tie_position(const dropless_profile& profile, Index count, Index index) {
  if (profile.tie_rule == DROPLESS_TIE_HIGHEST_INDEX) return count - 1 - index;
  if (profile.tie_rule == DROPLESS_TIE_DECLARED) return profile.tie_rank(count, index);
  return index;
}

struct Contest {
  const dropless_profile& profile;
  const Row& values;
  bool any_tie;  // equal values may stand in any order

  // a must stand before b.
  [[nodiscard]] bool beats(std::size_t a, std::size_t b) const {
    if (values[a] != values[b] || any_tie) return values[a] > values[b];
    const auto count = static_cast<Index>(values.size());
    return tie_position(profile, count, static_cast<Index>(a)) <
           tie_position(profile, count, static_cast<Index>(b));
  }
};

// All subsets with `size` members of the candidates of which no outside candidate beats a member.
std::vector<unsigned> right_subsets(const Contest& contest, unsigned candidates, int size) {
  std::vector<unsigned> right;
  const std::size_t count = contest.values.size();
  for (unsigned subset = 0; subset < (1u << count); ++subset) {
    if ((subset & ~candidates) != 0 || std::popcount(subset) != size) continue;
    bool beaten = false;
    for (std::size_t in = 0; in < count; ++in) {
      for (std::size_t out = 0; out < count; ++out) {
        const bool is_in = (subset >> in & 1u) != 0;
        const bool is_out = (candidates >> out & 1u) != 0 && (subset >> out & 1u) == 0;
        beaten = beaten || (is_in && is_out && contest.beats(out, in));
      }
    }
    if (!beaten) right.push_back(subset);
  }
  return right;
}

bool contains(const std::vector<unsigned>& subsets, unsigned subset) {
  for (unsigned candidate : subsets) {
    if (candidate == subset) return true;
  }
  return false;
}

bool close(long double expected, double got) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return expected == static_cast<long double>(got);
  return std::fabs(expected - got) <= 1e-13L * std::fabs(expected) + 1e-300L;
}

bool selects_on_logits(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX &&
         settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

// Group score by trying every choice of w members (ROUTING-4).
double group_score(const RoutingProblem& problem, const Row& selection, Index group) {
  const auto& settings = problem.settings;
  const Index size = settings.num_experts / settings.num_groups;
  const Row members = row_of(selection, group, size);
  Index width = 1;  // the best single member is the maximum
  if (settings.group_score == DROPLESS_GROUP_SCORE_TOP_SUM) {
    width = problem.profile.group_width == DROPLESS_GROUP_WIDTH_TWO
                ? 2
                : settings.top_k / settings.kept_groups;
    width = std::min(width, size);
  }
  double best = -std::numeric_limits<double>::infinity();
  for (unsigned subset = 0; subset < (1u << size); ++subset) {
    if (std::popcount(subset) != width) continue;
    double sum = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if ((subset >> i & 1u) != 0) sum += members[i];
    }
    best = std::fmax(best, sum);
  }
  return best;
}

std::string complain(const char* what, Index token) {
  return std::string(what) + " of token " + std::to_string(token);
}

// Experts that may be selected, after a check of the group scores and of the kept groups.
struct Candidates {
  unsigned experts;
  std::string wrong;
};
Candidates check_groups(const RoutingProblem& problem, const reference::Routing& got, Index token,
                        const Row& selection) {
  const auto& settings = problem.settings;
  const Index groups = settings.num_groups;
  if (groups <= 1) return {(1u << settings.num_experts) - 1, ""};
  const Row scores = row_of(got.group_scores, token, groups);
  for (Index g = 0; g < groups; ++g) {
    if (!close(group_score(problem, selection, g), scores[static_cast<std::size_t>(g)])) {
      return {0, complain("group score", token)};
    }
  }
  unsigned kept = 0;
  unsigned experts = 0;
  const Index size = settings.num_experts / groups;
  for (Index g = 0; g < groups; ++g) {
    if (got.group_kept[static_cast<std::size_t>(token * groups + g)] == 0) continue;
    kept |= 1u << g;
    for (Index i = 0; i < size; ++i) experts |= 1u << (g * size + i);
  }
  const Contest contest = {problem.profile, scores, problem.profile.tie_rule == DROPLESS_TIE_ANY};
  const auto right =
      right_subsets(contest, (1u << groups) - 1, static_cast<int>(settings.kept_groups));
  return {experts, contains(right, kept) ? "" : complain("kept groups", token)};
}

std::string check_selection(const RoutingProblem& problem, const reference::Routing& got,
                            Index token, const std::vector<Index>& ids) {
  const Index experts = problem.settings.num_experts;
  const Row logits = row_of(problem.logits, token, experts);
  const Row scores = row_of(got.scores, token, experts);
  const Row selection = row_of(got.selection, token, experts);
  for (std::size_t e = 0; e < logits.size(); ++e) {
    double expected = logits[e];
    if (!selects_on_logits(problem.settings)) {
      expected = static_cast<double>(static_cast<float>(scores[e]));
      if (!problem.expert_bias.empty()) expected += problem.expert_bias[e];
      if (logits[e] == -INFINITY) expected = -INFINITY;
    }
    if (selection[e] != expected) return complain("selection score", token);
  }
  const Candidates candidates = check_groups(problem, got, token, selection);
  if (!candidates.wrong.empty()) return candidates.wrong;

  unsigned chosen = 0;
  int unmasked = 0;
  for (Index id : ids) chosen |= 1u << id;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    unmasked += (candidates.experts >> e & 1u) != 0 && logits[e] != -INFINITY;
  }
  // Too few unmasked experts: the masked picks may be any (ROUTING-7).
  const bool any_tie =
      problem.profile.tie_rule == DROPLESS_TIE_ANY || unmasked < static_cast<int>(ids.size());
  const Contest contest = {problem.profile, selection, any_tie};
  const auto right =
      right_subsets(contest, candidates.experts, static_cast<int>(problem.settings.top_k));
  if (!any_tie && right.size() != 1) return complain("no single right selection", token);
  if (!contains(right, chosen)) return complain("selection", token);

  for (std::size_t j = 1; j < ids.size(); ++j) {
    const auto before = static_cast<std::size_t>(ids[j - 1]);
    const auto after = static_cast<std::size_t>(ids[j]);
    const bool wrong =
        (problem.profile.selection_order == DROPLESS_ORDER_DESCENDING_SCORE &&
         contest.beats(after, before)) ||
        (problem.profile.selection_order == DROPLESS_ORDER_ASCENDING_ID && after < before);
    if (wrong) return complain("output order", token);
  }
  return "";
}

std::string check_weights(const RoutingProblem& problem, const reference::Routing& got, Index token,
                          const std::vector<Index>& ids) {
  const auto& settings = problem.settings;
  const Row row = row_of(problem.logits, token, settings.num_experts);
  const std::vector<long double> logits(row.begin(), row.end());
  const auto scores = score_formula(settings, logits);
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const auto index = static_cast<std::size_t>(token) * scores.size() + e;
    if (!close(scores[e], got.scores[index])) return complain("score", token);
  }
  auto weights = weight_formula(settings, logits, ids);
  long double sum = 0;
  for (std::size_t j = 0; j < ids.size(); ++j) {
    if (ids[j] < 0) continue;
    const auto e = static_cast<std::size_t>(ids[j]);
    sum += scores[e];
    if (!problem.expert_scale.empty()) weights[j] *= problem.expert_scale[e];
  }
  for (std::size_t j = 0; j < ids.size(); ++j) {
    const double weight = got.weights[static_cast<std::size_t>(token) * ids.size() + j];
    // A pick that is masked, or absent, weighs exactly 0 (ROUTING-7 and 13).
    const bool nothing = ids[j] < 0 || row[static_cast<std::size_t>(ids[j])] == -INFINITY;
    if (nothing ? weight != 0 : !close(weights[j], weight)) {
      std::ostringstream text;
      text << complain("weight", token) << " slot " << j << ": expected " << weights[j] << ", got "
           << weight;
      return text.str();
    }
  }
  const double got_sum = got.weight_sum[static_cast<std::size_t>(token)];
  if (!selects_on_logits(settings) && !close(sum, got_sum)) return complain("weight sum", token);
  return "";
}

// ROUTING-8: at least one weight is NaN. Where the ids were given (ROUTING-13) a NaN score that
// nobody selected need not show: then a NaN is demanded only if the formula has one.
std::string check_nan_row(const RoutingProblem& problem, const reference::Routing& got, Index token,
                          const std::vector<Index>& ids) {
  bool demanded = problem.given_ids.empty();
  if (!demanded) {
    const Row row = row_of(problem.logits, token, problem.settings.num_experts);
    const std::vector<long double> logits(row.begin(), row.end());
    const auto weights = weight_formula(problem.settings, logits, ids);
    for (std::size_t j = 0; j < ids.size(); ++j) {
      demanded = demanded || (ids[j] >= 0 && std::isnan(weights[j]));
    }
  }
  bool nan = false;
  for (std::size_t j = 0; j < ids.size(); ++j) {
    nan = nan || std::isnan(got.weights[static_cast<std::size_t>(token) * ids.size() + j]);
  }
  return nan || !demanded ? "" : complain("no NaN weight", token);
}

std::string check_token(const RoutingProblem& problem, const reference::Routing& got, Index token) {
  const Index top_k = problem.settings.top_k;
  const std::vector<Index> ids = row_of(got.ids, token, top_k);
  if (!problem.token_mask.empty() && problem.token_mask[static_cast<std::size_t>(token)] == 0) {
    for (Index j = 0; j < top_k; ++j) {
      const auto index = static_cast<std::size_t>(token * top_k + j);
      if (got.ids[index] != -1 || got.weights[index] != 0) return complain("masked token", token);
    }
    return "";
  }
  if (!problem.given_ids.empty()) {
    if (ids != row_of(problem.given_ids, token, top_k)) return complain("given ids", token);
  } else {
    if (std::set<Index>(ids.begin(), ids.end()).size() != ids.size()) {
      return complain("repeated id", token);
    }
    for (Index id : ids) {
      if (id < 0 || id >= problem.settings.num_experts) return complain("id range", token);
    }
  }
  if (is_nan_row(problem, token)) return check_nan_row(problem, got, token, ids);
  if (problem.given_ids.empty()) {
    if (auto wrong = check_selection(problem, got, token, ids); !wrong.empty()) return wrong;
  }
  return check_weights(problem, got, token, ids);
}

}  // namespace

bool is_nan_row(const RoutingProblem& problem, Index token) {
  const bool softmax = problem.settings.score_function == DROPLESS_SCORE_SOFTMAX;
  bool finite = false;
  for (double l : row_of(problem.logits, token, problem.settings.num_experts)) {
    if (std::isnan(l) || (softmax && l == INFINITY)) return true;
    finite = finite || std::isfinite(l);
  }
  return softmax && !finite;
}

std::string check_routing(const RoutingProblem& problem, const reference::Routing& got) {
  for (Index token = 0; token < problem.tokens; ++token) {
    if (auto wrong = check_token(problem, got, token); !wrong.empty()) return wrong;
  }
  for (Index e = 0; e < problem.settings.num_experts; ++e) {
    Index count = 0;
    for (Index id : got.ids) count += id == e;
    if (got.tokens_per_expert.at(static_cast<std::size_t>(e)) != count) return "tokens per expert";
  }
  return "";
}

void take_census(const RoutingProblem& problem, const reference::Routing& got,
                 RoutingCensus& census) {
  const auto& s = problem.settings;
  for (Index token = 0; token < problem.tokens; ++token) {
    if (!problem.token_mask.empty() && problem.token_mask[static_cast<std::size_t>(token)] == 0) {
      continue;
    }
    if (is_nan_row(problem, token)) {
      ++census.nan_rows;
      continue;
    }
    if (!problem.given_ids.empty()) continue;
    const Row selection = row_of(got.selection, token, s.num_experts);
    const std::vector<Index> ids = row_of(got.ids, token, s.top_k);
    const std::set<Index> chosen(ids.begin(), ids.end());
    bool tied = false;
    bool short_row = false;
    for (Index in : chosen) {
      const double value = selection[static_cast<std::size_t>(in)];
      short_row = short_row || value == -INFINITY;
      for (Index out = 0; out < s.num_experts; ++out) {
        const bool kept = s.num_groups <= 1 ||
                          got.group_kept[static_cast<std::size_t>(
                              token * s.num_groups + out / (s.num_experts / s.num_groups))] != 0;
        tied = tied || (kept && chosen.count(out) == 0 && value > -INFINITY &&
                        selection[static_cast<std::size_t>(out)] == value);
      }
    }
    census.tied_boundaries += tied;
    census.short_rows += short_row;
    if (s.num_groups <= 1) continue;
    bool tied_groups = false;
    for (Index a = 0; a < s.num_groups; ++a) {
      for (Index b = 0; b < s.num_groups; ++b) {
        const auto at = [&](Index g) { return static_cast<std::size_t>(token * s.num_groups + g); };
        tied_groups = tied_groups || (got.group_kept[at(a)] != 0 && got.group_kept[at(b)] == 0 &&
                                      got.group_scores[at(a)] == got.group_scores[at(b)]);
      }
    }
    census.tied_groups += tied_groups;
  }
}

}  // namespace dropless::oracles
