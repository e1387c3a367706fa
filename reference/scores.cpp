// SPDX-License-Identifier: Apache-2.0
// Router scores and their derivatives (ROUTING-1), and the logsumexp that the losses share.
#include "reference/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/routing_checks.h"

namespace dropless::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Below this, softplus(x) = e^x (1 - e^x / 2 + ...) differs from e^x by less than 2^-57 of itself.
// sqrt(e^x) = e^(x/2) then stays a normal number long after e^x has underflown.
constexpr double kSoftplusIsExp = -40;

}  // namespace

double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

double softplus(double x) {
  if (x > 0) return x + std::log1p(std::exp(-x));
  return std::log1p(std::exp(x));
}

double pointwise_score(int score_function, double logit) {
  if (score_function == DROPLESS_SCORE_SIGMOID) return sigmoid(logit);
  return logit < kSoftplusIsExp ? std::exp(logit / 2) : std::sqrt(softplus(logit));
}

double pointwise_slope(int score_function, double logit) {
  // s (1 - s), with 1 - s taken as sigmoid(-x) so that it keeps its digits near s = 1.
  if (score_function == DROPLESS_SCORE_SIGMOID) return sigmoid(logit) * sigmoid(-logit);
  // d sqrt(softplus) = sigmoid / (2 sqrt(softplus)).
  if (logit < kSoftplusIsExp) return std::exp(logit / 2) / 2;
  return sigmoid(logit) / (2 * std::sqrt(softplus(logit)));
}

Doubles softmax(Input logits) {
  if (is_undefined_row(DROPLESS_SCORE_SOFTMAX, logits)) return Doubles(logits.size(), kNaN);
  const double largest = *std::max_element(logits.begin(), logits.end());
  Doubles probabilities;
  double sum = 0;
  for (const double logit : logits) {
    probabilities.push_back(std::exp(logit - largest));
    sum += probabilities.back();
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

Doubles scores(int score_function, Input logits) {
  if (score_function == DROPLESS_SCORE_SOFTMAX) return softmax(logits);
  Doubles result;
  for (const double logit : logits) result.push_back(pointwise_score(score_function, logit));
  return result;
}

bool is_undefined_row(int score_function, Input logits) {
  bool any_finite = false;
  for (const double logit : logits) {
    if (std::isnan(logit)) return true;
    if (score_function == DROPLESS_SCORE_SOFTMAX && logit == kInfinity) return true;
    any_finite = any_finite || std::isfinite(logit);
  }
  return score_function == DROPLESS_SCORE_SOFTMAX && !any_finite;
}

Gauged softmax_backward(Input p, const Gauged& d_p) {
  double dot = 0, dot_gauge = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    dot += d_p.value[i] * p[i];
    dot_gauge += d_p.gauge[i] * p[i];
  }
  Gauged d_x;
  for (std::size_t i = 0; i < p.size(); ++i) {
    d_x.value.push_back(p[i] * (d_p.value[i] - dot));
    d_x.gauge.push_back(p[i] * (d_p.gauge[i] + dot_gauge));
  }
  return d_x;
}

double weight_divisor(const dropless_route_settings& settings, double sum) {
  if (!renormalizes(settings)) return 1;
  const double eps = settings.renormalize_eps;
  if (settings.eps_form == DROPLESS_EPS_ADDED) return sum + eps;
  return sum < eps ? eps : sum;
}

double LogSumExp::gauge() const {
  return std::abs(largest) + std::abs(log_sum);
}

LogSumExp log_sum_exp(Input logits) {
  double largest = -kInfinity;
  for (const double logit : logits) {
    if (std::isnan(logit)) return {kNaN, kNaN};
    largest = std::max(largest, logit);
  }
  // Of nothing, of masked experts alone, or with an infinite one: the largest is the value.
  if (std::isinf(largest)) return {largest, 0};
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return {largest, std::log(sum)};
}

}  // namespace dropless::reference
