// SPDX-License-Identifier: Apache-2.0
// Exhaustive over all 65536 bf16 gates: ACTIVATION-1, 2b and 4a.
#include <cmath>

#include "conformance/cases/activation/setup.h"
#include "conformance/judge/elements.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

ActivationProblem sweep_problem(CaseRun& run) {
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  problem.length = problem.width = 256;
  problem.output = run.word("output") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
  problem.x.resize(static_cast<std::size_t>(element_count(problem.x_shape())));
  const double up = std::stod(run.word("up"));
  Random random = run.random("dh");
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const std::uint8_t gate[2] = {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(row)};
      problem.set(row, i, decode(DROPLESS_BF16, gate), up);
      problem.dh.push_back(tolerances::round_to(DROPLESS_BF16, 0.25 + random.uniform()));
    }
  }
  return problem;
}

void run_sweep(CaseRun& run) {
  const ActivationProblem problem = sweep_problem(run);
  if (run.word("direction") == "forward") {
    ActivationCall call = forward_call(run, problem);
    perform(run, call);
    judge_forward(run, problem, call, kind_clause(problem.settings.kind));
  } else {
    ActivationBackwardCall call = backward_call(run, problem);
    perform(run, call);
    judge_backward(run, problem, call, "ACTIVATION-4a");
  }
}

}  // namespace

void add_activation_sweeps(Registry& registry) {
  const std::vector<std::string> ups = {"1", "-2.5", "9", "100"};
  registry.add(
      {"activation.sweep",
       "Proves every bf16 gate at one up value, in one direction; infinite gates and exact "
       "results near the end of the range are not judged.",
       {"ACTIVATION-1a", "ACTIVATION-1b", "ACTIVATION-1c", "ACTIVATION-1d", "ACTIVATION-4a"},
       {{"model", activation_models(), 0, 0, "published model: kind of the activation"},
        {"direction", {"forward", "backward"}, 0, 0, "h, or d_x"},
        {"up", ups, 0, 0, "the up projection of every element"},
        {"output", {"fp32", "bf16"}, 0, 0, "dtype of h or d_x"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       [ups](Tier tier) {
         const auto axes = [](std::vector<std::string> values, std::vector<std::string> outputs) {
           return std::vector<Axis>{{"model", activation_models()},
                                    {"direction", {"forward", "backward"}},
                                    {"up", std::move(values)},
                                    {"output", std::move(outputs)},
                                    {"seed", {"1"}}};
         };
         if (tier == Tier::standard) return product(axes({"-2.5"}, {"fp32"}));
         if (tier == Tier::smoke) return std::vector<Values>{};
         return without(product(axes(ups, {"fp32", "bf16"})), product(axes({"-2.5"}, {"fp32"})));
       },
       run_sweep});
}

}  // namespace dropless::conformance
