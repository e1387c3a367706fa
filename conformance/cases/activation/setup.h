// SPDX-License-Identifier: Apache-2.0
// What the activation cases share: a problem (settings, rows, numbers), the buffers of a forward
// and a backward call, and their judgement.
#pragma once

#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/selection.h"
#include "reference/activation.h"
#include "reference/grouped_gemm.h"

namespace dropless::conformance {

struct ActivationProblem {
  dropless_activation_settings settings{};
  Index length = 0, width = 0;  // N_max, I
  bool grouped = false;         // offsets are handed over, and counts where there is padding
  bool counted = false;
  std::vector<Index> offsets, counts;
  dropless_dtype input = DROPLESS_BF16;   // x
  dropless_dtype output = DROPLESS_BF16;  // h, or d_x
  dropless_dtype cotangent = DROPLESS_BF16;
  std::vector<double> x, weights, dh;
  bool weighted = false;  // row weights are handed over
  Layout layout;

  [[nodiscard]] bool gated() const { return settings.kind != DROPLESS_RELU2; }
  [[nodiscard]] Index columns() const { return gated() ? 2 * width : width; }
  [[nodiscard]] Shape x_shape() const { return {length, columns()}; }
  [[nodiscard]] Shape h_shape() const { return {length, width}; }
  [[nodiscard]] std::vector<reference::RowKind> kinds() const;
  [[nodiscard]] double gate(Index row, Index i) const;
  [[nodiscard]] double up(Index row, Index i) const;  // 0 for relu2
  void set(Index row, Index i, double gate, double up);
  [[nodiscard]] double weight(Index row) const {
    return weighted ? weights[static_cast<std::size_t>(row)] : 1;
  }
};

// Settings of the parameter "model" under the parameter "gate_up" where the family has it.
dropless_activation_settings activation_settings(const CaseRun& run);
// From the parameters model, divisor, rows, load, zones, gate_up, input, output, weights, strides.
ActivationProblem activation_problem(const CaseRun& run);
// Gates and ups of every size and sign, some beyond the limit and none exactly at it; cotangents;
// NaN wherever a row is not real.
void fill_numbers(const CaseRun& run, ActivationProblem& problem, bool weighted);
void poison_idle_rows(ActivationProblem& problem);

struct ActivationCall {
  Buffer *x = nullptr, *h = nullptr;
  dropless_activation_args args;
};
ActivationCall forward_call(CaseRun& run, const ActivationProblem& problem);
struct ActivationBackwardCall {
  Buffer *x = nullptr, *dh = nullptr, *d_x = nullptr, *d_weights = nullptr;
  dropless_activation_backward_args args;
};
ActivationBackwardCall backward_call(CaseRun& run, const ActivationProblem& problem);
void perform(CaseRun& run, ActivationCall& call, std::string_view clause = "GENERAL-1");
void perform(CaseRun& run, ActivationBackwardCall& call, std::string_view clause = "GENERAL-1");

// Per element; infinite (not judged) where the exact result exceeds half the largest value of the
// output, for infinite inputs, and in a gradient for NaN and for inputs exactly at the limit.
std::vector<double> forward_errors(const CaseRun& run, const ActivationProblem& problem,
                                   const std::vector<double>& expected);
std::vector<double> gradient_errors(const CaseRun& run, const ActivationProblem& problem,
                                    const std::vector<double>& expected);

// Judge the whole output: real rows under `clause` (default: by kind, layout and weights), padding
// and tail under ACTIVATION-6, d_row_weights under 5b. Without a clause they demand data that could
// show a fault; a case with a clause of its own has its own demands.
void judge_forward(CaseRun& run, const ActivationProblem& problem, const ActivationCall& call,
                   std::string_view clause = "");
void judge_backward(CaseRun& run, const ActivationProblem& problem,
                    const ActivationBackwardCall& call, std::string_view clause = "");
std::string_view kind_clause(int kind);  // ACTIVATION-1a to 1d

// One model of every kind; both variants of the clamped one.
std::vector<std::string> activation_models();
std::vector<Parameter> activation_parameters(std::vector<Parameter> more = {});

// One function per file of the stage.
void add_activation_shapes(Registry& registry);
void add_activation_sweeps(Registry& registry);
void add_activation_limits(Registry& registry);
void add_activation_relations(Registry& registry);
void add_activation_refusals(Registry& registry);

}  // namespace dropless::conformance
