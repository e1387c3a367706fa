// SPDX-License-Identifier: Apache-2.0
// The same bits again: other strides (GENERAL-6), other thread counts (GENERAL-5).
#include "conformance/cases/activation/setup.h"

namespace dropless::conformance {
namespace {

ActivationProblem relation_problem(CaseRun& run) {
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  problem.length = 70, problem.width = 75;
  problem.output = DROPLESS_FP32, problem.cotangent = DROPLESS_FP32;
  fill_numbers(run, problem, true);
  return problem;
}

struct Bytes {
  std::vector<std::uint8_t> h, d_x, d_weights;
};

Bytes bytes_of(const ActivationCall& forward, const ActivationBackwardCall& backward) {
  return {forward.h->bytes(), backward.d_x->bytes(), backward.d_weights->bytes()};
}

void judge_same(CaseRun& run, std::string_view clause, const std::string& what,
                const ActivationCall& forward, const ActivationBackwardCall& backward,
                const Bytes& earlier) {
  run.judge().same_bytes(clause, "h " + what, *forward.h, earlier.h);
  run.judge().same_bytes(clause, "d_x " + what, *backward.d_x, earlier.d_x);
  run.judge().same_bytes(clause, "d_row_weights " + what, *backward.d_weights, earlier.d_weights);
}

void run_strides(CaseRun& run) {
  ActivationProblem problem = relation_problem(run);
  ActivationCall forward = forward_call(run, problem);
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, forward), perform(run, backward);
  judge_forward(run, problem, forward), judge_backward(run, problem, backward);
  const Bytes dense = bytes_of(forward, backward);
  const bool repeatable = run.profile().determinism != DROPLESS_DETERMINISTIC_NO;
  for (const Index gap : {1, 6}) {
    problem.layout = {.row_gap = gap, .offset_bytes = 4 * gap};
    ActivationCall spread = forward_call(run, problem);
    ActivationBackwardCall spread_backward = backward_call(run, problem);
    perform(run, spread, "GENERAL-6"), perform(run, spread_backward, "GENERAL-6");
    if (repeatable) {
      judge_same(run, "GENERAL-6", "with gaps of " + std::to_string(gap), spread, spread_backward,
                 dense);
    } else {
      judge_forward(run, problem, spread, "GENERAL-6");
      judge_backward(run, problem, spread_backward, "GENERAL-6");
    }
  }
}

void run_repeat(CaseRun& run) {
  const ActivationProblem problem = relation_problem(run);
  ActivationCall forward = forward_call(run, problem);
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, forward), perform(run, backward);
  judge_forward(run, problem, forward), judge_backward(run, problem, backward);
  if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;
  const Bytes earlier = bytes_of(forward, backward);
  const bool any = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  for (const int threads : any ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 1}) {
    run.buffers().poison_outputs();
    run.perform_with_threads(threads, "activation_forward", run.implementation().activation_forward,
                             forward.args);
    run.perform_with_threads(threads, "activation_backward",
                             run.implementation().activation_backward, backward.args);
    judge_same(run, "GENERAL-5", "with " + std::to_string(threads) + " threads", forward, backward,
               earlier);
  }
}

Family relation_family(std::string name, std::string purpose, std::string clause,
                       std::function<void(CaseRun&)> run) {
  return {std::move(name),
          std::move(purpose),
          {std::move(clause), "ACTIVATION-5a", "ACTIVATION-5b"},
          {{"model", activation_models(), 0, 0, "published model: kind of the activation"},
           {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
          [](Tier tier) {
            if (tier == Tier::smoke) return std::vector<Values>{};
            const auto all = product({{"model", activation_models()}, {"seed", {"1"}}});
            const std::vector<Values> some = {all[0], all[1]};
            return tier == Tier::standard ? some : without(all, some);
          },
          std::move(run)};
}

}  // namespace

void add_activation_relations(Registry& registry) {
  registry.add(relation_family("activation.strides",
                               "Proves that gaps between rows change no bit and stay as they are.",
                               "GENERAL-6", run_strides));
  registry.add(relation_family(
      "activation.repeat",
      "Proves that both directions are the same again, for other thread counts where declared.",
      "GENERAL-5", run_repeat));
}

}  // namespace dropless::conformance
