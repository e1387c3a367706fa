// SPDX-License-Identifier: Apache-2.0
// Routing weights and their backward pass for approximate logits (ROUTING-6, ROUTING-12).
#include "tolerances/layer_routing.h"

#include <algorithm>
#include <cmath>

#include "tolerances/constants.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

bool is_softmax(const dropless_route_settings& s) {
  return s.score_function == DROPLESS_SCORE_SOFTMAX;
}
bool over_selected(const dropless_route_settings& s) {
  return is_softmax(s) && s.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}
bool renormalizes(const dropless_route_settings& s) {
  return (s.top_k == 1 ? s.renormalize_single : s.renormalize) != 0;
}

double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

// One token: exact values of everything its weights are made of.
struct Token {
  Input logits;
  std::span<const Index> ids;
  std::vector<std::size_t> slots;  // with an id
  Doubles scores;                  // [E]; 0 outside the softmax's range
  double largest = 0;              // of the softmax's range
  double divisor = 1;
  double moved = 0;  // largest error of a logit

  [[nodiscard]] std::size_t expert(std::size_t slot) const {
    return static_cast<std::size_t>(ids[slot]);
  }
  [[nodiscard]] double spread(const dropless_route_settings& s, std::size_t e) const {
    return is_softmax(s) ? largest - logits[e] : std::abs(logits[e]);
  }
};

Token token_of(const LayerCall& call, const Approximate& logits, Index t) {
  const dropless_route_settings& s = *call.settings.route;
  const auto experts = static_cast<std::size_t>(s.num_experts);
  const auto k = static_cast<std::size_t>(s.top_k), row = static_cast<std::size_t>(t);
  Token token;
  token.logits = Input(logits.value).subspan(row * experts, experts);
  token.ids = call.rows.ids.subspan(row * k, k);
  for (std::size_t j = 0; j < k; ++j) {
    if (token.ids[j] >= 0) token.slots.push_back(j);
  }
  for (std::size_t e = 0; e < experts; ++e) {
    token.moved = std::max(token.moved, logits.error[row * experts + e]);
  }
  token.scores.assign(experts, 0.0);
  if (token.slots.empty()) return token;
  if (is_softmax(s)) {
    std::vector<std::size_t> range;
    for (std::size_t e = 0; e < experts && !over_selected(s); ++e) range.push_back(e);
    for (const std::size_t j : token.slots) {
      if (over_selected(s)) range.push_back(token.expert(j));
    }
    token.largest = token.logits[range[0]];
    for (const std::size_t e : range) token.largest = std::max(token.largest, token.logits[e]);
    double total = 0;
    for (const std::size_t e : range) {
      token.scores[e] = std::exp(token.logits[e] - token.largest);
      total += token.scores[e];
    }
    for (const std::size_t e : range) token.scores[e] /= total;
  } else {
    for (std::size_t e = 0; e < experts; ++e) {
      token.scores[e] = s.score_function == DROPLESS_SCORE_SIGMOID
                            ? sigmoid(token.logits[e])
                            : std::sqrt(softplus(token.logits[e]));
    }
  }
  if (!renormalizes(s)) return token;
  double total = 0;
  for (const std::size_t j : token.slots) total += token.scores[token.expert(j)];
  token.divisor = s.eps_form == DROPLESS_EPS_ADDED ? total + s.renormalize_eps
                                                   : std::max(total, s.renormalize_eps);
  return token;
}

double factor_of(const LayerCall& call, std::size_t e) {
  const double scale = call.model.expert_scale.empty() ? 1 : call.model.expert_scale[e];
  return call.settings.route->scaling_factor * scale;
}

}  // namespace

Approximate layer_weights(const LayerCall& call, const Approximate& logits) {
  const dropless_route_settings& s = *call.settings.route;
  const auto k = static_cast<std::size_t>(s.top_k);
  Approximate weights(static_cast<std::size_t>(call.tokens) * k);
  for (Index t = 0; t < call.tokens; ++t) {
    const Token token = token_of(call, logits, t);
    std::vector<SelectedExpert> selected;
    for (const std::size_t j : token.slots) {
      const std::size_t e = token.expert(j);
      const double bias = call.model.expert_bias.empty() ? 0 : call.model.expert_bias[e];
      selected.push_back(
          {token.scores[e], token.spread(s, e), bias, factor_of(call, e) / token.divisor});
    }
    const Doubles rounding = routing_weights(s, call.profile, selected);
    // A logit moves ln(score) by at most its own error, ln(sum) by at most the largest.
    const bool has_sum = is_softmax(s) || renormalizes(s);
    const double moved = std::expm1((has_sum ? 2 : 1) * token.moved);
    for (std::size_t i = 0; i < token.slots.size(); ++i) {
      const double w = selected[i].factor * selected[i].score;
      // u |w|: the reference itself rounds the score to fp32 where the bias is subtracted.
      const double error = rounding[i] * (1 + moved) + std::abs(w) * (moved + u);
      set(weights, static_cast<std::size_t>(t) * k + token.slots[i], {w, error});
    }
  }
  settle(weights);
  return weights;
}

namespace {

// d_logits of one token and its gauge, for d_w given per slot; linear in d_w, the gauge in |d_w|.
struct Row {
  Doubles value, gauge;
};

Row row_backward(const LayerCall& call, const Token& token, Input d_w) {
  const dropless_route_settings& s = *call.settings.route;
  const std::size_t experts = token.logits.size();
  Doubles d_s(experts, 0.0), g_s(experts, 0.0);
  double through = 0, through_gauge = 0, total = 0;
  for (const std::size_t j : token.slots) total += token.scores[token.expert(j)];
  const bool follows =
      renormalizes(s) && (s.eps_form == DROPLESS_EPS_ADDED || total > s.renormalize_eps);
  for (const std::size_t j : token.slots) {
    const std::size_t e = token.expert(j);
    const double term = d_w[j] * factor_of(call, e) * token.scores[e];
    through += follows ? term / token.divisor / token.divisor : 0;
    through_gauge += follows ? std::abs(term) / token.divisor / token.divisor : 0;
  }
  for (const std::size_t j : token.slots) {
    const std::size_t e = token.expert(j);
    const double direct = d_w[j] * factor_of(call, e) / token.divisor;
    d_s[e] = direct - through;
    g_s[e] = std::abs(direct) + through_gauge;
  }
  Row row{Doubles(experts, 0.0), Doubles(experts, 0.0)};
  double dot = 0, dot_gauge = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    dot += token.scores[e] * d_s[e];
    dot_gauge += token.scores[e] * g_s[e];
  }
  for (std::size_t e = 0; e < experts; ++e) {
    if (is_softmax(s)) {
      row.value[e] = token.scores[e] * (d_s[e] - dot);
      row.gauge[e] = token.scores[e] * (g_s[e] + dot_gauge);
    } else {
      const double l = token.logits[e];
      const double slope = s.score_function == DROPLESS_SCORE_SIGMOID
                               ? sigmoid(l) * sigmoid(-l)
                               : sigmoid(l) / (2 * token.scores[e]);
      row.value[e] = d_s[e] * slope;
      row.gauge[e] = g_s[e] * slope;
    }
  }
  return row;
}

}  // namespace

LayerRoutingBackward layer_routing_backward(const LayerCall& call, const Approximate& logits,
                                            const Approximate& d_weights) {
  const dropless_route_settings& s = *call.settings.route;
  const auto k = static_cast<std::size_t>(s.top_k);
  const auto experts = static_cast<std::size_t>(s.num_experts);
  LayerRoutingBackward result;
  result.d_logits = Approximate(logits.size());
  result.expert_scale = Approximate(call.model.expert_scale.size());
  Doubles scale_gauge(call.model.expert_scale.size(), 0.0);
  // Logits in ln of the terms: p_e p_i s_i / D^2 at most ten times (softmax), five (pointwise).
  const double sensitivity = is_softmax(s) ? 10 : 5;
  double largest_spread = 0;
  for (Index t = 0; t < call.tokens; ++t) {
    const Token token = token_of(call, logits, t);
    const std::size_t first = static_cast<std::size_t>(t) * k;
    const Row exact = row_backward(call, token, Input(d_weights.value).subspan(first, k));
    const Row moved = row_backward(call, token, Input(d_weights.error).subspan(first, k));
    const double growth = std::expm1(sensitivity * token.moved);
    double spread = 0;
    for (const std::size_t j : token.slots) {
      spread = std::max(spread, token.spread(s, token.expert(j)));
    }
    largest_spread = std::max(largest_spread, spread);
    for (std::size_t e = 0; e < experts; ++e) {
      const double gauge = exact.gauge[e] + moved.gauge[e];
      const double rounding =
          routing_gradient(s, call.profile, gauge * (1 + growth),
                           std::max(spread, token.spread(s, e)), token.logits[e] + token.moved);
      set(result.d_logits, static_cast<std::size_t>(t) * experts + e,
          {exact.value[e], moved.gauge[e] + gauge * growth + rounding});
    }
    for (const std::size_t j : token.slots) {
      if (call.model.expert_scale.empty()) break;
      const std::size_t e = token.expert(j);
      const double before_scale = s.scaling_factor * token.scores[e] / token.divisor;
      const Near weight{before_scale, std::abs(before_scale) * std::expm1(2 * token.moved)};
      const Near term = at(d_weights, first + j) * weight;
      set(result.expert_scale, e, at(result.expert_scale, e) + term);
      scale_gauge[e] += std::abs(term.value) + term.error;
    }
  }
  for (std::size_t e = 0; e < scale_gauge.size(); ++e) {
    result.expert_scale.error[e] +=
        expert_scale_gradient(s, call.profile, call.tokens, scale_gauge[e], largest_spread);
  }
  settle(result.d_logits);
  settle(result.expert_scale);
  return result;
}

}  // namespace dropless::tolerances
