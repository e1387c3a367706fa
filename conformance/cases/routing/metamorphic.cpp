// SPDX-License-Identifier: Apache-2.0
// Routing cases that compare two calls: adding a constant, a uniform bias, other orders.
#include <algorithm>
#include <cmath>

#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

bool ordered_by_value(const CaseRun& run) {
  return run.profile().selection_order == DROPLESS_ORDER_DESCENDING_SCORE;
}

// `ids` as the profile would put them out: where the order is not by value, only sets compare.
std::vector<Index> comparable(const CaseRun& run, std::vector<Index> ids, Index top_k) {
  if (ordered_by_value(run)) return ids;
  for (std::size_t i = 0; i < ids.size(); i += at(top_k)) {
    std::sort(ids.begin() + static_cast<Index>(i), ids.begin() + static_cast<Index>(i) + top_k);
  }
  return ids;
}

void judge_same_ids(CaseRun& run, const char* clause, const std::vector<Index>& got,
                    const std::vector<Index>& expected, Index top_k) {
  const std::vector<Index> a = comparable(run, got, top_k), b = comparable(run, expected, top_k);
  for (std::size_t i = 0; i < a.size(); i += at(top_k)) {
    const auto row = std::span(a).subspan(i, at(top_k)), other = std::span(b).subspan(i, at(top_k));
    run.judge().holds(clause, "ids against those of the first call",
                      std::equal(row.begin(), row.end(), other.begin()), list_of(other),
                      list_of(row), "[" + std::to_string(i / at(top_k)) + "]");
  }
}

// Multiples of 2^-10 of moderate size: adding c stays exact in fp32.
DrawRow dyadic_row(Random& random) {
  return [&random](std::span<double> row) {
    for (double& l : row) l = std::nearbyint(2 * random.normal() * 1024) / 1024;
  };
}

RoutingData basic_data(const CaseRun& run) {
  RoutingData data;
  data.settings = route_settings(32, 4, run.word("score"), run.word("score") == "sigmoid");
  data.settings.scaling_factor = 2.5;
  data.tokens = 33;
  return data;
}

// ---- routing.shift

void run_shift(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = basic_data(run);
  draw_clear_rows(run, data, dyadic_row(random));
  RoutingData shifted = data;
  for (Index t = 0; t < data.tokens; ++t) {
    const double c = static_cast<double>(random.between(-1 << 18, 1 << 18)) / 1024;
    for (Index e = 0; e < data.experts(); ++e) shifted.logits[at(t * data.experts() + e)] += c;
  }
  run.judge().require(representable(DROPLESS_FP32, shifted.logits), "the sums are exact");
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, shifted);
  call.perform();
  judge_same_ids(run, "ROUTING-11a", call.ids->integers(), plain.ids->integers(), data.top_k());
  const std::vector<bool> valid = judge_distinct_ids(run, data, call);
  judge_weights(run, data, call, valid, "ROUTING-11a");
  judge_scores(run, data, call, valid, "ROUTING-11a");
  judge_route(run, data, plain);
}

// ---- routing.uniform_bias

void run_uniform_bias(CaseRun& run) {
  Random random = run.random("data");
  RoutingData biased = basic_data(run);
  biased.bias.assign(at(biased.experts()), static_cast<double>(run.integer("bias")) / 8);
  draw_clear_rows(run, biased, dyadic_row(random));  // d with the ulp of the larger sums
  RoutingData data = biased;
  data.bias.clear();
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, biased);
  call.perform();
  judge_same_ids(run, "ROUTING-11b", call.ids->integers(), plain.ids->integers(), data.top_k());
  const std::vector<bool> valid = judge_distinct_ids(run, biased, call);
  judge_weights(run, biased, call, valid, "ROUTING-11b");
  judge_route(run, data, plain);
}

// ---- routing.permute_experts

// Where each expert goes: groups change places, and so do the members of each.
std::vector<Index> expert_places(const RoutingData& data, Random& random) {
  const Index groups = std::max<Index>(data.settings.num_groups, 1);
  const Index size = data.experts() / groups;
  const std::vector<Index> group_place = random.permutation(groups);
  std::vector<Index> place(at(data.experts()));
  for (Index g = 0; g < groups; ++g) {
    const std::vector<Index> member_place = random.permutation(size);
    for (Index i = 0; i < size; ++i) {
      place[at(g * size + i)] = group_place[at(g)] * size + member_place[at(i)];
    }
  }
  return place;
}

void run_permute_experts(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = basic_data(run);
  if (run.word("groups") == "yes") data.settings.num_groups = 8, data.settings.kept_groups = 2;
  if (!over_selected(data.settings)) data.bias = matching_bias(data.settings, random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  const std::vector<Index> place = expert_places(data, random);
  RoutingData moved = data;
  for (Index e = 0; e < data.experts(); ++e) {
    if (!data.bias.empty()) moved.bias[at(place[at(e)])] = data.bias[at(e)];
    for (Index t = 0; t < data.tokens; ++t) {
      moved.logits[at(t * data.experts() + place[at(e)])] = data.logits[at(t * data.experts() + e)];
    }
  }
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, moved);
  call.perform();
  judge_route(run, data, plain);
  std::vector<Index> expected_ids = plain.ids->integers();
  for (Index& id : expected_ids) {
    if (id >= 0 && id < data.experts()) id = place[at(id)];
  }
  judge_same_ids(run, "ROUTING-11c", call.ids->integers(), expected_ids, data.top_k());
  const std::vector<bool> valid = judge_distinct_ids(run, moved, call);
  judge_weights(run, moved, call, valid, "ROUTING-11c");
  const std::vector<Index> counts = plain.counts->integers();
  std::vector<Index> expected_counts(counts.size());
  for (std::size_t e = 0; e < counts.size(); ++e) expected_counts[at(place[e])] = counts[e];
  run.judge().exact("ROUTING-11c", "tokens_per_expert", *call.counts, expected_counts);
}

// ---- routing.permute_tokens

void run_permute_tokens(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = basic_data(run);
  data.tokens = 67;
  if (!over_selected(data.settings)) data.bias = matching_bias(data.settings, random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  const std::vector<Index> source = random.permutation(data.tokens);
  RoutingData moved = data;
  for (Index t = 0; t < data.tokens; ++t) {
    const std::span<const double> row = data.row(source[at(t)]);
    std::copy(row.begin(), row.end(), moved.logits.begin() + t * data.experts());
  }
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, moved);
  call.perform();
  judge_route(run, data, plain);
  const std::vector<Index> ids = plain.ids->integers();
  std::vector<Index> expected_ids;
  for (const Index t : source) {
    expected_ids.insert(expected_ids.end(), ids.begin() + t * data.top_k(),
                        ids.begin() + (t + 1) * data.top_k());
  }
  judge_same_ids(run, "ROUTING-11d", call.ids->integers(), expected_ids, data.top_k());
  const std::vector<bool> valid = judge_distinct_ids(run, moved, call);
  judge_weights(run, moved, call, valid, "ROUTING-11d");
  run.judge().exact("ROUTING-11d", "tokens_per_expert", *call.counts, plain.counts->integers());
}

Family relation(const char* name, const char* clause, const char* purpose, void (*run)(CaseRun&)) {
  Family family;
  family.name = name;
  family.purpose = purpose;
  family.clauses = {clause,       "ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.run = run;
  return family;
}

Family shift_family() {
  Family family = relation("routing.shift", "ROUTING-11a",
                           "Softmax routing is the same after a constant was added to the logits "
                           "of a token, where that addition is exact",
                           run_shift);
  family.parameters = {word_parameter("score", {"softmax", "softmax_selected"}, "softmax order")};
  family.select = tiers({}, product({{"score", {"softmax", "softmax_selected"}}}));
  return family;
}

Family uniform_bias_family() {
  Family family = relation("routing.uniform_bias", "ROUTING-11b",
                           "A bias that is the same for all experts changes neither ids nor "
                           "weights; rows whose margins it swallows are not drawn",
                           run_uniform_bias);
  family.parameters = {
      word_parameter("score", {"sigmoid", "sqrt_softplus", "softmax"}, "score function"),
      integer_parameter("bias", -1024, 1024, "bias in eighths")};
  const auto one = [](const char* score, const char* bias) {
    return Values{{"score", score}, {"bias", bias}};
  };
  family.select =
      tiers({}, {one("sigmoid", "-37"), one("sqrt_softplus", "800"), one("softmax", "26")});
  return family;
}

Family permute_experts_family() {
  Family family = relation("routing.permute_experts", "ROUTING-11c",
                           "Renumbering the experts renumbers ids and counts and changes nothing "
                           "else; groups stay together",
                           run_permute_experts);
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("groups", {"no", "yes"}, "8 groups of 4, 2 kept")};
  const auto one = [](const char* score, const char* groups) {
    return Values{{"score", score}, {"groups", groups}};
  };
  family.select =
      tiers({one("sigmoid", "yes")},
            {one("softmax", "no"), one("softmax_selected", "no"), one("sqrt_softplus", "yes")});
  family.objection = [](const Values& values) -> std::string {
    const bool illegal =
        value_of(values, "groups") == "yes" && value_of(values, "score") == "softmax_selected";
    return illegal ? "a softmax over the selected is not group-limited (GENERAL-3)" : "";
  };
  return family;
}

Family permute_tokens_family() {
  Family family = relation("routing.permute_tokens", "ROUTING-11d",
                           "Reordering the tokens reorders the rows of ids and weights and leaves "
                           "the counts: no token depends on its place",
                           run_permute_tokens);
  family.parameters = {word_parameter("score", score_words(), "score function")};
  family.select = tiers({}, product({{"score", {"sigmoid", "softmax_selected"}}}));
  return family;
}

}  // namespace

void add_routing_metamorphic(Registry& registry) {
  registry.add(shift_family());
  registry.add(uniform_bias_family());
  registry.add(permute_experts_family());
  registry.add(permute_tokens_family());
}

}  // namespace dropless::conformance
