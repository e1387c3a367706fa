// SPDX-License-Identifier: Apache-2.0
// Forward and backward on the rows of real models: ACTIVATION-1, 2, 4a, 5 and 6; and on none.
#include "conformance/cases/activation/setup.h"

namespace dropless::conformance {
namespace {

void run_forward(CaseRun& run) {
  const ActivationProblem problem = activation_problem(run);
  ActivationCall call = forward_call(run, problem);
  perform(run, call);
  judge_forward(run, problem, call);
}

void run_backward(CaseRun& run) {
  const ActivationProblem problem = activation_problem(run);
  ActivationBackwardCall call = backward_call(run, problem);
  perform(run, call);
  judge_backward(run, problem, call);
}

// No rows, or rows of width zero; with zones every expert is empty.
void run_nothing(CaseRun& run) {
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  const bool no_rows = run.word("nothing") == "rows";
  problem.length = no_rows ? 0 : 3, problem.width = no_rows ? 40 : 0;
  problem.grouped = run.word("zones") == "tight";
  if (problem.grouped)
    problem.offsets = {0, 0, problem.length}, problem.counts = {0, problem.length};
  fill_numbers(run, problem, true);
  run.judge().require(problem.x.empty(), "x is empty");
  ActivationCall forward = forward_call(run, problem);
  perform(run, forward, "GENERAL-4");
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, backward, "GENERAL-4");
  // A dot product of width zero is zero, and it is written.
  const std::vector<double> zeros(static_cast<std::size_t>(problem.length), 0.0);
  run.judge().exact("GENERAL-4", "d_row_weights", *backward.d_weights, zeros);
  run.judge().holds("GENERAL-4", "status of both calls", true, "OK", "OK");
}

using Words = std::vector<std::string>;

std::vector<Axis> axes(Words models, Words rows, Words loads, Words weights) {
  return {{"model", std::move(models)},
          {"divisor", {"64"}},
          {"rows", std::move(rows)},
          {"load", std::move(loads)},
          {"zones", {"padded", "none", "tight"}},
          {"gate_up", {"concatenated", "interleaved"}},
          {"input", {"bf16", "fp32"}},
          {"output", {"bf16", "fp32"}},
          {"weights", std::move(weights)},
          {"strides", {"dense", "gaps"}},
          {"seed", {"1"}}};
}

// Smoke: one row for every kind, the rest of the axes at their first values.
std::function<std::vector<Values>(Tier)> selection(const char* smoke_weights) {
  return [smoke_weights](Tier tier) {
    auto few = axes(activation_models(), {"97"}, {"tile_edge"}, {smoke_weights});
    for (Axis& axis : few) {
      if (axis.name != "model") axis.values.resize(1);
    }
    const auto smoke = product(few);
    if (tier == Tier::smoke) return smoke;
    const auto standard =
        without(pairwise(axes(activation_models(), {"97"}, {"zipf", "empty_first", "all_empty"},
                              {"none", "given"})),
                smoke);
    if (tier == Tier::standard) return standard;
    Words names;
    for (const Model& model : models()) names.push_back(model.name);
    return pairwise(
        axes(names, {"1", "600"}, {"empty_last", "one_row_each", "one_hot"}, {"none", "given"}));
  };
}

}  // namespace

void add_activation_shapes(Registry& registry) {
  const std::vector<Parameter> more = {{"weights", {"none", "given"}, 0, 0, "early row weights"},
                                       {"strides", {"dense", "gaps"}, 0, 0, "gaps between rows"}};
  registry.add({"activation.forward",
                "Proves h on the rows of real models, weighted or not, with zones or without; NaN "
                "lies wherever no real row is.",
                {"ACTIVATION-1a", "ACTIVATION-1b", "ACTIVATION-1c", "ACTIVATION-1d", "ACTIVATION-2",
                 "ACTIVATION-5a", "ACTIVATION-6"},
                activation_parameters(more),
                selection("none"),
                run_forward});
  registry.add({"activation.backward",
                "Proves the gradients of gate, up and row weight on the rows of real models; NaN "
                "lies wherever no real row is.",
                {"ACTIVATION-4a", "ACTIVATION-5b", "ACTIVATION-6"},
                activation_parameters(more),
                selection("given"),
                run_backward});
  registry.add({"activation.nothing",
                "Proves requests without rows or columns, whose data pointers are null.",
                {"GENERAL-4"},
                {{"model", activation_models(), 0, 0, "published model: kind of the activation"},
                 {"nothing", {"rows", "columns"}, 0, 0, "what there is none of"},
                 {"zones", {"none", "tight"}, 0, 0, "offsets are handed over"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [](Tier tier) {
                  if (tier == Tier::smoke || tier == Tier::full) return std::vector<Values>{};
                  return pairwise({{"model", {"mixtral-8x7b", "nemotron-3-nano-30b-a3b"}},
                                   {"nothing", {"rows", "columns"}},
                                   {"zones", {"none", "tight"}},
                                   {"seed", {"1"}}});
                },
                run_nothing});
}

}  // namespace dropless::conformance
