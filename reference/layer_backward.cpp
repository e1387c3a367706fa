// SPDX-License-Identifier: Apache-2.0
// Backward pass of the MoE layer: the derivative of LAYER-1 with the selection held constant;
// quantisation and rounding pass gradients straight through (LAYER-2).
#include <cmath>

#include "reference/checks.h"
#include "reference/layer.h"
#include "reference/layer_parts.h"

namespace dropless::reference {
namespace {

void add(Doubles& to, Input from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

PermutePlan plan_of(const RoutedView& routed, const LayerTrace& trace) {
  PermutePlan plan;
  plan.tokens = routed.tokens;
  plan.top_k = routed.top_k;
  plan.num_experts = routed.num_experts;
  plan.tokens_per_expert = trace.counts;
  plan.offsets = trace.offsets;
  plan.row_map = trace.row_map;
  plan.source = trace.source;
  plan.demand = trace.offsets.back();
  return plan;
}

struct RoutedGradient {
  ExpertGradient experts;
  Doubles d_x;        // [T,H]
  Doubles d_weights;  // [T,K]
};

// From d_y through combine, experts and permutation. d_y, d_x and d_weights belong to the tokens
// of `routed`.
RoutedGradient routed_backward(const dropless_layer_settings& settings, const ExpertMode& mode,
                               const LayerParameters& parameters, const RoutedView& routed,
                               const LayerTrace& trace, Input d_y) {
  const Index hidden = parameters.hidden;
  const PermutePlan plan = plan_of(routed, trace);
  const bool late = settings.weight_placement == DROPLESS_WEIGHTS_LATE;
  const bool early = settings.weight_placement == DROPLESS_WEIGHTS_EARLY;
  const Doubles row_weights = permuted_weights(plan, routed.weights);

  UnpermuteGradient combine =
      unpermute_backward(plan, hidden, trace.expert_out, late ? routed.weights : Input(), d_y);
  store(mode, combine.d_rows.value);

  RoutedGradient result;
  result.experts =
      experts_backward(mode, routed_weights(routed.num_experts, parameters), routed_groups(trace),
                       plan.rows(), trace.rows, trace.gate_up, trace.hidden,
                       early ? Input(row_weights) : Input(), combine.d_rows.value);
  Doubles& d_rows = result.experts.d_rows;
  if (late) {
    result.d_weights = std::move(combine.d_weights.value);
  } else if (early) {
    result.d_weights = permute_weights_backward(plan, result.experts.d_early_weights);
  } else {
    // Input placement: row = w * x, so d_w = dot(d_row, x) and the weight scales what goes back.
    const Doubles x_rows = permuted_rows(plan, hidden, routed.x);
    Doubles d_row_weights(at(plan.rows()), 0.0);
    for (Index row = 0; row < plan.rows(); ++row) {
      const Index begin = row * hidden;
      d_row_weights[at(row)] = dot(d_rows.data() + begin, x_rows.data() + begin, hidden);
      for (Index h = 0; h < hidden; ++h) d_rows[at(begin + h)] *= row_weights[at(row)];
    }
    result.d_weights = permute_weights_backward(plan, d_row_weights);
  }
  result.d_x = permute_backward(plan, hidden, d_rows).value;
  return result;
}

void router_backward(const dropless_layer_settings& settings, const LayerParameters& parameters,
                     const LayerInput& input, const LayerTrace& trace, Input d_weights,
                     Input d_logits_of_losses, LayerGradient& gradient) {
  const dropless_route_settings& route = *settings.route;
  RoutingGradient routing =
      route_backward(route, {input.tokens, trace.logits, input.token_mask, parameters.expert_scale,
                             trace.routing.ids, d_weights});
  Doubles& d_logits = routing.d_logits.value;
  if (!d_logits_of_losses.empty()) {
    check_size(d_logits_of_losses.size(), input.tokens * route.num_experts, "d_logits");
    add(d_logits, d_logits_of_losses);
  }
  const GemmShape shape{1, route.num_experts, parameters.hidden, input.tokens};
  add(gradient.d_x, gemm_dgrad(shape, {}, 1, d_logits, parameters.router_weight).value);
  gradient.router_weight = gemm_wgrad(shape, {}, 1, d_logits, input.x).value;
  if (!parameters.router_bias.empty()) {
    gradient.router_bias.assign(at(route.num_experts), 0.0);
    for (std::size_t i = 0; i < d_logits.size(); ++i) {
      gradient.router_bias[i % at(route.num_experts)] += d_logits[i];
    }
  }
  if (!parameters.expert_scale.empty()) {
    gradient.expert_scale = std::move(routing.d_expert_scale.value);
  }
}

// y += gate * shared(x), gate = sigmoid(x . wg) or 1.
void shared_backward(const ExpertMode& mode, const LayerParameters& parameters,
                     const LayerInput& input, const LayerTrace& trace, Input d_y,
                     LayerGradient& gradient) {
  const Index hidden = parameters.hidden;
  const bool gated = !parameters.shared_gate.empty();
  Doubles d_out(d_y.begin(), d_y.end());
  if (gated) gradient.shared_gate.assign(at(hidden), 0.0);
  for (Index t = 0; gated && t < input.tokens; ++t) {
    const Index begin = t * hidden;
    const double gate = trace.shared_gate[at(t)];
    const double d_gate = dot(d_y.data() + begin, trace.shared_out.data() + begin, hidden);
    const double d_z = d_gate * gate * (1 - gate);
    for (Index h = 0; h < hidden; ++h) {
      d_out[at(begin + h)] *= gate;
      gradient.shared_gate[at(h)] += d_z * input.x[at(begin + h)];
      gradient.d_x[at(begin + h)] += d_z * parameters.shared_gate[at(h)];
    }
  }
  store(mode, d_out);
  ExpertGradient shared =
      experts_backward(mode, shared_weights(parameters), {}, input.tokens, input.x,
                       trace.shared_gate_up, trace.shared_hidden, {}, d_out);
  add(gradient.d_x, shared.d_rows);
  gradient.shared_gate_up = std::move(shared.gate_up);
  gradient.shared_down = std::move(shared.down);
}

}  // namespace

LayerGradient layer_backward(const dropless_layer_settings& settings,
                             const dropless_profile& profile, const LayerParameters& parameters,
                             const LayerInput& input, const LayerTrace& trace, Input d_y,
                             const LayerArithmetic& arithmetic, Input d_logits,
                             LayerExchange* exchange) {
  const ExpertMode mode = expert_mode(settings, profile, arithmetic);
  check_size(d_y.size(), input.tokens * parameters.hidden, "d_y");

  const RoutedView tokens = routed_view(*settings.route, input, trace);
  Doubles d_sums;
  if (exchange != nullptr) d_sums = exchange->combine_backward(d_y);
  RoutedGradient routed = routed_backward(settings, mode, parameters, tokens, trace,
                                          exchange != nullptr ? Input(d_sums) : d_y);
  if (exchange != nullptr) {
    LayerExchange::Home home = exchange->dispatch_backward(routed.d_x, routed.d_weights);
    routed.d_x = std::move(home.d_x);
    routed.d_weights = std::move(home.d_weights);
  }
  LayerGradient gradient;
  gradient.d_x = std::move(routed.d_x);
  gradient.gate_up = std::move(routed.experts.gate_up);
  gradient.gate_up_bias = std::move(routed.experts.gate_up_bias);
  gradient.down = std::move(routed.experts.down);
  gradient.down_bias = std::move(routed.experts.down_bias);
  router_backward(settings, parameters, input, trace, routed.d_weights, d_logits, gradient);
  if (parameters.shared_intermediate > 0) {
    shared_backward(mode, parameters, input, trace, d_y, gradient);
  }
  return gradient;
}

}  // namespace dropless::reference
