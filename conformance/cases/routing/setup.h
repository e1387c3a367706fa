// SPDX-License-Identifier: Apache-2.0
// What the routing cases share: inputs with provable margins, the call, and the judgement.
//
//     RoutingData data = model_data(run.model(), tokens, dtype, random);
//     draw_clear_rows(run, data, normal_row(data, random, 2));
//     RouteCall call(run, data);
//     call.perform();
//     judge_route(run, data, call);
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/cases/selection.h"
#include "reference/routing.h"

namespace dropless::conformance {

// One request: settings and inputs, as doubles that the formats hold exactly.
struct RoutingData {
  dropless_route_settings settings{};
  Index tokens = 0;
  dropless_dtype dtype = DROPLESS_FP32;  // of the logits
  std::vector<double> logits;            // [T,E]
  std::vector<double> bias;              // [E] or empty
  std::vector<std::uint8_t> mask;        // [T] or empty
  std::vector<Index> given_ids;          // [T,K] or empty
  std::vector<double> scale;             // [E] or empty

  [[nodiscard]] Index experts() const { return settings.num_experts; }
  [[nodiscard]] Index top_k() const { return settings.top_k; }
  [[nodiscard]] bool is_masked(Index token) const;
  [[nodiscard]] std::span<const double> row(Index token) const;
};

// "softmax" (before top-k), "softmax_selected" (after top-k), "sigmoid", "sqrt_softplus".
const std::vector<std::string>& score_words();
bool is_softmax(const dropless_route_settings& settings);
bool over_selected(const dropless_route_settings& settings);  // softmax over the selected K
// No groups, factor 1, eps 1e-20 added; K = 1 is renormalised like K > 1.
dropless_route_settings route_settings(Index experts, Index top_k, std::string_view score,
                                       bool renormalize);
dropless_dtype logits_dtype(std::string_view word);  // "fp32" or "bf16"

// Settings of the model, and a bias and a scale that matter where the model has them. No logits.
RoutingData model_data(const Model& model, Index tokens, dropless_dtype dtype, Random& random);
// A bias of both signs whose size is that of the differences between the leading scores.
std::vector<double> matching_bias(const dropless_route_settings& settings, Random& random);

using DrawRow = std::function<void(std::span<double>)>;
DrawRow normal_row(const RoutingData& data, Random& random, double deviation);
// Draws every row, again and again until each has one right answer (ROUTING-3a: neighbours more
// than 2d apart, kept groups more than 2d above the others). Requires that it succeeded.
// Ties::allowed: or exactly equal, so that the tie rule gives the one right answer.
enum class Ties { excluded, allowed };
void draw_clear_rows(CaseRun& run, RoutingData& data, const DrawRow& draw,
                     Ties ties = Ties::excluded);

reference::RoutingInput reference_input(const RoutingData& data);
reference::Routing expected_routing(const CaseRun& run, const RoutingData& data);

// d of every compared value, [T,E].
std::vector<double> distances(const dropless_profile& profile, const RoutingData& data,
                              const reference::Routing& routing);
std::vector<bool> clear_rows(const dropless_profile& profile, const RoutingData& data,
                             const reference::Routing& routing, Ties ties = Ties::excluded);
// Share of tokens that `data` and `other` send to different sets of experts: what a case about the
// difference between the two can see.
double share_of_other_selections(const CaseRun& run, const RoutingData& data,
                                 const RoutingData& other);
// The w of ROUTING-4c.
Index group_width(const dropless_route_settings& settings, const dropless_profile& profile);
// Largest |l - max| that the error of a weight of this token depends on; |l| where not softmax.
double spread_of(const RoutingData& data, Index token, Index expert,
                 std::span<const Index> selected);

struct RouteStyle {
  std::string prefix = {};  // of the labels, when a case calls more than once
  dropless_dtype ids_dtype = DROPLESS_I32;
  Layout inputs = {}, outputs = {};
  int threads = 0;  // 0: those of the run
};

// Buffers and arguments of one call; `data` must outlive it.
class RouteCall {
 public:
  RouteCall(CaseRun& run, const RoutingData& data, const RouteStyle& style = {});
  void perform(std::string_view clause = "GENERAL-1");
  void refused(std::string_view clause, std::string_view why);

  dropless_route_args args;
  Buffer *ids, *weights, *scores, *counts;

 private:
  CaseRun& run_;
  int threads_;
};

// Clauses that a family names when it judges something in particular.
struct RouteClauses {
  std::string distinct = "ROUTING-5a";
  std::string set = "ROUTING-3a";
  std::string order = "ROUTING-5d";
  std::string weights = {};  // empty: by the settings
  Judged rows = {};          // [T] rows with ordinary logits; empty = all
};

// Everything that one call must satisfy: ids (relation, one right answer where a row is clear,
// order), weights for the ids that were chosen, scores, counts, masked rows.
void judge_route(CaseRun& run, const RoutingData& data, const RouteCall& call,
                 const RouteClauses& clauses = {});
// Parts of it. The rows whose ids are K distinct ones in range, or the given ones:
std::vector<bool> judge_distinct_ids(CaseRun& run, const RoutingData& data, const RouteCall& call,
                                     const std::string& clause = "ROUTING-5a");
void judge_weights(CaseRun& run, const RoutingData& data, const RouteCall& call,
                   const std::vector<bool>& rows, const std::string& clause);
void judge_scores(CaseRun& run, const RoutingData& data, const RouteCall& call,
                  const std::vector<bool>& rows, const std::string& clause = "ROUTING-1e");
void judge_counts(CaseRun& run, const RoutingData& data, const RouteCall& call);

// "{3 1 7}", and the ids in ascending order.
std::string list_of(std::span<const Index> ids);
std::vector<Index> sorted_ids(std::span<const Index> ids);
// The clause that a wrong weight breaks under these settings.
std::string weight_clause(const RoutingData& data);

// Per-element flags [T, columns] from flags per row.
Judged spread_rows(const std::vector<bool>& rows, Index columns);
std::vector<std::string> top_k_model_names();

// One function per file of the stage.
void add_routing_selection(Registry& registry);
void add_routing_groups(Registry& registry);
void add_routing_ties(Registry& registry);
void add_routing_weights(Registry& registry);
void add_routing_special(Registry& registry);
void add_routing_metamorphic(Registry& registry);
void add_routing_backward(Registry& registry);
void add_routing_bias_update(Registry& registry);
void add_routing_contract(Registry& registry);
void add_routing_refusals(Registry& registry);

}  // namespace dropless::conformance
