// SPDX-License-Identifier: Apache-2.0
// Routing requests that must be refused; each comes after a legal control that succeeds.
#include "conformance/cases/routing/gradient.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

constexpr Index tokens = 9, experts = 16, top_k = 4;

// Values in device memory may be left unchecked (GENERAL-3).
void needs_checked_values(const CaseRun& run) {
  if (run.implementation().memory_space != DROPLESS_HOST &&
      run.profile().device_values == DROPLESS_DEVICE_VALUES_UNCHECKED) {
    throw NotSupported{"the profile leaves values in device memory unchecked"};
  }
}

RoutingData legal_data(CaseRun& run, std::string_view score) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(experts, top_k, score, false);
  data.tokens = tokens;
  draw_clear_rows(run, data, normal_row(data, random, 2));
  return data;
}

// ---- routing.refused_settings

struct IllegalSettings {
  const char* word;
  const char* why;
  void (*change)(RoutingData&);
};

// Each starts from 16 experts, K = 4, softmax over the selected where the word begins with it,
// sigmoid otherwise.
constexpr IllegalSettings illegal_settings[] = {
    {"k_above_experts", "K > E", [](RoutingData& d) { d.settings.top_k = experts + 1; }},
    {"k_zero", "K < 1", [](RoutingData& d) { d.settings.top_k = 0; }},
    {"groups_do_not_divide", "E not divisible by G",
     [](RoutingData& d) { d.settings.num_groups = 3, d.settings.kept_groups = 1; }},
    {"k_above_kept", "K > experts of the kept groups",
     [](RoutingData& d) { d.settings.num_groups = 8, d.settings.kept_groups = 1; }},
    {"selected_renormalized", "a softmax over the selected K with renormalisation",
     [](RoutingData& d) { d.settings.renormalize = 1; }},
    {"selected_with_bias", "a softmax over the selected K with an expert bias",
     [](RoutingData& d) { d.bias.assign(at(experts), 0.5); }},
    {"selected_with_groups", "a softmax over the selected K with groups",
     [](RoutingData& d) { d.settings.num_groups = 4, d.settings.kept_groups = 2; }},
};

std::vector<std::string> settings_words() {
  std::vector<std::string> words;
  for (const IllegalSettings& entry : illegal_settings) words.emplace_back(entry.word);
  return words;
}

void run_refused_settings(CaseRun& run) {
  const std::string& what = run.word("what");
  const bool selected = what.substr(0, 8) == "selected";
  const RoutingData legal = legal_data(run, selected ? "softmax_selected" : "sigmoid");
  RouteCall control(run, legal, {.prefix = "control "});
  control.perform();
  judge_distinct_ids(run, legal, control);
  for (const IllegalSettings& entry : illegal_settings) {
    if (what != entry.word) continue;
    RoutingData illegal = legal;
    entry.change(illegal);
    RouteCall call(run, illegal);
    call.refused("GENERAL-3", entry.why);
  }
}

Family refused_settings_family() {
  Family family;
  family.name = "routing.refused_settings";
  family.purpose = "Settings that contradict each other are refused with all outputs untouched";
  family.clauses = {"GENERAL-3", "ROUTING-5a"};
  family.parameters = {word_parameter("what", settings_words(), "the contradiction")};
  const std::vector<Values> all = product({{"what", settings_words()}});
  family.select = tiers({all[0]}, all);
  family.run = run_refused_settings;
  return family;
}

// ---- routing.group_width_refusal

// K = 6 with 4 kept groups is illegal where w = K / kept and the group score is a sum; legal where
// w is 2 or the group score a maximum.
void run_group_width_refusal(CaseRun& run) {
  Random random = run.random("data");
  RoutingData data;
  data.settings = route_settings(32, 6, "sigmoid", false);
  data.settings.num_groups = 8;
  data.settings.kept_groups = 4;
  data.settings.group_score = DROPLESS_GROUP_SCORE_MAX;
  data.tokens = tokens;
  draw_clear_rows(run, data, normal_row(data, random, 2));
  RouteCall control(run, data, {.prefix = "control "});
  control.perform();
  judge_route(run, data, control, {.set = "ROUTING-4b"});
  data.settings.group_score = DROPLESS_GROUP_SCORE_TOP_SUM;
  if (run.profile().group_width == DROPLESS_GROUP_WIDTH_TWO) {
    draw_clear_rows(run, data, normal_row(data, random, 2));
    RouteCall call(run, data);
    call.perform();
    judge_route(run, data, call, {.set = "ROUTING-4c"});
  } else {
    RouteCall call(run, data);
    call.refused("GENERAL-3", "K not divisible by the kept groups");
  }
}

Family group_width_refusal_family() {
  Family family;
  family.name = "routing.group_width_refusal";
  family.purpose =
      "K that the kept groups do not divide is refused where w = K / kept is used, and legal where "
      "it is not";
  family.clauses = {"GENERAL-3",  "ROUTING-1e", "ROUTING-4b", "ROUTING-4c",
                    "ROUTING-5a", "ROUTING-5d", "ROUTING-6c", "ROUTING-10"};
  family.select = tiers({}, {Values{}});
  family.run = run_group_width_refusal;
  return family;
}

// ---- routing.refused_ids

// Forward: given ids; backward: the ids of the forward pass.
void spoil_ids(std::vector<Index>& ids, std::string_view what) {
  const std::size_t last = ids.size() - 1;  // of the last token: all of them are examined
  if (what == "below") ids[last] = -2;
  if (what == "at_experts") ids[last] = experts;
  if (what == "twice") ids[last] = ids[last - 2];
}

void run_refused_ids(CaseRun& run) {
  needs_checked_values(run);
  const std::string& what = run.word("what");
  Random random = run.random("cotangents");
  RoutingData data = legal_data(run, "sigmoid");
  const std::string why = "an id " + what + (what == "below" ? " -1" : "");
  if (run.word("operation") == "forward") {
    data.given_ids = expected_routing(run, data).ids;
    RouteCall control(run, data, {.prefix = "control "});
    control.perform();
    run.judge().exact("ROUTING-13a", "ids of the control", *control.ids, data.given_ids);
    spoil_ids(data.given_ids, what);
    RouteCall call(run, data);
    call.refused("GENERAL-3", why);
    return;
  }
  RoutingGradientData gradient = gradient_data(run, data, random);
  RouteBackwardCall control(run, gradient, {.prefix = "control "});
  control.perform();
  judge_gradient(run, gradient, control);
  spoil_ids(gradient.ids, what);
  RouteBackwardCall call(run, gradient);
  call.refused("GENERAL-3", why);
}

Family refused_ids_family() {
  Family family;
  family.name = "routing.refused_ids";
  family.purpose = "Ids below -1, from E on, or twice in a token are refused, forward and backward";
  family.clauses = {"GENERAL-3", "ROUTING-12a", "ROUTING-13a"};
  family.parameters = {
      word_parameter("operation", {"forward", "backward"}, "what is called"),
      word_parameter("what", {"below", "at_experts", "twice"}, "the last id of the last token")};
  const std::vector<Values> all =
      product({{"operation", {"forward", "backward"}}, {"what", {"twice", "below", "at_experts"}}});
  family.select = tiers({all[0]}, all);
  family.run = run_refused_ids;
  return family;
}

// ---- routing.refused_shapes

void run_refused_shapes(CaseRun& run) {
  const std::string& what = run.word("what");
  const RoutingData data = legal_data(run, "sigmoid");
  RouteCall call(run, data);
  call.perform();
  judge_distinct_ids(run, data, call);
  Buffers& buffers = run.buffers();
  if (what == "ids") {
    call.args.ids = buffers.output("wide ids", DROPLESS_I32, {tokens, top_k + 1}).tensor();
  } else if (what == "weights") {
    call.args.weights = buffers.output("few weights", DROPLESS_FP32, {tokens - 1, top_k}).tensor();
  } else if (what == "counts") {
    call.args.tokens_per_expert =
        buffers.output("few counts", DROPLESS_I64, {experts - 1}).tensor();
  } else if (what == "bias") {
    const std::vector<double> bias(at(experts) + 1, 0.0);
    call.args.expert_bias = buffers.input("long bias", DROPLESS_FP32, {experts + 1}, bias).tensor();
  } else {
    const std::vector<std::uint8_t> mask(at(tokens) - 1, 1);
    call.args.token_mask =
        buffers.input("short mask", DROPLESS_U8, {tokens - 1}, std::span<const std::uint8_t>(mask))
            .tensor();
  }
  call.refused("GENERAL-3", "a wrong shape of " + what);
}

Family refused_shapes_family() {
  Family family;
  family.name = "routing.refused_shapes";
  family.purpose = "Tensors whose shapes do not fit together are refused";
  family.clauses = {"GENERAL-3", "ROUTING-5a"};
  const std::vector<std::string> words = {"ids", "weights", "counts", "bias", "mask"};
  family.parameters = {word_parameter("what", words, "the tensor of a wrong shape")};
  family.select = tiers({}, product({{"what", words}}));
  family.run = run_refused_shapes;
  return family;
}

}  // namespace

void add_routing_refusals(Registry& registry) {
  registry.add(refused_settings_family());
  registry.add(group_width_refusal_family());
  registry.add(refused_ids_family());
  registry.add(refused_shapes_family());
}

}  // namespace dropless::conformance
