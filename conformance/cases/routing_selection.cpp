// SPDX-License-Identifier: Apache-2.0
// Routing cases about which experts are selected: published models, groups, ties, precision, bias.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/cases/routing_setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- routing.model

void run_model(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data =
      model_data(run.model(), run.integer("tokens"), logits_dtype(run.word("dtype")), random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  if (data.tokens >= 16 && !data.bias.empty()) {
    RoutingData other = data;
    other.bias.clear();
    run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                        "the bias changes the selection of most tokens");
  }
  if (data.tokens >= 16 && data.settings.num_groups > 1) {
    RoutingData other = data;
    other.settings.num_groups = other.settings.kept_groups = 1;
    run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                        "the group limit changes the selection of most tokens");
  }
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call);
}

std::vector<Values> model_cases(const std::vector<std::string>& names,
                                const std::vector<std::pair<const char*, const char*>>& styles) {
  std::vector<Values> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& [dtype, tokens] = styles[i % styles.size()];
    out.push_back({{"model", names[i]}, {"dtype", dtype}, {"tokens", tokens}, {"seed", "1"}});
  }
  return out;
}

Family model_family() {
  Family family;
  family.name = "routing.model";
  family.purpose =
      "Routing with the settings of a published model gives its experts, weights, scores and "
      "counts; ties, NaN and masks are left to other families";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6a", "ROUTING-6b", "ROUTING-6c",
                    "ROUTING-6d", "ROUTING-6g", "ROUTING-10"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       integer_parameter("tokens", 1, 65536, "tokens"),
                       integer_parameter("seed", 0, 1 << 30, "another draw of the data")};
  const std::vector<std::string> few = {"deepseek-v3", "mixtral-8x7b",  "qwen3-30b-a3b",
                                        "gpt-oss-20b", "llama-4-scout", "deepseek-v4-flash"};
  const std::vector<std::string> all = top_k_model_names();
  family.select =
      tiers(model_cases(few, {{"fp32", "33"}, {"bf16", "65"}}),
            model_cases(all, {{"bf16", "63"}, {"fp32", "33"}, {"bf16", "1"}, {"fp32", "129"}}),
            product({{"model", all},
                     {"dtype", {"fp32", "bf16"}},
                     {"tokens", {"1", "31", "257", "1024"}},
                     {"seed", {"1", "2"}}}));
  family.run = run_model;
  return family;
}

// ---- routing.groups

// No bias, one of both signs, or one that makes every compared value negative.
std::vector<double> bias_of_kind(std::string_view kind, const dropless_route_settings& settings,
                                 Random& random) {
  if (kind == "none") return {};
  std::vector<double> bias = matching_bias(settings, random);
  if (kind == "negative") {
    for (double& b : bias) b = tolerances::round_to(DROPLESS_FP32, b - 4);
  }
  return bias;
}

void run_groups(CaseRun& run) {
  Random random = run.random("data");
  const Index groups = run.integer("groups"), size = run.integer("group_size");
  RoutingData data;
  data.settings = route_settings(groups * size, run.integer("top_k"), run.word("score"), false);
  data.settings.num_groups = groups;
  data.settings.kept_groups = run.integer("kept");
  const bool summed = run.word("group_score") == "top_sum";
  data.settings.group_score = summed ? DROPLESS_GROUP_SCORE_TOP_SUM : DROPLESS_GROUP_SCORE_MAX;
  data.tokens = 65;
  data.bias = bias_of_kind(run.word("bias"), data.settings, random);
  draw_clear_rows(run, data, normal_row(data, random, 1.5));

  if (data.settings.kept_groups < groups && size > 1) {
    RoutingData other = data;
    other.settings.num_groups = other.settings.kept_groups = 1;
    run.judge().require(share_of_other_selections(run, data, other) > 0.25,
                        "the group limit changes selections");
    other = data;
    other.settings.group_score = summed ? DROPLESS_GROUP_SCORE_MAX : DROPLESS_GROUP_SCORE_TOP_SUM;
    const Index width = std::min(group_width(data.settings, run.profile()), size);
    run.judge().require(width == 1 || !summed || share_of_other_selections(run, data, other) > 0.1,
                        "maximum and sum keep different groups");
  }
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = summed ? "ROUTING-4c" : "ROUTING-4b"});

  const reference::Routing expected = expected_routing(run, data);
  const std::vector<Index> ids = call.ids->integers();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= data.experts()) continue;
    const std::size_t token = i / at(data.top_k());
    const bool kept = expected.group_kept[token * at(groups) + at(ids[i] / size)] != 0;
    run.judge().holds("ROUTING-4a", "group of a selected expert", kept, "a kept group",
                      fmt::format("expert {} of group {}", ids[i], ids[i] / size),
                      element_name({data.tokens, data.top_k()}, static_cast<Index>(i)));
  }
}

Values group_case(const char* score, const char* group_score, const char* groups, const char* size,
                  const char* kept, const char* top_k, const char* bias) {
  return {{"score", score},   {"group_score", group_score},
          {"groups", groups}, {"group_size", size},
          {"kept", kept},     {"top_k", top_k},
          {"bias", bias}};
}

Family groups_family() {
  Family family;
  family.name = "routing.groups";
  family.purpose =
      "Group-limited routing keeps the right groups and never leaves them, also where compared "
      "values are negative or groups are small; ties between groups are left to routing.ties";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-4a", "ROUTING-4b", "ROUTING-4c",
                    "ROUTING-5a", "ROUTING-5d", "ROUTING-6a", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", {"softmax", "sigmoid", "sqrt_softplus"}, "score function"),
      word_parameter("group_score", {"top_sum", "max"}, "score of a group"),
      integer_parameter("groups", 2, 64, "number of groups"),
      integer_parameter("group_size", 1, 64, "experts of a group"),
      integer_parameter("kept", 1, 64, "groups in which experts are selected"),
      integer_parameter("top_k", 1, 64, "selected experts, divisible by kept for top_sum"),
      word_parameter("bias", {"none", "mixed", "negative"}, "expert bias")};
  family.select =
      tiers({group_case("sigmoid", "top_sum", "8", "8", "4", "8", "negative"),
             group_case("softmax", "max", "8", "8", "3", "6", "none")},
            {group_case("sigmoid", "top_sum", "4", "16", "2", "8", "mixed"),       // w = 4
             group_case("sqrt_softplus", "top_sum", "8", "4", "2", "8", "none"),   // K = all kept
             group_case("softmax", "top_sum", "8", "4", "1", "3", "negative"),     // one group kept
             group_case("sigmoid", "top_sum", "4", "4", "4", "4", "mixed"),        // all kept
             group_case("sqrt_softplus", "top_sum", "8", "1", "4", "4", "mixed"),  // groups of one
             group_case("sigmoid", "max", "16", "4", "4", "7", "negative"),
             group_case("softmax", "top_sum", "16", "4", "4", "8", "mixed"),
             group_case("sqrt_softplus", "max", "2", "3", "1", "3", "negative")});
  family.run = run_groups;
  return family;
}

// ---- routing.ties

DrawRow tied_row(std::string_view pattern, Index top_k, Random& random) {
  if (pattern == "all_equal") {
    return [](std::span<double> row) { std::fill(row.begin(), row.end(), 0.5); };
  }
  if (pattern == "levels") {
    return [&random](std::span<double> row) {
      for (double& l : row) l = static_cast<double>(random.between(-1, 2));
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
    double weakest = INFINITY;
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
  family.select = tiers({some.begin(), some.begin() + 2}, some, all);
  family.run = run_ties;
  return family;
}

// ---- routing.precision

void run_precision(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(64, 8, run.word("score"), false);
  data.tokens = 65;
  draw_clear_rows(run, data, [&](std::span<double> row) {
    const double base = static_cast<double>(random.between(-16, 16)) / 16;
    const std::vector<Index> rank = random.permutation(static_cast<Index>(row.size()));
    for (std::size_t e = 0; e < row.size(); ++e) {
      row[e] = base + static_cast<double>(rank[e]) * 0x1p-14;
    }
  });
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = "ROUTING-2c", .order = "ROUTING-2c"});
}

Family precision_family() {
  Family family;
  family.name = "routing.precision";
  family.purpose =
      "Logits 2^-14 apart are told apart: neither logits nor scores pass through bf16, fp16 or "
      "TF32 before they are compared";
  family.clauses = {"ROUTING-1e", "ROUTING-2c", "ROUTING-5a", "ROUTING-6a",
                    "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  const std::vector<Values> all = product({{"score", score_words()}});
  family.select = tiers({all[2]}, all);
  family.run = run_precision;
  return family;
}

// ---- routing.bias

void run_bias(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(32, 4, run.word("score"), run.word("renormalize") == "yes");
  data.settings.scaling_factor = 2.5;
  data.tokens = 65;
  const bool dominating = run.word("size") == "dominating";
  for (Index e = 0; e < data.experts(); ++e) {
    const double size = dominating ? 8 : is_softmax(data.settings) ? 0.2 : 0.4;
    data.bias.push_back(tolerances::round_to(DROPLESS_FP32, size * random.normal()));
  }
  draw_clear_rows(run, data, normal_row(data, random, 1.5));
  RoutingData other = data;
  other.bias.clear();
  run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                      "the bias changes the selection of most tokens");
  other = data;
  for (double& b : other.bias) b = -b;
  run.judge().require(share_of_other_selections(run, data, other) > 0.5,
                      "the sign of the bias matters to most tokens");
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = "ROUTING-2a", .weights = "ROUTING-2b"});
}

Family bias_family() {
  Family family;
  family.name = "routing.bias";
  family.purpose =
      "The expert bias decides the selection with its sign and enters neither weights nor scores, "
      "also where it is much larger than the scores";
  family.clauses = {"ROUTING-1e", "ROUTING-2a", "ROUTING-2b",
                    "ROUTING-5a", "ROUTING-5d", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", {"sigmoid", "sqrt_softplus", "softmax"}, "score function"),
      word_parameter("size", {"dominating", "moderate"}, "bias against scores"),
      word_parameter("renormalize", {"yes", "no"}, "renormalisation")};
  const std::vector<Axis> axes = {{"score", {"sigmoid", "sqrt_softplus", "softmax"}},
                                  {"size", {"dominating", "moderate"}},
                                  {"renormalize", {"yes", "no"}}};
  const std::vector<Values> some = pairwise(axes);
  family.select = tiers({some[0]}, some, product(axes));
  family.run = run_bias;
  return family;
}

}  // namespace

void add_routing_selection(Registry& registry) {
  registry.add(model_family());
  registry.add(groups_family());
  registry.add(ties_family());
  registry.add(precision_family());
  registry.add(bias_family());
}

}  // namespace dropless::conformance
