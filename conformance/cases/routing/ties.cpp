// SPDX-License-Identifier: Apache-2.0
// Routing cases of the tie rule, among experts and among groups.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "conformance/cases/routing/setup.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

bool edge_is_tied(std::span<const double> row, Index top_k) {
  std::vector<double> sorted(row.begin(), row.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return sorted[at(top_k - 1)] == sorted[at(top_k)];
}

DrawRow tied_row(std::string_view pattern, Index top_k, Random& random) {
  if (pattern == "all_equal") {
    return [](std::span<double> row) { std::fill(row.begin(), row.end(), 0.5); };
  }
  if (pattern == "levels") {
    return [top_k, &random](std::span<double> row) {
      do {  // one row in four would end a level exactly where the selection ends
        for (double& l : row) l = static_cast<double>(random.between(-1, 2));
      } while (!edge_is_tied(row, top_k));
    };
  }
  if (pattern == "signed_zeros") {  // +0 and -0 are equal (GENERAL-2)
    return [&random](std::span<double> row) {
      for (double& l : row) l = random.chance(0.5) ? 0.0 : -0.0;
    };
  }
  // boundary: K - 1 different leaders, then K + 2 equal ones, of which one is selected.
  return [top_k, &random](std::span<double> row) {
    const std::vector<Index> order = random.permutation(static_cast<Index>(row.size()));
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto rank = static_cast<Index>(i);
      const double level = rank < top_k - 1       ? 1 + 0.25 * static_cast<double>(rank)
                           : rank < 2 * top_k + 1 ? 0.5
                                                  : -0.25 * static_cast<double>(rank);
      row[at(order[i])] = level;
    }
  };
}

// Share of tokens with an expert that is as good as the last selected one and was not selected.
double share_of_ties(const RoutingData& data, const reference::Routing& routing) {
  const Index k = data.top_k();
  Index tied = 0;
  for (Index t = 0; t < data.tokens; ++t) {
    const auto ids = std::span(routing.ids).subspan(at(t * k), at(k));
    double weakest = std::numeric_limits<double>::infinity();
    for (const Index id : ids) {
      weakest = std::min(weakest, routing.selection[at(t * data.experts() + id)]);
    }
    bool found = false;
    for (Index e = 0; e < data.experts(); ++e) {
      found = found || (routing.selection[at(t * data.experts() + e)] == weakest &&
                        std::find(ids.begin(), ids.end(), e) == ids.end());
    }
    tied += found;
  }
  return static_cast<double>(tied) / static_cast<double>(data.tokens);
}

// TIE_ANY: the compared values of the ids are those of a top-k, in the declared order.
void judge_values_of_ties(CaseRun& run, const RoutingData& data, const RouteCall& call,
                          const reference::Routing& expected, const std::vector<bool>& valid,
                          const std::string& clause) {
  const std::vector<Index> got = call.ids->integers();
  for (Index t = 0; t < data.tokens; ++t) {
    if (!valid[at(t)]) continue;
    std::vector<double> wanted, found;
    for (Index i = t * data.top_k(); i < (t + 1) * data.top_k(); ++i) {
      wanted.push_back(expected.selection[at(t * data.experts() + expected.ids[at(i)])]);
      found.push_back(expected.selection[at(t * data.experts() + got[at(i)])]);
    }
    if (run.profile().selection_order != DROPLESS_ORDER_DESCENDING_SCORE) {
      std::sort(wanted.begin(), wanted.end());
      std::sort(found.begin(), found.end());
    }
    run.judge().holds(clause, "compared values of the ids", wanted == found,
                      "those of a top-k, in the declared order",
                      list_of(std::span(got).subspan(at(t * data.top_k()), at(data.top_k()))),
                      fmt::format("[{}]", t));
  }
}

void run_ties(CaseRun& run) {
  Random random = run.random("data");
  const bool grouped = run.word("groups") == "yes";
  RoutingData data;
  data.settings = route_settings(16, 4, run.word("score"), false);
  if (grouped) data.settings.num_groups = 4, data.settings.kept_groups = 2;  // w = 2
  data.tokens = 33;
  data.dtype = logits_dtype(run.word("dtype"));
  if (!is_softmax(data.settings)) data.bias.assign(16, 0.25);
  draw_clear_rows(run, data, tied_row(run.word("pattern"), 4, random), Ties::allowed);

  const reference::Routing expected = expected_routing(run, data);
  run.judge().require(share_of_ties(data, expected) >= 0.5, "ties at the edge of the selection");
  RouteCall call(run, data);
  call.perform();
  const std::vector<bool> valid = judge_distinct_ids(run, data, call);
  const std::string clause = run.word("pattern") == "signed_zeros" ? "GENERAL-2"
                             : grouped                             ? "ROUTING-5c"
                                                                   : "ROUTING-5b";
  if (run.profile().tie_rule == DROPLESS_TIE_ANY) {
    judge_values_of_ties(run, data, call, expected, valid, clause);
  } else if (run.profile().selection_order == DROPLESS_ORDER_ANY) {
    const std::vector<Index> got = call.ids->integers();
    for (Index t = 0; t < data.tokens; ++t) {
      const auto ids = std::span(got).subspan(at(t * 4), 4);
      const auto wanted = std::span(expected.ids).subspan(at(t * 4), 4);
      run.judge().holds(clause, "selected experts", sorted_ids(ids) == sorted_ids(wanted),
                        list_of(wanted), list_of(ids), fmt::format("[{}]", t));
    }
  } else {
    run.judge().exact(clause, "ids", *call.ids, expected.ids);
  }
  judge_weights(run, data, call, valid, weight_clause(data));
  judge_counts(run, data, call);
}

Family ties_family() {
  Family family;
  family.name = "routing.ties";
  family.purpose =
      "Equal compared values of experts and of groups are ordered by the declared tie rule, in "
      "the selection and in the output";
  family.clauses = {"GENERAL-2",  "ROUTING-2b", "ROUTING-5a", "ROUTING-5b", "ROUTING-5c",
                    "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", score_words(), "score function"),
      word_parameter("pattern", {"levels", "boundary", "all_equal", "signed_zeros"},
                     "where values are equal"),
      word_parameter("groups", {"no", "yes"}, "4 groups of 4, 2 kept"),
      word_parameter("dtype", {"fp32", "bf16"}, "format of the logits")};
  const auto allowed = [](const Values& values) {
    if (value_of(values, "groups") == "no") return true;
    return value_of(values, "score") != "softmax_selected" &&
           value_of(values, "pattern") != "boundary";
  };
  const std::vector<Axis> axes = {
      {"score", {"sigmoid", "softmax", "softmax_selected", "sqrt_softplus"}},
      {"pattern", {"levels", "boundary", "all_equal", "signed_zeros"}},
      {"groups", {"no", "yes"}},
      {"dtype", {"fp32", "bf16"}}};
  std::vector<Values> all = product(axes);
  std::erase_if(all, [&](const Values& values) { return !allowed(values); });
  const std::vector<Values> some = pairwise(axes, allowed);
  family.objection = [=](const Values& values) -> std::string {
    return allowed(values) ? ""
                           : "a softmax over the selected is neither grouped nor tied in this way";
  };
  family.select = tiers({some.begin(), some.begin() + 2}, some, all);
  family.run = run_ties;
  return family;
}

}  // namespace

void add_routing_ties(Registry& registry) {
  registry.add(ties_family());
}

}  // namespace dropless::conformance
