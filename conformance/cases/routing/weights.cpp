// SPDX-License-Identifier: Apache-2.0
// Routing cases about weights and scores: settings, eps, scaling, given ids, extreme logits, bf16.
#include <algorithm>
#include <cmath>

#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- routing.weights

void run_weights(CaseRun& run) {
  Random random = run.random("data");
  constexpr Index experts = 24;
  const Index top_k = run.word("top_k") == "all" ? experts : run.integer("top_k");
  RoutingData data;
  data.settings = route_settings(experts, top_k, run.word("score"), false);
  data.settings.renormalize = run.word("renormalize") == "yes" ? 1 : 0;
  data.settings.renormalize_single = run.word("renormalize_single") == "yes" ? 1 : 0;
  data.settings.scaling_factor = std::stod(run.word("factor"));
  data.tokens = 33;
  if (run.word("scale") == "yes") {
    for (Index e = 0; e < experts; ++e) {
      data.scale.push_back(tolerances::round_to(DROPLESS_FP32, 0.25 + 2 * random.uniform()));
    }
  }
  draw_clear_rows(run, data, normal_row(data, random, 2));
  RouteCall call(run, data);
  call.perform();
  const bool scaled = data.settings.scaling_factor != 1 && data.scale.empty();
  const std::string clause = weight_clause(data);
  judge_route(run, data, call,
              {.weights = scaled && clause != "ROUTING-6d" ? "ROUTING-6f" : clause});
}

Family weights_family() {
  Family family;
  family.name = "routing.weights";
  family.purpose =
      "Every switch of the weights does what it says, for K = 1, a few and all experts: softmax "
      "order, renormalisation, scaling factor, expert scale";
  family.clauses = {"ROUTING-1e", "ROUTING-3a", "ROUTING-5a", "ROUTING-5d",
                    "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-6d",
                    "ROUTING-6f", "ROUTING-6g", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("top_k", {"1", "3", "all"}, "selected of 24 experts"),
                       word_parameter("renormalize", {"yes", "no"}, "switch for K > 1"),
                       word_parameter("renormalize_single", {"yes", "no"}, "switch for K = 1"),
                       word_parameter("factor", {"1", "2.5", "16"}, "scaling factor"),
                       word_parameter("scale", {"no", "yes"}, "per-expert scale")};
  const std::vector<Axis> axes = {
      {"score", {"sigmoid", "softmax", "softmax_selected", "sqrt_softplus"}},
      {"top_k", {"3", "1", "all"}},
      {"renormalize", {"yes", "no"}},
      {"renormalize_single", {"no", "yes"}},
      {"factor", {"2.5", "1", "16"}},
      {"scale", {"no", "yes"}}};
  // A softmax over the selected K is not renormalised (GENERAL-3).
  const auto allowed = [](const Values& values) {
    return value_of(values, "score") != "softmax_selected" ||
           (value_of(values, "renormalize") == "no" &&
            value_of(values, "renormalize_single") == "no");
  };
  std::vector<Values> all = product(axes);
  std::erase_if(all, [&](const Values& values) { return !allowed(values); });
  const std::vector<Values> some = pairwise(axes, allowed);
  family.objection = [=](const Values& values) -> std::string {
    return allowed(values) ? "" : "a softmax over the selected is not renormalised";
  };
  family.select = tiers({some.begin(), some.begin() + 2}, some, all);
  family.run = run_weights;
  return family;
}

// ---- routing.one_expert

void run_one_expert(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(1, 1, run.word("score"), false);
  data.settings.scaling_factor = 2.5;
  data.tokens = 5;
  draw_clear_rows(run, data, normal_row(data, random, 2));
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call);
}

Family one_expert_family() {
  Family family;
  family.name = "routing.one_expert";
  family.purpose = "A layer with a single expert sends every token to it, with its score";
  family.clauses = {"ROUTING-1e", "ROUTING-3a", "ROUTING-5a", "ROUTING-5d",
                    "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  family.select = tiers({}, product({{"score", score_words()}}));
  family.run = run_one_expert;
  return family;
}

// ---- routing.eps

// Half of the rows have a sum of selected scores well below eps, the others well above.
void run_eps(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(64, 4, run.word("score"), true);
  data.settings.renormalize_eps = 0.25;
  data.settings.eps_form =
      run.word("form") == "maximum" ? DROPLESS_EPS_MAXIMUM : DROPLESS_EPS_ADDED;
  data.tokens = 64;
  bool low = false;
  draw_clear_rows(run, data, [&](std::span<double> row) {
    low = !low;
    const double centre = is_softmax(data.settings) ? 0 : low ? -12 : 0;
    const double deviation = is_softmax(data.settings) ? (low ? 0.25 : 4) : 1;
    for (double& l : row) {
      l = tolerances::round_to(DROPLESS_FP32, centre + deviation * random.normal());
    }
  });
  Index below = 0, above = 0;
  for (const double sum : expected_routing(run, data).weight_sum) {
    below += sum < 0.2;
    above += sum > 0.3;
  }
  run.judge().require(below >= 16 && above >= 16, "sums of scores on both sides of eps");
  RouteCall call(run, data);
  call.perform();
  judge_route(run, data, call, {.weights = "ROUTING-6e"});
}

Family eps_family() {
  Family family;
  family.name = "routing.eps";
  family.purpose = "The eps of the renormalisation has the value and the form of the settings";
  family.clauses = {"ROUTING-1e", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6e", "ROUTING-10"};
  family.parameters = {
      word_parameter("score", {"softmax", "sigmoid", "sqrt_softplus"}, "score function"),
      word_parameter("form", {"added", "maximum"}, "sum + eps or max(sum, eps)")};
  const std::vector<Values> all =
      product({{"score", {"sigmoid", "softmax", "sqrt_softplus"}}, {"form", {"added", "maximum"}}});
  family.select = tiers({}, {all[0], all[1], all[2], all[5]}, all);
  family.run = run_eps;
  return family;
}

// ---- routing.power_of_two

// Refused (GENERAL-3): a softmax over the selected experts adds up to 1 as it is.
std::string no_renormalised_selection(const Values& values) {
  const bool selected = value_of(values, "score") == "softmax_selected";
  return selected && value_of(values, "renormalize") == "yes"
             ? "softmax over the selected experts cannot be renormalised"
             : "";
}

void run_power_of_two(CaseRun& run) {
  Random random = run.random("data");
  const auto exponent = static_cast<int>(run.integer("exponent"));
  RoutingData data;
  data.settings = route_settings(32, 4, run.word("score"), run.word("renormalize") == "yes");
  data.tokens = 33;
  draw_clear_rows(run, data, normal_row(data, random, 2));
  RoutingData scaled = data;
  scaled.settings.scaling_factor = std::ldexp(1.0, exponent);
  RouteCall plain(run, data, {.prefix = "plain "});
  plain.perform();
  RouteCall call(run, scaled);
  call.perform();
  judge_route(run, scaled, call);
  std::vector<double> expected = plain.weights->values();
  for (double& w : expected) w = std::ldexp(w, exponent);
  run.judge().exact("ROUTING-6f", "weights against those with factor 1", *call.weights, expected);
}

Family power_of_two_family() {
  Family family;
  family.name = "routing.power_of_two";
  family.purpose =
      "A scaling factor that is a power of two changes the exponent of the weights and no bit "
      "more, so it is applied once and last";
  family.clauses = {"ROUTING-1e", "ROUTING-3a", "ROUTING-5a", "ROUTING-5d", "ROUTING-6a",
                    "ROUTING-6b", "ROUTING-6c", "ROUTING-6f", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("renormalize", {"yes", "no"}, "renormalisation"),
                       integer_parameter("exponent", -8, 8, "factor 2^exponent")};
  const auto one = [](const char* score, const char* renormalize, const char* exponent) {
    return Values{{"score", score}, {"renormalize", renormalize}, {"exponent", exponent}};
  };
  family.select = tiers({}, {one("sigmoid", "yes", "4"), one("softmax", "yes", "-1"),
                             one("softmax_selected", "no", "4"), one("sqrt_softplus", "no", "-3")});
  family.run = run_power_of_two;
  family.objection = no_renormalised_selection;
  return family;
}

// ---- routing.given_ids

void run_given_ids(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data = model_data(run.model(), 65, logits_dtype(run.word("dtype")), random);
  data.logits.resize(at(data.tokens * data.experts()));
  for (Index t = 0; t < data.tokens; ++t) {
    normal_row(data, random,
               2)(std::span(data.logits).subspan(at(t * data.experts()), at(data.experts())));
  }
  if (run.word("mask") == "yes") {
    for (Index t = 0; t < data.tokens; ++t) data.mask.push_back(t % 5 == 4 ? 0 : 1);
  }
  // Distinct ids in random order, every seventh entry empty, one token without any.
  for (Index t = 0; t < data.tokens; ++t) {
    const std::vector<Index> order = random.permutation(data.experts());
    for (Index j = 0; j < data.top_k(); ++j) {
      data.given_ids.push_back(t == 1 || random.chance(1.0 / 7) ? -1 : order[at(j)]);
    }
  }
  RoutingData chosen = data;
  chosen.given_ids.clear();
  // Of the tokens, masked ones too, which select nothing either way.
  run.judge().require(share_of_other_selections(run, data, chosen) > 0.5,
                      "given ids are not those of the router");
  const dropless_dtype ids_dtype = run.word("ids") == "i64" ? DROPLESS_I64 : DROPLESS_I32;
  RouteCall call(run, data, {.ids_dtype = ids_dtype});
  call.perform();

  std::vector<Index> expected_ids = data.given_ids;
  for (std::size_t i = 0; i < expected_ids.size(); ++i) {
    if (data.is_masked(static_cast<Index>(i) / data.top_k())) expected_ids[i] = -1;
  }
  std::vector<bool> unmasked(at(data.tokens));
  for (Index t = 0; t < data.tokens; ++t) unmasked[at(t)] = !data.is_masked(t);
  const Judged rows = spread_rows(unmasked, data.top_k());
  run.judge().exact("ROUTING-13a", "ids", *call.ids, expected_ids, rows);
  const bool unchanged = call.ids->integers() == expected_ids;
  if (unchanged) {  // otherwise the weights have nothing to stand beside
    std::vector<bool> full = unmasked, gaps = unmasked;
    for (std::size_t i = 0; i < expected_ids.size(); ++i) {
      if (expected_ids[i] < 0) full[i / at(data.top_k())] = false;
    }
    for (std::size_t t = 0; t < gaps.size(); ++t) gaps[t] = gaps[t] && !full[t];
    judge_weights(run, data, call, full, "ROUTING-13a");
    judge_weights(run, data, call, gaps, "ROUTING-13b");  // empty slots stand outside every sum
    judge_scores(run, data, call, unmasked);
  }
  Judged empty(expected_ids.size());
  for (std::size_t i = 0; i < empty.size(); ++i) empty[i] = rows[i] && expected_ids[i] < 0;
  run.judge().exact("ROUTING-13b", "weights of empty slots", *call.weights,
                    std::vector<double>(empty.size(), 0.0), empty);
  Judged masked(rows);
  masked.flip();
  if (!data.mask.empty()) {
    run.judge().exact("ROUTING-9a", "ids of masked tokens", *call.ids, expected_ids, masked);
  }
  judge_counts(run, data, call);
}

Family given_ids_family() {
  Family family;
  family.name = "routing.given_ids";
  family.purpose =
      "Given ids replace the selection and nothing else: order and empty slots are kept, weights "
      "follow the settings of the model, bias and groups play no part";
  family.clauses = {"ROUTING-1e", "ROUTING-9a", "ROUTING-10", "ROUTING-13a", "ROUTING-13b"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       word_parameter("ids", {"i32", "i64"}, "format of the ids"),
                       word_parameter("mask", {"no", "yes"}, "a token mask as well")};
  const auto one = [](const char* model, const char* dtype, const char* ids, const char* mask) {
    return Values{{"model", model}, {"dtype", dtype}, {"ids", ids}, {"mask", mask}};
  };
  family.select =
      tiers({one("deepseek-v4-flash", "fp32", "i32", "no")},
            {one("deepseek-v3", "bf16", "i64", "yes"), one("gpt-oss-20b", "bf16", "i32", "yes"),
             one("mixtral-8x7b", "fp32", "i64", "no"), one("gemma-4-26b-a4b", "fp32", "i32", "yes"),
             one("llama-4-scout", "bf16", "i32", "no")},
            product({{"model", top_k_model_names()},
                     {"dtype", {"fp32"}},
                     {"ids", {"i32"}},
                     {"mask", {"yes"}}}));
  family.run = run_given_ids;
  return family;
}

// ---- routing.extreme

// Magnitudes at which a naive formula overflows, vanishes or loses everything.
void run_extreme(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(16, 3, run.word("score"), run.word("renormalize") == "yes");
  data.tokens = 66;
  const std::vector<double> sizes = is_softmax(data.settings)
                                        ? std::vector<double>{1e4, -1e4, 100, -100, 3e38, 30}
                                        : std::vector<double>{1e4, -20, 100, -12, 89, -25};
  for (Index t = 0; t < data.tokens; ++t) {
    const double centre = sizes[at(t) % sizes.size()];
    for (Index e = 0; e < data.experts(); ++e) {
      const double offset =
          std::abs(centre) > 1e30 ? centre * 0.05 * random.uniform() : 4 * random.normal();
      data.logits.push_back(tolerances::round_to(DROPLESS_FP32, centre + offset));
    }
  }
  RouteCall call(run, data);
  call.perform();
  const char* clause = is_softmax(data.settings)        ? "ROUTING-1a"
                       : run.word("score") == "sigmoid" ? "ROUTING-1b"
                                                        : "ROUTING-1c";
  const std::vector<bool> valid = judge_distinct_ids(run, data, call);
  judge_scores(run, data, call, valid, clause);
  judge_route(run, data, call, {.weights = clause});
}

Family extreme_family() {
  Family family;
  family.name = "routing.extreme";
  family.purpose =
      "Scores and weights stay within their relative bounds for logits of any size that fp32 "
      "holds: no overflow, no NaN, no small score lost";
  family.clauses = {"ROUTING-1a", "ROUTING-1b", "ROUTING-1c", "ROUTING-1e",
                    "ROUTING-3a", "ROUTING-5a", "ROUTING-5d", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("renormalize", {"yes", "no"}, "renormalisation")};
  const auto one = [](const char* score, const char* renormalize) {
    return Values{{"score", score}, {"renormalize", renormalize}};
  };
  family.select = tiers({one("sqrt_softplus", "no")},
                        {one("softmax", "yes"), one("softmax", "no"), one("sigmoid", "no"),
                         one("sigmoid", "yes"), one("softmax_selected", "no")});
  family.run = run_extreme;
  family.objection = no_renormalised_selection;
  return family;
}

// ---- routing.bf16

void run_bf16(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(32, 4, run.word("score"), run.word("score") == "sigmoid");
  data.tokens = 33;
  data.dtype = DROPLESS_BF16;
  if (!over_selected(data.settings)) data.bias = matching_bias(data.settings, random);
  draw_clear_rows(run, data, normal_row(data, random, 2));
  RoutingData wide = data;
  wide.dtype = DROPLESS_FP32;
  RouteCall reference_call(run, wide, {.prefix = "fp32 "});
  reference_call.perform();
  RouteCall call(run, data);
  call.perform();
  run.judge().same_bytes("ROUTING-1d", "ids", *call.ids, reference_call.ids->bytes());
  run.judge().same_bytes("ROUTING-1d", "weights", *call.weights, reference_call.weights->bytes());
  run.judge().same_bytes("ROUTING-1d", "scores", *call.scores, reference_call.scores->bytes());
  judge_route(run, data, call);
}

Family bf16_family() {
  Family family;
  family.name = "routing.bf16";
  family.purpose = "The same logits in bf16 and in fp32 give the same bits";
  family.clauses = {"ROUTING-1d", "ROUTING-1e", "ROUTING-2b", "ROUTING-3a", "ROUTING-5a",
                    "ROUTING-5d", "ROUTING-6a", "ROUTING-6b", "ROUTING-6c", "ROUTING-10"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  const std::vector<Values> all = product({{"score", score_words()}});
  family.select = tiers({all[2]}, all);
  family.run = run_bf16;
  return family;
}

}  // namespace

void add_routing_weights(Registry& registry) {
  registry.add(weights_family());
  registry.add(one_expert_family());
  registry.add(eps_family());
  registry.add(power_of_two_family());
  registry.add(given_ids_family());
  registry.add(extreme_family());
  registry.add(bf16_family());
}

}  // namespace dropless::conformance
