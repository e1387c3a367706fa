// SPDX-License-Identifier: Apache-2.0
// Routing of one token in plain fp32 and in double.
#include "tests/tolerances/measure/routing_models.h"

#include <dropless/formats.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dropless::tolerances::models {

namespace {

bool after_top_k(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX &&
         settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

bool renormalizes(const dropless_route_settings& settings) {
  return (settings.top_k == 1 ? settings.renormalize_single : settings.renormalize) != 0;
}

double largest(const dropless_route_settings& settings, const Token& token) {
  if (!after_top_k(settings)) return *std::max_element(token.logits.begin(), token.logits.end());
  double m = token.logits[token.ids[0]];
  for (const std::size_t e : token.ids) m = std::max(m, token.logits[e]);
  return m;
}

std::vector<std::size_t> softmax_range(const dropless_route_settings& settings,
                                       const Token& token) {
  if (after_top_k(settings)) return token.ids;
  std::vector<std::size_t> all(token.logits.size());
  for (std::size_t e = 0; e < all.size(); ++e) all[e] = e;
  return all;
}

// Real = double with the library's exponential, or float with the mode's.
template <class Real, class Exponential>
std::vector<Real> scores_of(const dropless_route_settings& settings, const Token& token,
                            Exponential exponential, bool backwards, bool reciprocal) {
  std::vector<Real> scores(token.logits.size(), 0);
  const auto one = static_cast<Real>(1);
  if (settings.score_function != DROPLESS_SCORE_SOFTMAX) {
    for (std::size_t e = 0; e < scores.size(); ++e) {
      const auto l = static_cast<Real>(token.logits[e]);
      if (settings.score_function == DROPLESS_SCORE_SIGMOID) {
        scores[e] = one / (one + exponential(-l));
      } else {
        const Real softplus = l > 0 ? l + std::log1p(exponential(-l)) : std::log1p(exponential(l));
        scores[e] = std::sqrt(softplus);
      }
    }
    return scores;
  }
  const auto m = static_cast<Real>(largest(settings, token));
  std::vector<std::size_t> range = softmax_range(settings, token);
  if (backwards) std::reverse(range.begin(), range.end());
  Real sum = 0;
  for (const std::size_t e : range) {
    scores[e] = exponential(static_cast<Real>(token.logits[e]) - m);
    sum += scores[e];
  }
  for (const std::size_t e : range) {
    scores[e] = reciprocal ? scores[e] * (one / sum) : scores[e] / sum;
  }
  return scores;
}

double divisor_of(const dropless_route_settings& settings, double sum) {
  if (!renormalizes(settings)) return 1;
  return settings.eps_form == DROPLESS_EPS_ADDED ? sum + settings.renormalize_eps
                                                 : std::max(sum, settings.renormalize_eps);
}

double double_exponential(double x) {
  return std::exp(x);
}

}  // namespace

Fp32Mode accurate() {
  Fp32Mode mode;
  mode.exponential = [](float x) { return std::exp(x); };
  mode.stored = [](float x) { return x; };
  return mode;
}

Fp32Mode fast() {
  Fp32Mode mode = accurate();
  mode.exponential = [](float x) {
    const float argument = x * static_cast<float>(std::numbers::log2e);
    const float exact = std::exp2(argument);
    return exact * (1 + 0x1p-22f);  // 2 ulp away
  };
  return mode;
}

Fp32Mode bf16_scores() {
  Fp32Mode mode = accurate();
  mode.stored = [](float x) { return Bf16::from_float(x).to_float(); };
  return mode;
}

Weights exact_weights(const dropless_route_settings& settings, const Token& token) {
  Weights result;
  result.scores = scores_of<double>(settings, token, double_exponential, false, false);
  double sum = 0;
  for (const std::size_t e : token.ids) sum += result.scores[e];
  result.divisor = divisor_of(settings, sum);
  for (const std::size_t e : token.ids) {
    result.weights.push_back(result.scores[e] / result.divisor * settings.scaling_factor);
  }
  return result;
}

Weights fp32_weights(const dropless_route_settings& settings, const dropless_profile& profile,
                     const Token& token, const Fp32Mode& mode) {
  std::vector<float> scores =
      scores_of<float>(settings, token, mode.exponential, mode.backwards, mode.reciprocal);
  for (float& s : scores) s = mode.stored(s);
  Weights result;
  result.scores.assign(scores.begin(), scores.end());
  std::vector<float> chosen;
  for (const std::size_t e : token.ids) {
    float s = scores[e];
    if (profile.weight_source == DROPLESS_WEIGHT_SUBTRACT && !token.bias.empty()) {
      const auto b = static_cast<float>(token.bias[e]);
      s = (s + b) - b;
    }
    chosen.push_back(s);
  }
  float sum = 0;
  if (mode.renormalizes_over_all) {
    for (const float s : scores) sum += s;
  } else if (mode.backwards) {
    for (std::size_t j = chosen.size(); j-- > 0;) sum += chosen[j];
  } else {
    for (const float s : chosen) sum += s;
  }
  const auto eps = static_cast<float>(settings.renormalize_eps);
  const float divisor = !renormalizes(settings)                   ? 1
                        : settings.eps_form == DROPLESS_EPS_ADDED ? sum + eps
                                                                  : std::max(sum, eps);
  const auto factor = static_cast<float>(settings.scaling_factor);
  for (const float s : chosen) {
    const float w = !renormalizes(settings) ? s : mode.reciprocal ? s * (1 / divisor) : s / divisor;
    result.weights.push_back(w * factor);
  }
  result.divisor = divisor;
  return result;
}

double spread_of(const dropless_route_settings& settings, const Token& token, std::size_t expert) {
  if (settings.score_function != DROPLESS_SCORE_SOFTMAX) return std::abs(token.logits[expert]);
  return largest(settings, token) - token.logits[expert];
}

std::vector<SelectedExpert> selected_experts(const dropless_route_settings& settings,
                                             const Token& token, const Weights& exact) {
  std::vector<SelectedExpert> selected;
  for (const std::size_t e : token.ids) {
    selected.push_back({exact.scores[e], spread_of(settings, token, e),
                        token.bias.empty() ? 0 : token.bias[e],
                        settings.scaling_factor / exact.divisor});
  }
  return selected;
}

namespace {

// d_logits from d_weights, in the arithmetic of Real. `gauge` (double only) follows |terms|.
template <class Real>
std::vector<Real> gradient_of(const dropless_route_settings& settings, const Token& token,
                              const std::vector<Real>& scores, Real divisor,
                              const std::vector<Real>& slopes, bool forgets_the_sum,
                              std::vector<Real>* gauge) {
  const std::size_t num_experts = token.logits.size();
  const auto factor = static_cast<Real>(settings.scaling_factor);
  std::vector<Real> d_scores(num_experts, 0), d_gauge(num_experts, 0);
  Real dot = 0, dot_gauge = 0;
  for (std::size_t j = 0; j < token.ids.size(); ++j) {
    const Real d = static_cast<Real>(token.d_weights[j]) * factor;
    dot += d * scores[token.ids[j]];
    dot_gauge += std::abs(d * scores[token.ids[j]]);
  }
  for (std::size_t j = 0; j < token.ids.size(); ++j) {
    const Real d = static_cast<Real>(token.d_weights[j]) * factor;
    const std::size_t e = token.ids[j];
    if (!renormalizes(settings)) {
      d_scores[e] = d;
      d_gauge[e] = std::abs(d);
      continue;
    }
    d_scores[e] = d / divisor - (forgets_the_sum ? 0 : dot / divisor / divisor);
    d_gauge[e] = std::abs(d / divisor) + dot_gauge / divisor / divisor;
  }
  std::vector<Real> d_logits(num_experts, 0), own_gauge(num_experts, 0);
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) {
    Real inner = 0, inner_gauge = 0;
    for (const std::size_t e : token.ids) {
      inner += scores[e] * d_scores[e];
      inner_gauge += scores[e] * d_gauge[e];
    }
    for (const std::size_t e : softmax_range(settings, token)) {
      d_logits[e] = scores[e] * (d_scores[e] - inner);
      own_gauge[e] = scores[e] * (d_gauge[e] + inner_gauge);
    }
  } else {
    for (const std::size_t e : token.ids) {
      d_logits[e] = d_scores[e] * slopes[e];
      own_gauge[e] = d_gauge[e] * slopes[e];
    }
  }
  if (gauge != nullptr) *gauge = own_gauge;
  return d_logits;
}

}  // namespace

Gradient exact_gradient(const dropless_route_settings& settings, const Token& token) {
  const Weights weights = exact_weights(settings, token);
  std::vector<double> slopes;
  for (std::size_t e = 0; e < token.logits.size(); ++e) {
    const double l = token.logits[e], s = 1 / (1 + std::exp(-l));
    slopes.push_back(settings.score_function == DROPLESS_SCORE_SIGMOID
                         ? s / (1 + std::exp(l))
                         : s / (2 * weights.scores[e]));
  }
  Gradient gradient;
  gradient.value = gradient_of<double>(settings, token, weights.scores, weights.divisor, slopes,
                                       false, &gradient.gauge);
  return gradient;
}

std::vector<double> fp32_gradient(const dropless_route_settings& settings, const Token& token,
                                  const Fp32Mode& mode) {
  const Weights weights = fp32_weights(settings, {}, token, mode);
  const std::vector<float> scores(weights.scores.begin(), weights.scores.end());
  std::vector<float> slopes;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const auto l = static_cast<float>(token.logits[e]);
    if (settings.score_function == DROPLESS_SCORE_SIGMOID) {
      const float complement =
          mode.complement_from_score ? 1 - scores[e] : 1 / (1 + mode.exponential(l));
      slopes.push_back(scores[e] * complement);
    } else {
      slopes.push_back(1 / (1 + mode.exponential(-l)) / (2 * scores[e]));
    }
  }
  const std::vector<float> d =
      gradient_of<float>(settings, token, scores, static_cast<float>(weights.divisor), slopes,
                         mode.forgets_the_sum, nullptr);
  return {d.begin(), d.end()};
}

}  // namespace dropless::tolerances::models
