// SPDX-License-Identifier: Apache-2.0
// Judgement of activations and their gradients, clause by clause.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/cases/activation/setup.h"
#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"
#include "tolerances/float_format.h"

namespace dropless::conformance {
namespace {

const double kNotJudged = std::numeric_limits<double>::infinity();

bool beyond_range(dropless_dtype dtype, double value) {
  return std::abs(value) > tolerances::float_format(dtype).largest / 2;
}

bool at_limit(const dropless_activation_settings& settings, double value) {
  return settings.kind == DROPLESS_SWIGLU_CLAMPED && std::abs(value) == settings.limit;
}

Judged row_flags(const ActivationProblem& problem, Index columns, reference::RowKind kind) {
  Judged flags;
  for (const reference::RowKind row : problem.kinds()) {
    flags.insert(flags.end(), static_cast<std::size_t>(columns), row == kind);
  }
  return flags;
}

// Padding is zero, the tail follows the profile.
void judge_idle_rows(CaseRun& run, const ActivationProblem& problem, const Buffer& buffer) {
  if (!problem.grouped) return;
  const Index columns = problem.length == 0 ? 0 : buffer.size() / problem.length;
  const std::vector<double> zeros(static_cast<std::size_t>(buffer.size()), 0.0);
  run.judge().exact("ACTIVATION-6", "padding of " + buffer.label(), buffer, zeros,
                    row_flags(problem, columns, reference::RowKind::padding));
  const Judged tail = row_flags(problem, columns, reference::RowKind::tail);
  if (run.profile().tail_rows == DROPLESS_TAIL_UNTOUCHED) {
    run.judge().untouched("ACTIVATION-6", "tail of " + buffer.label(), buffer, tail);
  } else {
    run.judge().exact("ACTIVATION-6", "tail of " + buffer.label(), buffer, zeros, tail);
  }
}

void demand_sight(CaseRun& run, const ActivationProblem& problem,
                  const std::vector<double>& expected, const Judged& real) {
  std::vector<double> values;
  for (std::size_t i = 0; i < real.size(); ++i) {
    if (real[i] && std::isfinite(expected[i])) values.push_back(expected[i]);
  }
  if (values.size() < 256) return;
  Judge& judge = run.judge();
  const double rms = trust::root_mean_square(values);
  // Gated: about 45 for many values. Of 50,000 draws of 256 values in 8 weighted rows, the fewest
  // that are looked at, 93 were above 96 and the largest was 117.
  judge.require(rms > 1.0 / 16 && rms < (problem.gated() ? 128 : 64 * 64),
                "RMS of the outputs is near 1, or that of their roots for squares");
  judge.require(trust::distinct(values) >= 64, "the outputs differ from each other");
  // relu2 gives zeros for half of its inputs.
  judge.require(trust::share_of_zeros(values) < (problem.gated() ? 0.5 : 0.7),
                "few outputs are zero");
  if (problem.settings.kind != DROPLESS_SWIGLU_CLAMPED) return;
  const auto kinds = problem.kinds();
  Index gates = 0, high = 0, low = 0, all = 0;
  for (Index row = 0; row < problem.length; ++row) {
    if (kinds[static_cast<std::size_t>(row)] != reference::RowKind::real) continue;
    for (Index i = 0; i < problem.width; ++i) {
      ++all;
      gates += problem.gate(row, i) > problem.settings.limit ? 1 : 0;
      high += problem.up(row, i) > problem.settings.limit ? 1 : 0;
      low += problem.up(row, i) < -problem.settings.limit ? 1 : 0;
    }
  }
  // Of 256 pairs a side may have less than its fiftieth, but has some.
  judge.require(std::min({gates, high, low}) >= (all < 2048 ? 1 : all / 50),
                "the clamp holds on every side");
}

void demand_cotangent(CaseRun& run, const ActivationProblem& problem) {
  std::vector<double> cotangents;
  for (const double dh : problem.dh) {
    if (!std::isnan(dh)) cotangents.push_back(dh);
  }
  run.judge().require(cotangents.size() < 16 || trust::distinct(cotangents) > 1,
                      "the cotangent is not uniform");
}

}  // namespace

std::string_view kind_clause(int kind) {
  constexpr std::string_view clauses[] = {"ACTIVATION-1a", "ACTIVATION-1b", "ACTIVATION-1c",
                                          "ACTIVATION-1d"};
  return clauses[kind];
}

std::vector<double> forward_errors(const CaseRun& run, const ActivationProblem& problem,
                                   const std::vector<double>& expected) {
  std::vector<double> errors(expected.size());
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const std::size_t at = static_cast<std::size_t>(row * problem.width + i);
      const double gate = problem.gate(row, i), up = problem.up(row, i);
      const bool open =
          std::isinf(gate) || std::isinf(up) || beyond_range(problem.output, expected[at]);
      errors[at] = open ? kNotJudged
                        : tolerances::activation_forward(run.profile(), problem.settings, gate, up,
                                                         problem.weight(row));
    }
  }
  return errors;
}

std::vector<double> gradient_errors(const CaseRun& run, const ActivationProblem& problem,
                                    const std::vector<double>& expected) {
  std::vector<double> errors(expected.size());
  for (Index row = 0; row < problem.length; ++row) {
    for (Index i = 0; i < problem.width; ++i) {
      const double gate = problem.gate(row, i), up = problem.up(row, i);
      const auto columns = reference::gate_up_columns(problem.settings, problem.width, i);
      const auto bound = tolerances::activation_backward(
          run.profile(), problem.settings, gate, up,
          problem.dh[static_cast<std::size_t>(row * problem.width + i)], problem.weight(row));
      const bool strange = !std::isfinite(gate) || !std::isfinite(up);
      const auto place = [&](Index column, double error, double input) {
        const std::size_t at = static_cast<std::size_t>(row * problem.columns() + column);
        const bool open = strange || at_limit(problem.settings, input) ||
                          beyond_range(problem.output, expected[at]);
        errors[at] = open ? kNotJudged : error;
      };
      place(columns.gate, bound.d_gate, gate);
      if (problem.gated()) place(columns.up, bound.d_up, up);
    }
  }
  return errors;
}

void judge_forward(CaseRun& run, const ActivationProblem& problem, const ActivationCall& call,
                   std::string_view clause) {
  const bool ordinary = clause.empty();
  if (ordinary) {
    clause = kind_clause(problem.settings.kind);
    if (problem.settings.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED) clause = "ACTIVATION-2";
    if (problem.weighted) clause = "ACTIVATION-5a";
  }
  const auto expected = reference::activation(problem.settings, problem.length, problem.width,
                                              problem.x, problem.weights);
  const Judged real = row_flags(problem, problem.width, reference::RowKind::real);
  run.judge().bounded(clause, "h", *call.h, expected, forward_errors(run, problem, expected), real);
  judge_idle_rows(run, problem, *call.h);
  if (ordinary) demand_sight(run, problem, expected, real);
}

void judge_backward(CaseRun& run, const ActivationProblem& problem,
                    const ActivationBackwardCall& call, std::string_view clause) {
  const bool ordinary = clause.empty();
  if (ordinary) clause = problem.weighted ? "ACTIVATION-5b" : "ACTIVATION-4a";
  const auto expected = reference::activation_backward(
      problem.settings, problem.length, problem.width, problem.x, problem.dh, problem.weights);
  const Judged real = row_flags(problem, problem.columns(), reference::RowKind::real);
  run.judge().bounded(clause, "d_x", *call.d_x, expected.d_x,
                      gradient_errors(run, problem, expected.d_x), real);
  judge_idle_rows(run, problem, *call.d_x);
  if (ordinary) {
    demand_sight(run, problem, expected.d_x, real);
    demand_cotangent(run, problem);
  }
  if (!problem.weighted) return;
  std::vector<double> errors(static_cast<std::size_t>(problem.length));
  for (Index row = 0; row < problem.length; ++row) {
    double& error = errors[static_cast<std::size_t>(row)];
    const double gauge = expected.d_row_weights.gauge[static_cast<std::size_t>(row)];
    error = tolerances::sum(problem.width, gauge);
    for (Index i = 0; i < problem.width; ++i) {
      const double dh = problem.dh[static_cast<std::size_t>(row * problem.width + i)];
      if (std::isnan(dh)) continue;  // not a real row
      error +=
          std::abs(dh) * tolerances::activation_value(run.profile(), problem.settings,
                                                      problem.gate(row, i), problem.up(row, i));
    }
  }
  run.judge().bounded("ACTIVATION-5b", "d_row_weights", *call.d_weights,
                      expected.d_row_weights.value, errors,
                      row_flags(problem, 1, reference::RowKind::real));
  judge_idle_rows(run, problem, *call.d_weights);
}

}  // namespace dropless::conformance
