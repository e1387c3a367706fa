// SPDX-License-Identifier: Apache-2.0
// What the permutation cases share: a routing under a load, the reference's plan for it, and
// buffers that are longer than the plan needs, so that there are rows beyond the last zone.
#pragma once

#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/selection.h"
#include "reference/permutation.h"

namespace dropless::conformance {

struct RoutedTokens {
  Index tokens = 0, top_k = 0, experts = 0, hidden = 0;
  Index length = 0;  // rows of the buffers, N_max
  std::vector<Index> ids;
  reference::PermutePlan plan;

  [[nodiscard]] Index real_rows() const;  // without padding, which shows nothing
  [[nodiscard]] Shape slots() const { return {tokens, top_k}; }
  [[nodiscard]] Shape token_rows() const { return {tokens, hidden}; }
  [[nodiscard]] Shape expert_rows() const { return {length, hidden}; }
};

// From the parameters model, divisor, tokens, load. A share of single pairs is left unrouted, but
// not all of them.
RoutedTokens routed_tokens(CaseRun& run, double missing = 0.05);

// That results of so many elements of real rows vary: more than 8 distinct values, or fewer where
// there are few. Rows of exact data draw from 14 values.
void demand_variety(CaseRun& run, std::span<const double> results, Index elements,
                    std::string_view what);

// The plan as inputs of the later operations. The tail of `source` holds ids that look valid:
// whoever reads beyond offsets[E] is seen.
struct PlanInputs {
  Buffer *offsets, *row_map, *source;
};
PlanInputs plan_inputs(CaseRun& run, const RoutedTokens& routed);

// Per element of a [length, columns] buffer.
Judged zone_elements(const RoutedTokens& routed, Index columns);     // below offsets[E]
Judged tail_elements(const RoutedTokens& routed, Index columns);     // at and beyond it
Judged padding_elements(const RoutedTokens& routed, Index columns);  // below, but no real row

// Judges the rows beyond offsets[E] by the tail rule of the profile.
void judge_tail(CaseRun& run, std::string_view what, const RoutedTokens& routed,
                const Buffer& buffer);

// A [length, columns] matrix: `real` for the plan's rows in order, NaN in padding and tail.
std::vector<double> with_hostile_padding(const RoutedTokens& routed, Index columns,
                                         std::vector<double> real);

// The parameters that all families of the stage take, and axes over them (divisor 64, seed 1) with
// more axes behind.
std::vector<Parameter> permutation_parameters(std::vector<Parameter> more = {});
std::vector<Axis> permutation_axes(std::vector<std::string> models, std::vector<std::string> tokens,
                                   std::vector<std::string> loads, std::vector<Axis> more = {});
std::vector<std::string> top_k_models();

// One function per file of the stage.
void add_permutation_plans(Registry& registry);
void add_permutation_rows(Registry& registry);
void add_permutation_gradients(Registry& registry);
void add_permutation_refusals(Registry& registry);
void add_permutation_repeat(Registry& registry);

}  // namespace dropless::conformance
