// SPDX-License-Identifier: Apache-2.0
// Forward pass of the MoE layer: routing, permutation, experts, combine, shared expert (LAYER-1).
#include "reference/layer.h"

#include <dropless/formats/dtype.h>

#include <cmath>

#include "reference/checks.h"
#include "reference/layer_parts.h"

namespace dropless::reference {
namespace {

void check_parameters(const LayerParameters& p, const LayerInput& input) {
  if (p.hidden < 0 || p.intermediate < 0 || p.shared_intermediate < 0 || input.tokens < 0) {
    throw Refused("negative size in a layer");
  }
  check_size(input.x.size(), input.tokens * p.hidden, "x");
  if (!p.shared_gate.empty()) check_size(p.shared_gate.size(), p.hidden, "shared_gate");
  if (p.shared_intermediate == 0 && !p.shared_gate.empty()) {
    throw Refused("a shared gate without a shared expert");
  }
}

// logits = x Wr^T (+ br), as the router's output type holds them.
Doubles router_logits(const dropless_layer_settings& settings, const LayerParameters& parameters,
                      const LayerInput& input) {
  const GemmShape shape{1, settings.route->num_experts, parameters.hidden, input.tokens};
  Doubles logits =
      gemm_fprop(shape, {}, 1, input.x, parameters.router_weight, parameters.router_bias).value;
  if (settings.logits_dtype == DROPLESS_FP32) return logits;
  for (double& logit : logits) logit = round_to(settings.logits_dtype, logit);
  return logits;
}

void add_shared_expert(const ExpertMode& mode, const LayerParameters& parameters,
                       const LayerInput& input, LayerOutput& output) {
  const Index hidden = parameters.hidden;
  LayerTrace& trace = output.trace;
  ExpertValues values =
      experts_forward(mode, shared_weights(parameters), {}, input.tokens, input.x, {});
  trace.shared_gate_up = std::move(values.gate_up);
  trace.shared_hidden = std::move(values.hidden);
  trace.shared_out = std::move(values.out);
  for (Index t = 0; t < input.tokens; ++t) {
    double gate = 1;
    if (!parameters.shared_gate.empty()) {
      const double z = dot(input.x.data() + t * hidden, parameters.shared_gate.data(), hidden);
      gate = 1 / (1 + std::exp(-z));
      trace.shared_gate.push_back(gate);
    }
    for (Index h = 0; h < hidden; ++h) {
      output.y[at(t * hidden + h)] += gate * trace.shared_out[at(t * hidden + h)];
    }
  }
}

}  // namespace

LayerOutput layer(const dropless_layer_settings& settings, const dropless_profile& profile,
                  const LayerParameters& parameters, const LayerInput& input,
                  const LayerArithmetic& arithmetic, LayerExchange* exchange) {
  const ExpertMode mode = expert_mode(settings, profile, arithmetic);
  const dropless_route_settings& route_settings = *settings.route;
  const Index hidden = parameters.hidden;
  check_parameters(parameters, input);

  LayerOutput output;
  LayerTrace& trace = output.trace;
  trace.logits = router_logits(settings, parameters, input);
  trace.routing = route(route_settings, profile,
                        {input.tokens, trace.logits, parameters.expert_bias, input.token_mask,
                         input.given_ids, parameters.expert_scale});

  if (exchange != nullptr) {
    trace.received = exchange->dispatch(trace.routing.ids, input.x, trace.routing.weights);
  }
  const RoutedView routed = routed_view(route_settings, input, trace);
  PermutePlan plan =
      permute_plan(profile, routed.tokens, routed.top_k, routed.num_experts, routed.ids);
  trace.rows = permuted_rows(plan, hidden, routed.x);
  const Doubles row_weights = permuted_weights(plan, routed.weights);
  if (settings.weight_placement == DROPLESS_WEIGHTS_INPUT) {
    for (std::size_t i = 0; i < trace.rows.size(); ++i) {
      trace.rows[i] *= row_weights[i / at(hidden)];
    }
    store(mode, trace.rows);
  }
  trace.counts = plan.tokens_per_expert;
  trace.offsets = plan.offsets;
  trace.row_map = plan.row_map;
  trace.source = plan.source;

  const bool early = settings.weight_placement == DROPLESS_WEIGHTS_EARLY;
  ExpertValues values =
      experts_forward(mode, routed_weights(routed.num_experts, parameters), routed_groups(trace),
                      plan.rows(), trace.rows, early ? Input(row_weights) : Input());
  trace.gate_up = std::move(values.gate_up);
  trace.hidden = std::move(values.hidden);
  trace.expert_out = std::move(values.out);

  const bool late = settings.weight_placement == DROPLESS_WEIGHTS_LATE;
  output.y = unpermute(plan, hidden, trace.expert_out, late ? routed.weights : Input()).value;
  if (exchange != nullptr) output.y = exchange->combine(output.y);
  if (parameters.shared_intermediate > 0) add_shared_expert(mode, parameters, input, output);
  return output;
}

}  // namespace dropless::reference
