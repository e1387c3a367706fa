// SPDX-License-Identifier: Apache-2.0
// Where activations go wrong: exactly at the limit (ACTIVATION-4b), at large magnitudes
// (ACTIVATION-3), with NaN (ACTIVATION-2b).
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/activation/setup.h"
#include "conformance/judge/elements.h"
#include "tolerances/bounds.h"
#include "tolerances/float_format.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ActivationProblem small_problem(CaseRun& run) {
  ActivationProblem problem;
  problem.settings = activation_settings(run);
  problem.length = 24, problem.width = 40;
  problem.input = problem.output = problem.cotangent =
      run.word("dtype") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
  fill_numbers(run, problem, false);
  return problem;
}

// d_gate and d_up of one element with the slope of the inside at the limit, and their errors.
struct Slopes {
  double gate, up, gate_error, up_error;
};

Slopes inner_slopes(const CaseRun& run, const ActivationProblem& problem, double gate, double up,
                    double dh) {
  // With the limit out of the way the slope is the inner one; the other input stays clamped.
  dropless_activation_settings open = problem.settings;
  open.limit *= 2;
  const double limit = problem.settings.limit;
  const double held_gate = std::min(gate, limit), held_up = std::clamp(up, -limit, limit);
  const auto point = reference::activate(open, held_gate, held_up);
  const auto error =
      tolerances::activation_backward(run.profile(), open, held_gate, held_up, dh, 1);
  return {dh * point.d_gate, dh * point.d_up, error.d_gate, error.d_up};
}

void judge_slope(CaseRun& run, const ActivationProblem& problem, const char* what, double inner,
                 double error, double got, Index row, Index column) {
  bool accepted = false;
  for (const double share : {1.0, 0.5, 0.0}) {
    accepted = accepted ||
               tolerances::contains(
                   tolerances::rounded_interval(problem.output, share * inner, share * error), got);
  }
  run.judge().holds("ACTIVATION-4b", what, accepted, print(inner) + ", half of it, or 0",
                    print(got), "[" + std::to_string(row) + "," + std::to_string(column) + "]");
}

// Every third gate is the limit, every third up the limit, every third up its opposite.
void run_at_limit(CaseRun& run) {
  ActivationProblem problem = small_problem(run);
  const double limit = problem.settings.limit;
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const double gate = (row + i) % 3 == 0 ? limit : problem.gate(row, i);
      const double up = i % 3 == 0 ? limit : i % 3 == 1 ? -limit : problem.up(row, i);
      problem.set(row, i, gate, up);
    }
  }
  ActivationCall forward = forward_call(run, problem);
  perform(run, forward);
  judge_forward(run, problem, forward, "ACTIVATION-1b");
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, backward);
  judge_backward(run, problem, backward, "ACTIVATION-4a");
  const std::vector<double> got = backward.d_x->values();
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const double gate = problem.gate(row, i), up = problem.up(row, i);
      const auto at = reference::gate_up_columns(problem.settings, problem.width, i);
      const auto slopes = inner_slopes(
          run, problem, gate, up, problem.dh[static_cast<std::size_t>(row * problem.width + i)]);
      const auto value = [&](Index column) {
        return got[static_cast<std::size_t>(row * problem.columns() + column)];
      };
      if (gate == limit) {
        judge_slope(run, problem, "d_gate at the limit", slopes.gate, slopes.gate_error,
                    value(at.gate), row, at.gate);
      }
      if (std::abs(up) == limit) {
        judge_slope(run, problem, "d_up at the limit", slopes.up, slopes.up_error, value(at.up),
                    row, at.up);
      }
    }
  }
}

// Finite where the exact result is at most half the largest value, and never NaN.
void judge_range(CaseRun& run, const Buffer& buffer, const std::vector<double>& expected) {
  const double half = tolerances::float_format(buffer.dtype()).largest / 2;
  const std::vector<double> got = buffer.values();
  Index judged = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool small = std::abs(expected[i]) <= half;
    judged += small && expected[i] != 0 ? 1 : 0;
    run.judge().holds("ACTIVATION-3", buffer.label(),
                      small ? std::isfinite(got[i]) : !std::isnan(got[i]),
                      small ? "finite: " + print(expected[i]) : "anything but NaN", print(got[i]),
                      element_name(buffer.shape(), static_cast<Index>(i)));
  }
  run.judge().require(10 * judged >= buffer.size(), "a tenth of the results is moderate");
}

// Ordinary inputs and, more often, magnitudes from 1 to the largest, in gate and up independently;
// cotangents of at most 1, so that no product of factors leaves the range by their order alone.
void run_range(CaseRun& run) {
  ActivationProblem problem = small_problem(run);
  Random random = run.random("magnitudes");
  for (double& value : problem.x) {
    if (random.chance(0.4)) continue;
    const double magnitude = std::exp2(127.5 * random.uniform());
    value = tolerances::round_to(problem.input, random.chance(0.5) ? magnitude : -magnitude);
  }
  for (double& value : problem.dh) value = std::clamp(value, -1.0, 1.0);
  ActivationCall forward = forward_call(run, problem);
  perform(run, forward, "ACTIVATION-3");
  judge_forward(run, problem, forward, "ACTIVATION-3");
  judge_range(run, *forward.h,
              reference::activation(problem.settings, problem.length, problem.width, problem.x));
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, backward, "ACTIVATION-3");
  judge_backward(run, problem, backward, "ACTIVATION-3");
  judge_range(run, *backward.d_x,
              reference::activation_backward(problem.settings, problem.length, problem.width,
                                             problem.x, problem.dh)
                  .d_x);
}

// A tenth of the gates and a tenth of the ups are NaN.
void run_nan(CaseRun& run) {
  ActivationProblem problem = small_problem(run);
  Random random = run.random("nan");
  for (double& value : problem.x) {
    if (random.chance(0.1)) value = kNan;
  }
  const auto lost = std::count_if(problem.x.begin(), problem.x.end(),
                                  [](double value) { return std::isnan(value); });
  run.judge().require(lost > 16, "more than 16 inputs are NaN");
  ActivationCall forward = forward_call(run, problem);
  perform(run, forward);
  judge_forward(run, problem, forward, "ACTIVATION-2b");
  ActivationBackwardCall backward = backward_call(run, problem);
  perform(run, backward);
  judge_backward(run, problem, backward, "ACTIVATION-2b");
  // The slope of the clamp may hide a NaN from one gradient of a pair, but a NaN gate is in d_up
  // (relu2: in its own gradient), and a NaN up is in d_gate unless the gate is held fast.
  const std::vector<double> got = backward.d_x->values();
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const double gate = problem.gate(row, i);
      const bool held =
          problem.settings.kind == DROPLESS_SWIGLU_CLAMPED && gate > problem.settings.limit;
      if (!std::isnan(gate) && (!std::isnan(problem.up(row, i)) || held)) continue;
      const auto at = reference::gate_up_columns(problem.settings, problem.width, i);
      const auto value = [&](Index column) {
        return got[static_cast<std::size_t>(row * problem.columns() + column)];
      };
      const bool seen = std::isnan(value(at.gate)) || (problem.gated() && std::isnan(value(at.up)));
      run.judge().holds("ACTIVATION-2b", "gradients of a NaN", seen, "NaN in one of them",
                        print(value(at.gate)),
                        element_name(problem.h_shape(), row * problem.width + i));
    }
  }
}

std::vector<Parameter> parameters(std::vector<std::string> models) {
  return {{"model", std::move(models), 0, 0, "published model: kind and limits"},
          {"gate_up", {"concatenated", "interleaved"}, 0, 0, "layout of gate and up"},
          {"dtype", {"bf16", "fp32"}, 0, 0, "of all tensors"},
          {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
}

std::function<std::vector<Values>(Tier)> selection(std::vector<std::string> models,
                                                   bool smoke_all) {
  return [models = std::move(models), smoke_all](Tier tier) {
    const auto axes = [&](std::vector<std::string> layouts, std::vector<std::string> dtypes) {
      return std::vector<Axis>{{"model", models},
                               {"gate_up", std::move(layouts)},
                               {"dtype", std::move(dtypes)},
                               {"seed", {"1"}}};
    };
    auto smoke = product(axes({"concatenated"}, {"fp32"}));
    if (!smoke_all) smoke.resize(1);
    if (tier == Tier::smoke) return smoke;
    const auto standard =
        without(pairwise(axes({"concatenated", "interleaved"}, {"fp32", "bf16"})), smoke);
    if (tier == Tier::standard) return standard;
    return without(without(product(axes({"concatenated", "interleaved"}, {"fp32", "bf16"})), smoke),
                   standard);
  };
}

}  // namespace

void add_activation_limits(Registry& registry) {
  const std::vector<std::string> clamped = {"gpt-oss-20b", "deepseek-v4-flash"};
  registry.add({"activation.at_limit",
                "Accepts the slope of either side, or half, for inputs exactly at the limit, and "
                "judges the other derivative as ever.",
                {"ACTIVATION-1b", "ACTIVATION-4a", "ACTIVATION-4b"},
                parameters(clamped),
                selection(clamped, false),
                run_at_limit});
  registry.add(
      {"activation.range",
       "Proves that large inputs give finite results where the exact ones are moderate, and "
       "never NaN, forward and backward.",
       {"ACTIVATION-3"},
       parameters(activation_models()),
       selection(activation_models(), true),
       run_range});
  registry.add({"activation.nan",
                "Proves that NaN comes out where it went in, through the clamp too, and nowhere "
                "else.",
                {"ACTIVATION-2b"},
                parameters(activation_models()),
                selection(activation_models(), false),
                run_nan});
}

}  // namespace dropless::conformance
