// SPDX-License-Identifier: Apache-2.0
// Bounds of cross-entropy, z-loss and balance loss: "Losses" in derivations.md.
#include <algorithm>
#include <cmath>

#include "tolerances/bounds.h"
#include "tolerances/constants.h"
#include "tolerances/routing.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

// Absolute error of ln(sum over `width` of e^(l - max)), in u: the relative error of the sum plus
// the logarithm's own. On average over the sum |l - max| is at most ln(width).
double log_sum_error(const dropless_profile& profile, Index width) {
  if (width <= 0) return 0;
  const auto n = static_cast<double>(width);
  const double average_spread = std::log(n);
  return n + average_spread + exponential + fast_exponential_error(profile, average_spread) / u +
         logarithm * average_spread;
}

double finish(double error_in_u, double gauge, double underflow) {
  if (std::isnan(error_in_u) || gauge == 0) return 0;
  return error_in_u * (1 + second_order) * u + underflow;
}

// Relative error of one p of a softmax over `width`.
double softmax_error(const dropless_profile& profile, Index width, double spread) {
  return static_cast<double>(width) + spread + softmax_score +
         fast_exponential_error(profile, spread) / u;
}

// e^-spread, at most p itself, where the error of p is spread times it: never more than 1.
double decayed(double spread) {
  return std::exp(-std::max(spread, 0.0));
}

}  // namespace

double cross_entropy(const dropless_profile& profile, Index tokens, Index vocabulary,
                     double gauge) {
  const double per_token = log_sum_error(profile, vocabulary);
  const double in_u = per_token + (static_cast<double>(tokens) + 3) * gauge;
  return finish(in_u, gauge, fp32_min_normal);
}

double cross_entropy_gradient(const dropless_profile& profile, Index vocabulary, double gauge,
                              double spread, double factor) {
  // p is at most e^-spread, so that the part of its error that grows with the spread does not grow.
  const double of_spread = softmax_error(profile, 0, spread) * decayed(spread) * factor;
  const double in_u = (static_cast<double>(vocabulary) + 4) * gauge + of_spread;
  return finish(in_u, gauge, factor * fp32_min_normal + fp32_min_normal);
}

double z_loss(const dropless_profile& profile, Index tokens, Index num_experts, double coeff,
              double gauge, double largest) {
  const double per_token = log_sum_error(profile, num_experts);
  const double in_u =
      2 * std::abs(coeff) * largest * per_token + (static_cast<double>(tokens) + 6) * gauge;
  const double squared = std::abs(coeff) * per_token * u * per_token;
  return finish(in_u + squared, gauge, fp32_min_normal);
}

double z_loss_gradient(const dropless_profile& profile, Index num_experts, double gauge,
                       double spread, double factor) {
  const double of_p = softmax_error(profile, num_experts, spread) + 6;
  const double of_lse = factor * decayed(spread) * log_sum_error(profile, num_experts);
  return finish(of_p * gauge + of_lse, gauge, fp32_min_normal * (1 + factor) + gradient_underflow);
}

double balance_loss(const dropless_route_settings& settings, const dropless_profile& profile,
                    Index tokens, double gauge, double largest_spread) {
  const auto experts = static_cast<double>(settings.num_experts);
  const double own = score_relative(settings, profile, largest_spread) / u;
  const double p = settings.score_function == DROPLESS_SCORE_SOFTMAX ? own : 2 * own + experts;
  const double in_u = (p + 2 * static_cast<double>(tokens) + experts + 8) * gauge;
  return finish(in_u, gauge, gradient_underflow);
}

double balance_loss_gradient(const dropless_route_settings& settings,
                             const dropless_profile& profile, double gauge, double largest_spread,
                             double logit) {
  const auto experts = static_cast<double>(settings.num_experts);
  const double own = score_relative(settings, profile, largest_spread) / u;
  double in_u = 2 * own + experts + 12;
  if (settings.score_function != DROPLESS_SCORE_SOFTMAX) {
    in_u = 3 * own + 3 * experts + 12 +
           pointwise_slope_relative(settings.score_function, own * u, logit) / u;
  }
  return finish(in_u * gauge, gauge, gradient_underflow);
}

}  // namespace dropless::tolerances
