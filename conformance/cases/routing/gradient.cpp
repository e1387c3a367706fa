// SPDX-License-Identifier: Apache-2.0
// The backward call of the routing cases, and its judgement.
#include "conformance/cases/routing/gradient.h"

#include <algorithm>
#include <cmath>

#include "conformance/judge/trust.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

std::span<const Index> ids_of(const RoutingGradientData& data, Index token) {
  const Index k = data.forward.top_k();
  return std::span(data.ids).subspan(at(token * k), at(k));
}

// Largest spread of the token's selected experts.
double selected_spread(const RoutingGradientData& data, Index token) {
  const std::span<const Index> ids = ids_of(data, token);
  const std::span<const Index> among = over_selected(data.forward.settings) ? ids : ids.first(0);
  double largest = 0;
  for (const Index id : ids) {
    if (id < 0) continue;
    const double spread = spread_of(data.forward, token, id, among);
    if (std::isfinite(spread)) largest = std::max(largest, spread);
  }
  return largest;
}

}  // namespace

RoutingGradientData gradient_data(const CaseRun& run, RoutingData forward, Random& random) {
  RoutingGradientData data;
  data.ids = expected_routing(run, forward).ids;
  data.forward = std::move(forward);
  for (std::size_t i = 0; i < data.ids.size(); ++i) {
    data.d_weights.push_back(tolerances::round_to(DROPLESS_FP32, random.normal()));
  }
  return data;
}

reference::RoutingGradient expected_gradient(const RoutingGradientData& data) {
  reference::RoutingBackwardInput input;
  input.tokens = data.forward.tokens;
  input.logits = data.forward.logits;
  input.token_mask = data.forward.mask;
  input.expert_scale = data.forward.scale;
  input.ids = data.ids;
  input.d_weights = data.d_weights;
  return reference::route_backward(data.forward.settings, input);
}

std::vector<double> gradient_errors(const CaseRun& run, const RoutingGradientData& data,
                                    const reference::RoutingGradient& expected) {
  const RoutingData& forward = data.forward;
  const bool selected_only = over_selected(forward.settings);
  std::vector<double> errors(expected.d_logits.value.size(), 0);
  for (Index t = 0; t < forward.tokens; ++t) {
    if (forward.is_masked(t)) continue;
    const double largest = selected_spread(data, t);
    for (Index e = 0; e < forward.experts(); ++e) {
      const std::size_t i = at(t * forward.experts() + e);
      // Outside the selected K a softmax over those has no gradient, and so no spread of its own.
      const double own = selected_only ? 0 : spread_of(forward, t, e, {});
      const double spread = std::isfinite(own) ? std::max(own, largest) : largest;
      errors[i] = tolerances::routing_gradient(
          forward.settings, run.profile(), expected.d_logits.gauge[i], spread, forward.logits[i]);
    }
  }
  return errors;
}

RouteBackwardCall::RouteBackwardCall(CaseRun& run, const RoutingGradientData& data,
                                     const RouteStyle& style)
    : args(make_args<dropless_route_backward_args>()), run_(run), threads_(style.threads) {
  Buffers& buffers = run.buffers();
  const RoutingData& forward = data.forward;
  const Shape experts = {forward.tokens, forward.experts()};
  const Shape slots = {forward.tokens, forward.top_k()};
  const auto label = [&](const char* name) { return style.prefix + name; };
  args.settings = &forward.settings;
  args.logits =
      buffers.input(label("logits"), forward.dtype, experts, forward.logits, style.inputs).tensor();
  if (!forward.mask.empty()) {
    args.token_mask = buffers
                          .input(label("token_mask"), DROPLESS_U8, {forward.tokens},
                                 std::span<const std::uint8_t>(forward.mask))
                          .tensor();
  }
  if (!forward.scale.empty()) {
    args.expert_scale =
        buffers.input(label("expert_scale"), DROPLESS_FP32, {forward.experts()}, forward.scale)
            .tensor();
    d_expert_scale = &buffers.output(label("d_expert_scale"), DROPLESS_FP32, {forward.experts()});
    args.d_expert_scale = d_expert_scale->tensor();
  }
  args.ids = buffers.input(label("ids"), style.ids_dtype, slots, data.ids, style.inputs).tensor();
  args.d_weights =
      buffers.input(label("d_weights"), DROPLESS_FP32, slots, data.d_weights, style.inputs)
          .tensor();
  d_logits = &buffers.output(label("d_logits"), DROPLESS_FP32, experts, style.outputs);
  args.d_logits = d_logits->tensor();
}

void RouteBackwardCall::perform() {
  const auto entry = run_.implementation().route_backward;
  if (threads_ > 0) {
    run_.perform_with_threads(threads_, "route_backward", entry, args);
  } else {
    run_.perform("route_backward", entry, args);
  }
}

void RouteBackwardCall::refused(std::string_view clause, std::string_view why) {
  run_.refused(clause, why, "route_backward", run_.implementation().route_backward, args);
}

void judge_gradient(CaseRun& run, const RoutingGradientData& data, const RouteBackwardCall& call,
                    const std::string& clause, const std::vector<bool>& rows) {
  const RoutingData& forward = data.forward;
  const reference::RoutingGradient expected = expected_gradient(data);
  std::vector<bool> unmasked(at(forward.tokens));
  for (Index t = 0; t < forward.tokens; ++t) {
    unmasked[at(t)] = !forward.is_masked(t) && (rows.empty() || rows[at(t)]);
  }
  run.judge().require(data.d_weights.size() < 16 || trust::distinct(data.d_weights) > 1,
                      "the cotangent is not uniform");
  run.judge().bounded(clause, "d_logits", *call.d_logits, expected.d_logits.value,
                      gradient_errors(run, data, expected),
                      spread_rows(unmasked, forward.experts()));
  if (!forward.mask.empty()) {
    std::vector<bool> masked = unmasked;
    masked.flip();
    run.judge().exact("ROUTING-9b", "d_logits of masked tokens", *call.d_logits,
                      std::vector<double>(expected.d_logits.value.size(), 0.0),
                      spread_rows(masked, forward.experts()));
  }
  if (forward.scale.empty()) return;
  std::vector<double> errors;
  double largest = 0;
  for (Index t = 0; t < forward.tokens; ++t) {
    if (!forward.is_masked(t)) largest = std::max(largest, selected_spread(data, t));
  }
  for (const double gauge : expected.d_expert_scale.gauge) {
    errors.push_back(tolerances::expert_scale_gradient(forward.settings, run.profile(),
                                                       forward.tokens, gauge, largest));
  }
  run.judge().bounded("ROUTING-12d", "d_expert_scale", *call.d_expert_scale,
                      expected.d_expert_scale.value, errors);
}

}  // namespace dropless::conformance
