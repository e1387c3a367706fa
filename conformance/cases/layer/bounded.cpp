// SPDX-License-Identifier: Apache-2.0
// Whole layers of published models within the bounds of a whole layer: LAYER-1a to 1c, 1e to 1g, 2.
#include <cmath>

#include "conformance/cases/data.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"
#include "conformance/judge/trust.h"

namespace dropless::conformance {
namespace {

void run_bounded(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  LayerCall call(run, data);
  call.forward(true);
  const Replay replay = judge_routing(run, data, call);
  const bool mxfp8 = data.settings.recipe == DROPLESS_RECIPE_MXFP8;
  const bool late = data.settings.weight_placement == DROPLESS_WEIGHTS_LATE;
  judge_output(run, data, call, replay, mxfp8 ? "LAYER-2" : (late ? "LAYER-1a" : "LAYER-1c"));

  Random random = run.random("d_y");
  const auto d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  call.backward(d_y, true);
  judge_gradients(run, data, call, replay, d_y, mxfp8 ? "LAYER-2" : "LAYER-1e");

  // A row is as large as the weight of its experts, which the router says (with weights on the
  // input of a gated activation as its square): a few may all be small.
  const bool squared = data.settings.weight_placement == DROPLESS_WEIGHTS_INPUT;
  if (data.tokens >= (squared ? 64 : 16) && run.word("mask") != "all") {
    const double rms = trust::root_mean_square(replay.output.y);
    run.judge().require(rms > 0.1 && rms < 30, "RMS of y is near 1");
  }
}

std::vector<Parameter> layer_parameters() {
  return {{"model", top_k_model_names(), 0, 0, "published model"},
          {"divisor", {}, 1, 1024, "widths are divided by this"},
          {"tokens", {}, 0, 1 << 16, "tokens T"},
          {"dtype", {"bf16", "fp32"}, 0, 0, "of the input and the expert weights"},
          {"placement", {"late", "early", "input"}, 0, 0, "of the routing weight"},
          {"recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, 0, 0, "mxfp8_e5m2: gradients in E5M2"},
          {"routing", {"router", "given"}, 0, 0, "ids from the router, or handed in"},
          {"mask", {"none", "some", "all"}, 0, 0, "masked tokens"},
          {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
}

std::vector<Axis> layer_axes(std::vector<std::string> models, std::vector<std::string> divisors,
                             std::vector<std::string> tokens) {
  return {{"model", std::move(models)},
          {"divisor", std::move(divisors)},
          {"tokens", std::move(tokens)},
          {"dtype", {"bf16", "fp32"}},
          {"placement", {"late", "early", "input"}},
          {"recipe", {"plain", "mxfp8", "mxfp8_e5m2"}},
          {"routing", {"router", "given"}},
          {"mask", {"none", "some"}},
          {"seed", {"1"}}};
}

std::vector<Values> select_bounded(Tier tier) {
  const auto plain = [](std::vector<std::string> models, std::vector<std::string> dtypes,
                        std::vector<std::string> tokens) {
    auto axes = layer_axes(std::move(models), {"64"}, std::move(tokens));
    axes[3].values = std::move(dtypes), axes[4].values = {"late"}, axes[5].values = {"plain"};
    axes[6].values = {"router"}, axes[7].values = {"none"};
    return product(axes);
  };
  auto smoke = plain({"deepseek-v3", "gpt-oss-20b"}, {"bf16"}, {"33"});
  for (const auto& more :  // a shared expert, biases, plain ones, scales of experts, a shared gate
       {plain({"mixtral-8x7b"}, {"fp32"}, {"33"}), plain({"gemma-4-26b-a4b"}, {"bf16"}, {"33"}),
        plain({"qwen1-5-moe-a2-7b"}, {"bf16"}, {"33"})}) {
    smoke.insert(smoke.end(), more.begin(), more.end());
  }
  auto recipe = layer_axes({"qwen1-5-moe-a2-7b"}, {"64"}, {"33"});
  recipe[3].values = {"bf16"}, recipe[4].values = {"early"}, recipe[5].values = {"mxfp8"};
  recipe[6].values = {"given"}, recipe[7].values = {"some"};
  for (Values& values : product(recipe)) smoke.push_back(std::move(values));
  if (tier == Tier::smoke) return smoke;

  auto standard = plain(top_k_model_names(), {"bf16"}, {"33"});  // every model once
  const auto mixed = pairwise(
      layer_axes({"mixtral-8x7b", "granite-3-1-1b-a400m", "dbrx", "qwen1-5-moe-a2-7b",
                  "llama-4-scout", "gpt-oss-20b", "nemotron-3-nano-30b-a3b", "gemma-4-26b-a4b"},
                 {"64"}, {"1", "17", "65"}));
  for (const Values& values : without(mixed, standard)) standard.push_back(values);
  if (tier == Tier::standard) return without(standard, smoke);
  return without(
      without(pairwise(layer_axes(top_k_model_names(), {"32", "64"}, {"129"})), standard), smoke);
}

// No tokens, masked tokens, tokens without experts: LAYER-1g.
void run_nothing(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  const std::string& what = run.word("what");
  if (what == "no_experts") {
    data.given_ids.assign(static_cast<std::size_t>(data.tokens * data.route.top_k), -1);
  }
  LayerCall call(run, data);
  call.forward(true);
  const Replay replay = judge_routing(run, data, call);
  judge_output(run, data, call, replay, "LAYER-1a");
  Random random = run.random("d_y");
  const auto d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
  call.backward(d_y, true);
  judge_gradients(run, data, call, replay, d_y, "LAYER-1g");
  if (data.shared_intermediate == 0) {
    run.judge().exact("LAYER-1g", "y", *call.y, std::vector<double>(replay.output.y.size(), 0.0));
  }
}

std::string nothing_objection(const Values& values) {
  const std::string& what = value_of(values, "what");
  const bool no_tokens = value_of(values, "tokens") == "0";
  if ((what == "no_tokens") != no_tokens) return "what=no_tokens and tokens=0 go together";
  const bool all_masked = value_of(values, "mask") == "all";
  return what == "all_masked" && !all_masked ? "what=all_masked goes with mask=all" : "";
}

// Late and early agree in exact arithmetic when the second matrix has no bias.
void run_late_is_early(CaseRun& run) {
  LayerData data;
  fill_layer(run, data);
  data.down_bias.clear();
  LayerCall late(run, data);
  late.settings.weight_placement = DROPLESS_WEIGHTS_LATE;
  late.forward(false);
  const Replay replay = judge_routing(run, data, late);
  LayerData early_data;
  fill_layer(run, early_data);
  early_data.down_bias.clear();
  early_data.given_ids = replay.ids;
  early_data.settings.weight_placement = DROPLESS_WEIGHTS_EARLY;
  LayerCall early(run, early_data);
  early.forward(false);
  // Judged by the bound of the early layer around the early reference, which in fp32 storage is the
  // late one as well; the distance of the two references is part of the check.
  const Replay again = judge_routing(run, early_data, early);
  judge_output(run, early_data, early, again, "LAYER-1c");
  double distance = 0;
  for (std::size_t i = 0; i < replay.output.y.size(); ++i) {
    distance = std::max(distance, std::fabs(replay.output.y[i] - again.output.y[i]));
  }
  run.judge().require(distance < 1e-9, "late and early references agree in double");
}

}  // namespace

void add_layer_bounded(Registry& registry) {
  registry.add(
      {"layer.bounded",
       "Proves outputs and every gradient of a whole layer within the error that its stages "
       "may make; faults far below bf16 rounding are left to the single stages.",
       {"LAYER-1a", "LAYER-1b", "LAYER-1c", "LAYER-1e", "LAYER-1f", "LAYER-1g", "LAYER-2"},
       layer_parameters(),
       select_bounded,
       run_bounded});
  std::vector<Parameter> nothing = layer_parameters();
  nothing.push_back(
      {"what", {"no_tokens", "all_masked", "no_experts"}, 0, 0, "why nothing is routed"});
  registry.add(
      {"layer.nothing_routed",
       "Proves a step in which no token reaches an expert: outputs, and gradients in full.",
       {"LAYER-1a", "LAYER-1b", "LAYER-1f", "LAYER-1g"},
       nothing,
       [](Tier tier) {
         const auto cases = [](std::vector<std::string> models, const char* what,
                               const char* tokens, const char* mask) {
           auto axes = layer_axes(std::move(models), {"64"}, {tokens});
           axes[3].values = {"bf16"}, axes[4].values = {"late"};
           axes[5].values = {"plain"}, axes[6].values = {"router"};
           axes[7].values = {mask};
           axes.push_back({"what", {what}});
           return product(axes);
         };
         std::vector<Values> all;
         const std::vector<std::string> models =
             tier == Tier::smoke ? std::vector<std::string>{"mixtral-8x7b"}
                                 : std::vector<std::string>{"deepseek-moe-16b", "dbrx"};
         if (tier == Tier::full) return all;
         for (auto& v : cases(models, "no_tokens", "0", "none")) all.push_back(v);
         for (auto& v : cases(models, "all_masked", "9", "all")) all.push_back(v);
         for (auto& v : cases(models, "no_experts", "9", "none")) all.push_back(v);
         return all;
       },
       run_nothing,
       nothing_objection});
  std::vector<Parameter> unrounded = layer_parameters();  // the two differ by roundings otherwise
  unrounded[3].words = {"fp32"}, unrounded[4].words = {"late"}, unrounded[5].words = {"plain"};
  registry.add(
      {"layer.late_is_early",
       "Proves that late and early weights give the same layer when there is no second bias.",
       {"LAYER-1a", "LAYER-1b", "LAYER-1c", "LAYER-1g"},
       unrounded,
       [](Tier tier) {
         if (tier != Tier::standard) return std::vector<Values>{};
         auto axes = layer_axes({"mixtral-8x7b", "olmoe-1b-7b"}, {"64"}, {"33"});
         axes[3].values = {"fp32"}, axes[4].values = {"late"}, axes[5].values = {"plain"};
         axes[6].values = {"router"}, axes[7].values = {"none"};
         return product(axes);
       },
       run_late_is_early});
}

}  // namespace dropless::conformance
