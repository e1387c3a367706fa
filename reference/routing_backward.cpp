// SPDX-License-Identifier: Apache-2.0
// Routing, backward: the derivative of the weights with the selection held constant (ROUTING-12).
//
// With s_j the scores of the chosen experts, D the divisor, f the scaling factor, c_e the scale:
//   w_j = f c_j s_j / D        D = sum s + eps, max(sum s, eps), or 1
// Every value below travels with its gauge, the sum of |terms| of everything added to make it.
#include <cmath>

#include "reference/checks.h"
#include "reference/routing.h"
#include "reference/routing_checks.h"
#include "reference/scores.h"
#include "reference/selection.h"

namespace dropless::reference {

namespace {

// The experts whose weights depend on the logits: neither id -1 nor a masked pick, whose weight is
// the constant 0 (ROUTING-7). `score` is what the weight is made of before renormalisation.
struct Chosen {
  std::vector<std::size_t> expert, slot;
  Doubles score;
};

Chosen choose(const dropless_route_settings& settings, Input logits, Input scores, Indices ids) {
  const bool undefined = is_undefined_row(settings.score_function, logits);
  const std::vector<std::uint8_t> mask = expert_mask(logits);
  Chosen chosen;
  Doubles selected;
  for (std::size_t j = 0; j < ids.size(); ++j) {
    if (ids[j] < 0 || (mask[at(ids[j])] == 0 && !undefined)) continue;
    chosen.expert.push_back(at(ids[j]));
    chosen.slot.push_back(j);
    selected.push_back(softmax_after_top_k(settings) ? logits[at(ids[j])] : scores[at(ids[j])]);
  }
  chosen.score = softmax_after_top_k(settings) ? softmax(selected) : selected;
  return chosen;
}

// r_j = s_j / D: d_s_j = d_r_j / D - [D depends on the sum] * sum_i d_r_i s_i / D^2.
Gauged renormalize_backward(const dropless_route_settings& settings, Input s, Input d_r) {
  double sum = 0, dot = 0, dot_gauge = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    sum += s[i];
    dot += d_r[i] * s[i];
    dot_gauge += std::abs(d_r[i] * s[i]);
  }
  const double divisor = weight_divisor(settings, sum);
  const bool follows_sum = renormalizes(settings) && (settings.eps_form == DROPLESS_EPS_ADDED ||
                                                      !(sum <= settings.renormalize_eps));
  Gauged d_s;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double direct = d_r[i] / divisor;
    const double through_sum = follows_sum ? dot / divisor / divisor : 0;
    d_s.value.push_back(direct - through_sum);
    d_s.gauge.push_back(std::abs(direct) +
                        (follows_sum ? std::abs(dot_gauge / divisor / divisor) : 0));
  }
  return d_s;
}

// From the scores of the chosen experts to the logits of all E.
Gauged scores_backward(const dropless_route_settings& settings, Input logits, Input scores,
                       const Chosen& chosen, const Gauged& d_s) {
  const std::size_t num_experts = logits.size();
  Gauged d_logits{Doubles(num_experts, 0.0), Doubles(num_experts, 0.0)};
  if (softmax_after_top_k(settings)) {
    const Gauged d_selected = softmax_backward(chosen.score, d_s);
    for (std::size_t i = 0; i < chosen.expert.size(); ++i) {
      d_logits.value[chosen.expert[i]] = d_selected.value[i];
      d_logits.gauge[chosen.expert[i]] = d_selected.gauge[i];
    }
    return d_logits;
  }
  Gauged d_scores{Doubles(num_experts, 0.0), Doubles(num_experts, 0.0)};
  for (std::size_t i = 0; i < chosen.expert.size(); ++i) {
    d_scores.value[chosen.expert[i]] = d_s.value[i];
    d_scores.gauge[chosen.expert[i]] = d_s.gauge[i];
  }
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) return softmax_backward(scores, d_scores);
  for (const std::size_t e : chosen.expert) {
    const double slope = pointwise_slope(settings.score_function, logits[e]);
    d_logits.value[e] = d_scores.value[e] * slope;
    d_logits.gauge[e] = d_scores.gauge[e] * slope;
  }
  return d_logits;
}

}  // namespace

RoutingGradient route_backward(const dropless_route_settings& settings,
                               const RoutingBackwardInput& input) {
  check_route_settings(settings);
  const Index num_experts = settings.num_experts, k = settings.top_k;
  if (input.tokens < 0) throw Refused("tokens is negative");
  check_size(input.logits.size(), input.tokens * num_experts, "logits");
  check_ids(input.tokens, k, num_experts, input.ids, "ids");
  check_size(input.d_weights.size(), input.tokens * k, "d_weights");
  if (!input.token_mask.empty()) check_size(input.token_mask.size(), input.tokens, "token_mask");
  const bool scaled = !input.expert_scale.empty();
  if (scaled) check_size(input.expert_scale.size(), num_experts, "expert_scale");

  RoutingGradient gradient;
  gradient.d_logits = {Doubles(input.logits.size(), 0.0), Doubles(input.logits.size(), 0.0)};
  gradient.d_expert_scale = {Doubles(at(num_experts), 0.0), Doubles(at(num_experts), 0.0)};
  for (Index t = 0; t < input.tokens; ++t) {
    if (!input.token_mask.empty() && input.token_mask[at(t)] == 0) continue;  // ROUTING-9
    const Input logits = input.logits.subspan(at(t * num_experts), at(num_experts));
    const Doubles row_scores = scores(settings.score_function, logits);
    const Chosen chosen = choose(settings, logits, row_scores, input.ids.subspan(at(t * k), at(k)));

    double sum = 0;
    for (const double score : chosen.score) sum += score;
    const double divisor = weight_divisor(settings, sum);
    Doubles d_r;
    for (std::size_t i = 0; i < chosen.expert.size(); ++i) {
      const std::size_t e = chosen.expert[i];
      const double d_scaled = input.d_weights[at(t * k) + chosen.slot[i]] * settings.scaling_factor;
      d_r.push_back(scaled ? d_scaled * input.expert_scale[e] : d_scaled);
      if (chosen.score[i] == 0) continue;  // weighs 0, also where the divisor is 0
      const double term = d_scaled * (chosen.score[i] / divisor);
      gradient.d_expert_scale.value[e] += term;
      gradient.d_expert_scale.gauge[e] += std::abs(term);
    }
    const Gauged d_s = renormalize_backward(settings, chosen.score, d_r);
    const Gauged d_row = scores_backward(settings, logits, row_scores, chosen, d_s);
    for (std::size_t e = 0; e < at(num_experts); ++e) {
      gradient.d_logits.value[at(t * num_experts) + e] = d_row.value[e];
      gradient.d_logits.gauge[at(t * num_experts) + e] = d_row.gauge[e];
    }
  }
  return gradient;
}

}  // namespace dropless::reference
