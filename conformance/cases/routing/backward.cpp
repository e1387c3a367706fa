// SPDX-License-Identifier: Apache-2.0
// Routing cases of the backward pass: models, settings, K = 1, masks, empty slots, NaN rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/routing/gradient.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Most gradients of selected experts must stand out of their error bound; of few tokens, some.
void require_sharp_gradient(CaseRun& run, const RoutingGradientData& data) {
  const reference::RoutingGradient expected = expected_gradient(data);
  const std::vector<double> errors = gradient_errors(run, data, expected);
  Index sharp = 0, all = 0;
  for (std::size_t i = 0; i < data.ids.size(); ++i) {
    if (data.ids[i] < 0) continue;
    const std::size_t e =
        i / at(data.forward.top_k()) * at(data.forward.experts()) + at(data.ids[i]);
    sharp += std::abs(expected.d_logits.value[e]) > 64 * errors[e];
    ++all;
  }
  run.judge().require(4 * sharp >= (all < 32 ? all : 3 * all),
                      "gradients of selected experts exceed their bounds");
}

// ---- routing.backward_model

void run_backward_model(CaseRun& run) {
  Random random = run.random("data");
  RoutingData forward =
      model_data(run.model(), run.integer("tokens"), logits_dtype(run.word("dtype")), random);
  draw_clear_rows(run, forward, normal_row(forward, random, 2));
  const RoutingGradientData data = gradient_data(run, std::move(forward), random);
  require_sharp_gradient(run, data);
  RouteBackwardCall call(run, data);
  call.perform();
  judge_gradient(run, data, call);
}

Family backward_model_family() {
  Family family;
  family.name = "routing.backward_model";
  family.purpose =
      "With the settings of a published model the gradient of the weights reaches logits and "
      "expert scale, for random cotangents; the ids are the reference's";
  family.clauses = {"ROUTING-12a", "ROUTING-12d"};
  family.parameters = {word_parameter("model", top_k_model_names(), "published model"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       integer_parameter("tokens", 1, 65536, "tokens")};
  const auto one = [](const char* model, const char* dtype, const char* tokens) {
    return Values{{"model", model}, {"dtype", dtype}, {"tokens", tokens}};
  };
  family.select = tiers(
      {one("deepseek-v3", "fp32", "33"), one("gpt-oss-20b", "bf16", "33"),
       one("mixtral-8x7b", "fp32", "65")},
      {one("qwen3-30b-a3b", "bf16", "33"), one("deepseek-v4-flash", "fp32", "33"),
       one("llama-4-scout", "fp32", "65"), one("gemma-4-26b-a4b", "fp32", "65"),
       one("deepseek-v2", "fp32", "17"), one("hunyuan-a13b", "bf16", "33"),
       one("grok-1", "fp32", "1")},
      product(
          {{"model", top_k_model_names()}, {"dtype", {"fp32", "bf16"}}, {"tokens", {"1", "129"}}}));
  family.run = run_backward_model;
  return family;
}

// ---- routing.backward

// eps of a size that matters, as in routing.eps; the divisor max(sum, eps) is constant below eps.
void set_eps(dropless_route_settings& settings, std::string_view eps) {
  if (eps == "tiny") return;
  settings.renormalize_eps = 0.25;
  settings.eps_form = eps == "maximum" ? DROPLESS_EPS_MAXIMUM : DROPLESS_EPS_ADDED;
}

void run_backward(CaseRun& run) {
  Random random = run.random("data");
  constexpr Index experts = 24;
  const Index top_k = run.word("top_k") == "all" ? experts : run.integer("top_k");
  RoutingData forward;
  forward.settings =
      route_settings(experts, top_k, run.word("score"), run.word("renormalize") == "yes");
  forward.settings.scaling_factor = std::stod(run.word("factor"));
  set_eps(forward.settings, run.word("eps"));
  forward.tokens = 34;
  if (run.word("scale") == "yes") {
    for (Index e = 0; e < experts; ++e) {
      forward.scale.push_back(tolerances::round_to(DROPLESS_FP32, 0.25 + 2 * random.uniform()));
    }
  }
  bool low = false;
  draw_clear_rows(run, forward, [&](std::span<double> row) {
    low = !low;
    const double centre = low && !is_softmax(forward.settings) ? -5 : 0;
    const double deviation = is_softmax(forward.settings) && low ? 0.25 : 1.5;
    for (double& l : row) {
      l = tolerances::round_to(DROPLESS_FP32, centre + deviation * random.normal());
    }
  });
  const RoutingGradientData data = gradient_data(run, std::move(forward), random);
  require_sharp_gradient(run, data);
  RouteBackwardCall call(run, data);
  call.perform();
  judge_gradient(run, data, call);
}

Family backward_family() {
  Family family;
  family.name = "routing.backward";
  family.purpose =
      "The derivative follows every switch of the weights: softmax order, renormalisation with "
      "its eps, factor and scale; K = 1 with renormalisation is left to routing.backward_single";
  family.clauses = {"ROUTING-12a", "ROUTING-12d"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("top_k", {"1", "3", "all"}, "selected of 24 experts"),
                       word_parameter("renormalize", {"yes", "no"}, "renormalisation"),
                       word_parameter("eps", {"tiny", "added", "maximum"}, "1e-20 or 0.25"),
                       word_parameter("factor", {"1", "2.5"}, "scaling factor"),
                       word_parameter("scale", {"no", "yes"}, "per-expert scale")};
  const std::vector<Axis> axes = {
      {"score", {"sigmoid", "softmax", "softmax_selected", "sqrt_softplus"}},
      {"top_k", {"3", "1", "all"}},
      {"renormalize", {"yes", "no"}},
      {"eps", {"tiny", "added", "maximum"}},
      {"factor", {"2.5", "1"}},
      {"scale", {"no", "yes"}}};
  const auto allowed = [](const Values& values) {
    const bool renormalize = value_of(values, "renormalize") == "yes";
    const std::string& score = value_of(values, "score");
    const std::string& top_k = value_of(values, "top_k");
    if (!renormalize && value_of(values, "eps") != "tiny") return false;
    if (score == "softmax_selected" && (renormalize || top_k == "1")) return false;
    // No gradient is left: K = 1, and a softmax whose selected sum is 1.
    return !(renormalize && top_k == "1") &&
           !(score == "softmax" && top_k == "all" && value_of(values, "eps") == "maximum");
  };
  std::vector<Values> all = product(axes);
  std::erase_if(all, [&](const Values& values) { return !allowed(values); });
  const std::vector<Values> some = pairwise(axes, allowed);
  family.objection = [=](const Values& values) -> std::string {
    return allowed(values) ? "" : "these settings leave no gradient, or contradict each other";
  };
  family.select = tiers({some.begin(), some.begin() + 1}, some, all);
  family.run = run_backward;
  return family;
}

// ---- routing.backward_single

void run_backward_single(CaseRun& run) {
  Random random = run.random("data");
  const bool vanishes = run.word("renormalize") == "yes" || run.word("score") == "softmax_selected";
  RoutingData forward;
  forward.settings = route_settings(16, 1, run.word("score"), run.word("renormalize") == "yes");
  forward.settings.renormalize = vanishes && !over_selected(forward.settings) ? 0 : 1;
  if (over_selected(forward.settings)) forward.settings.renormalize = 0;
  forward.tokens = 65;
  draw_clear_rows(run, forward, [&](std::span<double> row) {
    const double centre = static_cast<double>(random.between(-20, 4));
    for (double& l : row) l = tolerances::round_to(DROPLESS_FP32, centre + 1.5 * random.normal());
  });
  RoutingGradientData data = gradient_data(run, std::move(forward), random);
  for (double& d : data.d_weights) d = random.chance(0.5) ? 1 : -1;
  RouteBackwardCall call(run, data);
  call.perform();
  if (vanishes) {
    const std::vector<double> zeros(data.forward.logits.size(), 0.0);
    run.judge().bounded("ROUTING-12b", "d_logits", *call.d_logits, zeros, std::vector{1e-6});
    return;
  }
  const reference::RoutingGradient expected = expected_gradient(data);
  const auto visible = std::count_if(expected.d_logits.value.begin(), expected.d_logits.value.end(),
                                     [](double d) { return std::abs(d) > 1e-5; });
  run.judge().require(visible >= data.forward.tokens / 4, "gradients that are not zero");
  judge_gradient(run, data, call, "ROUTING-12c");
}

Family backward_single_family() {
  Family family;
  family.name = "routing.backward_single";
  family.purpose =
      "For K = 1 the gradient vanishes exactly where the weight is constant, and nowhere else; "
      "the switch for K > 1 points the other way";
  family.clauses = {"ROUTING-12b", "ROUTING-12c"};
  family.parameters = {word_parameter("score", score_words(), "score function"),
                       word_parameter("renormalize", {"yes", "no"}, "switch for K = 1")};
  const auto one = [](const char* score, const char* renormalize) {
    return Values{{"score", score}, {"renormalize", renormalize}};
  };
  family.select =
      tiers({one("sigmoid", "no")}, {one("sigmoid", "yes"), one("softmax", "yes"),
                                     one("softmax", "no"), one("softmax_selected", "no"),
                                     one("sqrt_softplus", "no"), one("sqrt_softplus", "yes")});
  family.run = run_backward_single;
  family.objection = [](const Values& values) -> std::string {
    const bool selected = value_of(values, "score") == "softmax_selected";
    return selected && value_of(values, "renormalize") == "yes"
               ? "softmax over the selected experts cannot be renormalised"
               : "";
  };
  return family;
}

// ---- routing.backward_special

// Every third token is masked, loses slots, or holds NaN.
bool is_special(Index token) {
  return token % 3 == 1;
}

void make_special(RoutingGradientData& data, std::string_view kind) {
  const Index experts = data.forward.experts(), top_k = data.forward.top_k();
  for (Index t = 0; t < data.forward.tokens; ++t) {
    if (kind == "mask") data.forward.mask.push_back(is_special(t) ? 0 : 1);
    if (!is_special(t)) continue;
    if (kind != "empty_slots") {
      for (Index e = 0; e < experts; ++e) {
        data.forward.logits[at(t * experts + e)] =
            e % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
      }
    }
    if (kind == "nan_rows") continue;
    for (Index j = 0; j < top_k; ++j) {
      if (kind == "empty_slots" && t % 2 == 0 && j != 1) continue;  // the others lose all slots
      data.ids[at(t * top_k + j)] = -1;
      data.d_weights[at(t * top_k + j)] = 1000;  // reaches nothing
    }
  }
}

void run_backward_special(CaseRun& run) {
  Random random = run.random("data");
  const std::string& kind = run.word("kind");
  RoutingData forward;
  forward.settings = route_settings(16, 3, run.word("score"), run.word("score") == "sigmoid");
  forward.tokens = 37;
  if (kind != "nan_rows") {  // a NaN row reaches d_expert_scale, which belongs to no row
    for (Index e = 0; e < 16; ++e) {
      forward.scale.push_back(tolerances::round_to(DROPLESS_FP32, 0.5 + random.uniform()));
    }
  }
  draw_clear_rows(run, forward, normal_row(forward, random, 1.5));
  const RoutingGradientData clean = gradient_data(run, std::move(forward), random);
  RoutingGradientData data = clean;
  make_special(data, kind);
  RouteBackwardCall before(run, clean, {.prefix = "clean "});
  before.perform();
  RouteBackwardCall call(run, data);
  call.perform();
  judge_gradient(run, clean, before);
  std::vector<bool> ordinary(at(data.forward.tokens));
  for (Index t = 0; t < data.forward.tokens; ++t) ordinary[at(t)] = !is_special(t);
  if (kind == "nan_rows") {
    run.judge().same_bytes("ROUTING-8b", "d_logits of other rows", *call.d_logits,
                           before.d_logits->bytes(), spread_rows(ordinary, 16));
  } else {
    judge_gradient(run, data, call, kind == "mask" ? "ROUTING-9b" : "ROUTING-12e");
  }
}

Family backward_special_family() {
  Family family;
  family.name = "routing.backward_special";
  family.purpose =
      "Masked tokens and empty slots add nothing to any gradient, whatever their cotangents, and "
      "a NaN row changes no bit of the others";
  family.clauses = {"ROUTING-8b", "ROUTING-9b", "ROUTING-12a", "ROUTING-12d", "ROUTING-12e"};
  family.parameters = {
      word_parameter("score", score_words(), "score function"),
      word_parameter("kind", {"mask", "empty_slots", "nan_rows"}, "what every third token is")};
  const std::vector<Axis> axes = {{"score", score_words()},
                                  {"kind", {"mask", "empty_slots", "nan_rows"}}};
  const auto one = [](const char* score, const char* kind) {
    return Values{{"score", score}, {"kind", kind}};
  };
  family.select = tiers(
      {one("sigmoid", "empty_slots")},
      {one("sigmoid", "mask"), one("softmax_selected", "empty_slots"), one("softmax", "mask"),
       one("softmax", "nan_rows"), one("sigmoid", "nan_rows"), one("sqrt_softplus", "empty_slots")},
      product(axes));
  family.run = run_backward_special;
  return family;
}

}  // namespace

void add_routing_backward(Registry& registry) {
  registry.add(backward_model_family());
  registry.add(backward_family());
  registry.add(backward_single_family());
  registry.add(backward_special_family());
}

}  // namespace dropless::conformance
