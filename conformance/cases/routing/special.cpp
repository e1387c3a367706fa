// SPDX-License-Identifier: Apache-2.0
// Routing cases about masked experts, NaN and infinite logits, and masked tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

void group_by_four(dropless_route_settings& settings) {
  settings.num_groups = settings.num_experts / 4;
  settings.kept_groups = settings.top_k / 2;  // w = 2
}

// ---- routing.masked_experts

// Every expert is masked with probability 0.3, those with a high bias with 0.7: the bias must not
// bring them back.
void run_masked_experts(CaseRun& run) {
  Random random = run.random("data");
  const bool grouped = run.word("groups") == "yes";
  RoutingData data;
  data.settings = route_settings(16, 4, run.word("score"), run.word("score") == "sigmoid");
  if (grouped) group_by_four(data.settings);
  data.tokens = 65;
  if (!over_selected(data.settings)) {
    for (Index e = 0; e < data.experts(); ++e) {
      const double size = e % 4 == 1 ? 3 : 0.25 * random.uniform();
      data.bias.push_back(tolerances::round_to(DROPLESS_FP32, size));
    }
  }
  draw_clear_rows(run, data, [&](std::span<double> row) {
    normal_row(data, random, 1)(row);
    for (std::size_t e = 0; e < row.size(); ++e) {
      if (random.chance(e % 4 == 1 ? 0.7 : 0.3)) row[e] = -infinity;
    }
  });
  RoutingData unmasked = data;
  for (double& l : unmasked.logits) l = std::isinf(l) ? 2 : l;
  run.judge().require(share_of_other_selections(run, data, unmasked) > 0.5,
                      "masked experts would have been selected");
  if (grouped) {
    const std::vector<double> groups = expected_routing(run, data).group_scores;
    const auto lost = std::count(groups.begin(), groups.end(), -infinity);
    run.judge().require(lost >= data.tokens / 4, "groups that lost their score to the mask");
  }
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = grouped ? "ROUTING-4d" : "ROUTING-7a"});
}

std::string not_grouped_softmax_over_the_selected(const Values& values) {
  return value_of(values, "groups") == "yes" && value_of(values, "score") == "softmax_selected"
             ? "a softmax over the selected is not group-limited (GENERAL-3)"
             : "";
}

Family masked_experts_family() {
  Family family;
  family.name = "routing.masked_experts";
  family.purpose =
      "Experts with logit -Inf are not selected whatever their bias, and pull their group down, "
      "while enough others are left";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-4d", "ROUTING-5a", "ROUTING-5d",
                    "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-7a", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("groups", {"no", "yes"}, "4 groups of 4, 2 kept")};
  const auto one = [](const char* score, const char* groups) {
    return Values{{"score", score}, {"groups", groups}};
  };
  family.select = tiers({one("sigmoid", "no")},
                        {one("softmax", "no"), one("softmax_selected", "no"),
                         one("sqrt_softplus", "no"), one("sigmoid", "yes"), one("softmax", "yes")});
  family.run = run_masked_experts;
  family.objection = not_grouped_softmax_over_the_selected;
  return family;
}

// ---- routing.few_experts

void run_few_experts(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(16, 4, run.word("score"), run.word("score") == "sigmoid");
  data.tokens = 33;
  if (!over_selected(data.settings)) data.bias = matching_bias(data.settings, random);
  for (Index t = 0; t < data.tokens; ++t) {
    std::vector<double> row(16, -infinity);
    const std::vector<Index> order = random.permutation(16);
    for (Index i = 0; i < 1 + t % 3; ++i) {  // one, two or three of the four that are wanted
      row[at(order[at(i)])] = tolerances::round_to(DROPLESS_FP32, random.normal());
    }
    data.logits.insert(data.logits.end(), row.begin(), row.end());
  }
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call,
              {.distinct = "ROUTING-7b", .set = "ROUTING-7b", .weights = "ROUTING-7b"});

  const std::vector<Index> ids = call.ids->integers();
  Judged masked(ids.size(), false);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= 16) continue;
    masked[i] = std::isinf(data.logits[i / 4 * 16 + at(ids[i])]);
  }
  run.judge().exact("ROUTING-7b", "weights of masked experts", *call.weights,
                    std::vector<double>(ids.size(), 0.0), masked);
}

Family few_experts_family() {
  Family family;
  family.name = "routing.few_experts";
  family.purpose =
      "Where fewer than K experts are unmasked, ids stay distinct, the unmasked ones are among "
      "them and the others weigh nothing";
  family.clauses = {"ROUTING-1e", "ROUTING-5d", "ROUTING-7b", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  const std::vector<Values> all = product({{"score", score_words()}});
  family.select = tiers({all[2]}, all);
  family.run = run_few_experts;
  return family;
}

// ---- routing.nan_rows

bool is_bad(Index token) {
  return token % 4 == 1;
}

void spoil(std::span<double> row, std::string_view kind, Random& random) {
  const auto position = at(random.below(static_cast<Index>(row.size())));
  if (kind == "one_nan") row[position] = nan;
  if (kind == "all_nan") std::fill(row.begin(), row.end(), nan);
  if (kind == "infinity") row[position] = infinity;
  if (kind == "all_masked") std::fill(row.begin(), row.end(), -infinity);
}

void run_nan_rows(CaseRun& run) {
  Random random = run.random("data");
  RoutingData clean;
  clean.settings = route_settings(16, 4, run.word("score"), run.word("score") == "sigmoid");
  if (run.word("groups") == "yes") group_by_four(clean.settings);
  clean.tokens = 33;
  draw_clear_rows(run, clean, normal_row(clean, random, 2));
  RoutingData spoiled = clean;
  std::vector<bool> good(at(clean.tokens));
  for (Index t = 0; t < clean.tokens; ++t) {
    good[at(t)] = !is_bad(t);
    if (is_bad(t)) {
      spoil(std::span(spoiled.logits).subspan(at(t * 16), 16), run.word("kind"), random);
    }
  }
  RouteCall before(run, clean, {.prefix = "clean "});
  before.perform();
  RouteCall call(run, spoiled);
  call.perform();

  judge_route(run, clean, before);
  const Judged slots = spread_rows(good, 4), experts = spread_rows(good, 16);
  run.judge().same_bytes("ROUTING-8b", "ids", *call.ids, before.ids->bytes(), slots);
  run.judge().same_bytes("ROUTING-8b", "weights", *call.weights, before.weights->bytes(), slots);
  run.judge().same_bytes("ROUTING-8b", "scores", *call.scores, before.scores->bytes(), experts);

  const std::vector<Index> ids = call.ids->integers();
  const std::vector<double> weights = call.weights->values();
  for (Index t = 0; t < clean.tokens; ++t) {
    if (!is_bad(t)) continue;
    const auto row = std::span(ids).subspan(at(t * 4), 4);
    const std::vector<Index> order = sorted_ids(row);
    const bool distinct = order.front() >= 0 && order.back() < 16 &&
                          std::adjacent_find(order.begin(), order.end()) == order.end();
    run.judge().holds("ROUTING-8a", "ids of the row", distinct, "4 distinct ids in 0..15",
                      list_of(row), fmt::format("[{}]", t));
    const auto* first = &weights[at(t * 4)];
    run.judge().holds(
        "ROUTING-8a", "weights of the row",
        std::any_of(first, first + 4, [](double w) { return std::isnan(w); }), "at least one NaN",
        fmt::format("{} {} {} {}", first[0], first[1], first[2], first[3]), fmt::format("[{}]", t));
  }
  judge_counts(run, spoiled, call);
  Index total = 0;
  for (const Index n : call.counts->integers()) total += n;
  run.judge().holds("ROUTING-8a", "sum of tokens_per_expert", total == clean.tokens * 4,
                    std::to_string(clean.tokens * 4), std::to_string(total));
}

Family nan_rows_family() {
  Family family;
  family.name = "routing.nan_rows";
  family.purpose =
      "A row with NaN gets legal ids and a NaN weight, and no other row changes by a bit; the "
      "backward pass is left to routing.backward_special";
  family.clauses = {"ROUTING-1e", "ROUTING-3a", "ROUTING-5a", "ROUTING-5d", "ROUTING-6a",
                    "ROUTING-6b", "ROUTING-6c", "ROUTING-8a", "ROUTING-8b", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", score_words(), "score function"),
      word_parameter("kind", {"one_nan", "all_nan", "infinity", "all_masked"},
                     "contents of every fourth row; the last two for softmax only"),
      word_parameter("groups", {"no", "yes"}, "4 groups of 4, 2 kept")};
  const auto one = [](const char* score, const char* kind, const char* groups) {
    return Values{{"score", score}, {"kind", kind}, {"groups", groups}};
  };
  family.select =
      tiers({one("sigmoid", "one_nan", "yes")},
            {one("softmax", "one_nan", "no"), one("softmax", "infinity", "yes"),
             one("softmax", "all_masked", "no"), one("softmax_selected", "one_nan", "no"),
             one("softmax_selected", "infinity", "no"), one("sqrt_softplus", "all_nan", "no")});
  family.run = run_nan_rows;
  family.objection = [](const Values& values) {
    const std::string& kind = value_of(values, "kind");
    const bool softmax = value_of(values, "score").starts_with("softmax");
    if (!softmax && (kind == "infinity" || kind == "all_masked")) {
      return std::string("such a row is undefined for a softmax only");
    }
    return not_grouped_softmax_over_the_selected(values);
  };
  return family;
}

// ---- routing.infinity

void run_infinity(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(16, 4, "sigmoid", run.word("renormalize") == "yes");
  data.tokens = 33;
  draw_clear_rows(run, data, [&](std::span<double> row) {
    normal_row(data, random, 2)(row);
    row[at(random.below(16))] = infinity;
  });
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.set = "ROUTING-8c", .weights = "ROUTING-8c"});
  Judged infinite(data.logits.size());
  for (std::size_t i = 0; i < infinite.size(); ++i) infinite[i] = data.logits[i] == infinity;
  run.judge().exact("ROUTING-8c", "scores of +Inf", *call.scores,
                    std::vector<double>(infinite.size(), 1.0), infinite);
}

Family infinity_family() {
  Family family;
  family.name = "routing.infinity";
  family.purpose = "The sigmoid of a +Inf logit is 1 and its row an ordinary one";
  family.clauses = {"ROUTING-1e", "ROUTING-5a", "ROUTING-5d", "ROUTING-8c", "ROUTING-10"};
  family.parameters = {word_parameter("renormalize", {"yes", "no"}, "renormalisation")};
  family.select = tiers({}, product({{"renormalize", {"yes", "no"}}}));
  family.run = run_infinity;
  return family;
}

// ---- routing.token_mask

bool keeps(std::string_view pattern, Index token, Index tokens, Random& random) {
  if (pattern == "all") return false;
  if (pattern == "ends") return token != 0 && token != tokens - 1;
  return random.chance(0.6);
}

void run_token_mask(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = model_data(run.model(), run.integer("tokens"), DROPLESS_FP32, random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  const double hostile[] = {nan, infinity, -infinity, 1e30};
  for (Index t = 0; t < data.tokens; ++t) {
    data.mask.push_back(keeps(run.word("pattern"), t, data.tokens, random) ? 1 : 0);
    if (data.is_masked(t)) {  // what a masked token holds must not matter
      for (Index e = 0; e < data.experts(); ++e) {
        data.logits[at(t * data.experts() + e)] = hostile[at(t + e) % 4];
      }
    }
  }
  const dropless_dtype ids_dtype = run.word("ids") == "i64" ? DROPLESS_I64 : DROPLESS_I32;
  RouteCall call(run, data, {.ids_dtype = ids_dtype});
  call.perform();
  run.judge().exact("ROUTING-9a", "tokens_per_expert", *call.counts,
                    expected_routing(run, data).tokens_per_expert);
  judge_route(run, data, call);
}

Family token_mask_family() {
  Family family;
  family.name = "routing.token_mask";
  family.purpose =
      "Masked tokens, whatever they hold, are routed nowhere and counted nowhere, and the others "
      "as if there were no mask";
  family.clauses = {"ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6a", "ROUTING-6b", "ROUTING-6c",
                    "ROUTING-6d", "ROUTING-6g", "ROUTING-9a", "ROUTING-10"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       integer_parameter("tokens", 1, 4096, "tokens"),
                       word_parameter("pattern", {"some", "ends", "all"}, "which are masked"),
                       word_parameter("ids", {"i32", "i64"}, "format of the ids")};
  const auto one = [](const char* model, const char* tokens, const char* pattern, const char* ids) {
    return Values{{"model", model}, {"tokens", tokens}, {"pattern", pattern}, {"ids", ids}};
  };
  family.select =
      tiers({one("deepseek-v3", "33", "some", "i32")},
            {one("mixtral-8x7b", "17", "ends", "i64"), one("gpt-oss-20b", "65", "some", "i32"),
             one("qwen3-30b-a3b", "5", "all", "i32"), one("llama-4-scout", "1", "all", "i64")});
  family.run = run_token_mask;
  return family;
}

}  // namespace

void add_routing_special(Registry& registry) {
  registry.add(masked_experts_family());
  registry.add(few_experts_family());
  registry.add(nan_rows_family());
  registry.add(infinity_family());
  registry.add(token_mask_family());
}

}  // namespace dropless::conformance
