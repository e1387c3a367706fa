// SPDX-License-Identifier: Apache-2.0
// Scores and routing weights of one token as formulas over any scalar: long double gives values,
// Dual gives derivatives by forward differentiation (ROUTING-1, 6, 12).
#pragma once

#include <dropless/contract.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace dropless::oracles {

// A number and its derivative in one direction.
struct Dual {
  long double value = 0, slope = 0;
  // Implicit on purpose: constants mix with duals in the formulas below.
  Dual(long double v = 0, long double s = 0) : value(v), slope(s) {}  // NOLINT
};

inline Dual operator+(Dual a, Dual b) {
  return {a.value + b.value, a.slope + b.slope};
}
inline Dual operator-(Dual a, Dual b) {
  return {a.value - b.value, a.slope - b.slope};
}
inline Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
inline Dual operator/(Dual a, Dual b) {
  return {a.value / b.value, (a.slope * b.value - a.value * b.slope) / (b.value * b.value)};
}
inline Dual exp(Dual a) {
  return {std::exp(a.value), a.slope * std::exp(a.value)};
}
inline Dual log1p(Dual a) {
  return {std::log1p(a.value), a.slope / (1 + a.value)};
}
inline Dual sqrt(Dual a) {
  const long double root = std::sqrt(a.value);
  return {root, a.slope == 0 ? 0 : a.slope / (2 * root)};
}
inline long double plain(Dual a) {
  return a.value;
}
inline long double plain(long double a) {
  return a;
}

// Scores of all experts; a logit of -infinity has score 0.
template <typename Scalar>
std::vector<Scalar> score_formula(const dropless_route_settings& settings,
                                  const std::vector<Scalar>& logits) {
  using std::exp;
  using std::log1p;
  using std::sqrt;
  long double largest = -INFINITY;
  for (const Scalar& l : logits) largest = std::fmax(largest, plain(l));
  std::vector<Scalar> scores;
  Scalar sum = 0.0L;
  for (const Scalar& l : logits) {
    const bool masked = plain(l) == -INFINITY;
    Scalar score = 0.0L;
    if (masked) {
    } else if (settings.score_function == DROPLESS_SCORE_SOFTMAX) {
      score = exp(l - Scalar(largest));
    } else if (settings.score_function == DROPLESS_SCORE_SIGMOID) {
      score = Scalar(1.0L) / (Scalar(1.0L) + exp(Scalar(0.0L) - l));
    } else if (plain(l) > 0) {
      score = sqrt(l + log1p(exp(Scalar(0.0L) - l)));
    } else {
      score = sqrt(log1p(exp(l)));
    }
    sum = sum + score;
    scores.push_back(score);
  }
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) {
    for (Scalar& score : scores) score = score / sum;
  }
  return scores;
}

// Routing weights of the given ids (-1: weight 0, outside every sum), before the per-expert scale.
template <typename Scalar>
std::vector<Scalar> weight_formula(const dropless_route_settings& settings,
                                   const std::vector<Scalar>& logits,
                                   const std::vector<std::int64_t>& ids) {
  std::vector<Scalar> selected;
  if (settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K &&
      settings.score_function == DROPLESS_SCORE_SOFTMAX) {
    std::vector<Scalar> chosen;
    for (std::int64_t id : ids) {
      chosen.push_back(id < 0 ? Scalar(-INFINITY) : logits.at(static_cast<std::size_t>(id)));
    }
    selected = score_formula(settings, chosen);
  } else {
    const std::vector<Scalar> scores = score_formula(settings, logits);
    for (std::int64_t id : ids) {
      selected.push_back(id < 0 ? Scalar(0.0L) : scores.at(static_cast<std::size_t>(id)));
    }
  }
  const bool renormalize =
      settings.top_k > 1 ? settings.renormalize != 0 : settings.renormalize_single != 0;
  if (renormalize) {
    Scalar sum = 0.0L;
    for (const Scalar& s : selected) sum = sum + s;
    const Scalar eps = static_cast<long double>(settings.renormalize_eps);
    Scalar divisor = sum + eps;
    if (settings.eps_form == DROPLESS_EPS_MAXIMUM) divisor = plain(sum) > plain(eps) ? sum : eps;
    for (Scalar& s : selected) s = s / divisor;
  }
  for (Scalar& s : selected) s = s * Scalar(static_cast<long double>(settings.scaling_factor));
  return selected;
}

}  // namespace dropless::oracles
