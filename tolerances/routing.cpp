// SPDX-License-Identifier: Apache-2.0
// Bounds of scores, routing weights, selection and the router gradient: "Scores and weights",
// "Selection" and "Router gradient" in derivations.md.
#include "tolerances/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "tolerances/bounds.h"
#include "tolerances/constants.h"

namespace dropless::tolerances {

using namespace constants;

double fast_exponential_error(const dropless_profile& profile, double argument) {
  if (profile.exponential != DROPLESS_EXPONENTIAL_FAST || !std::isfinite(argument)) return 0;
  return (fast_exponential + fast_exponential_per_unit * std::abs(argument)) * u;
}

double sigmoid_slope_relative(double score_error, double logit) {
  // s (1 - s) from a computed s: near s = 1 the error of 1 - s is that of s. 1 / (1 - s) = 1 + e^l.
  const double s = 1 / (1 + std::exp(-logit));
  return score_error + u + (score_error * s + u) * (1 + std::exp(std::min(logit, 700.0)));
}

double pointwise_slope_relative(int score_function, double score_error, double logit) {
  if (score_function == DROPLESS_SCORE_SIGMOID) return sigmoid_slope_relative(score_error, logit);
  return 2 * score_error + 2 * u;  // sigmoid(l) / (2 sqrt(softplus(l)))
}

namespace {

bool is_softmax(const dropless_route_settings& settings) {
  return settings.score_function == DROPLESS_SCORE_SOFTMAX;
}

bool is_softmax_of_selected(const dropless_route_settings& settings) {
  return is_softmax(settings) && settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K;
}

bool renormalizes(const dropless_route_settings& settings) {
  return (settings.top_k == 1 ? settings.renormalize_single : settings.renormalize) != 0;
}

// A spread without end belongs to a masked expert: its score is exactly 0.
double softmax_relative(double length, double spread) {
  if (!std::isfinite(spread)) spread = 0;
  return (length + spread + softmax_score) * u;
}

}  // namespace

double score_relative(const dropless_route_settings& settings, const dropless_profile& profile,
                      double spread) {
  const double fast = fast_exponential_error(profile, spread);
  if (!is_softmax(settings)) return pointwise_score * u + fast;
  return softmax_relative(static_cast<double>(settings.num_experts), spread) + fast;
}

double routing_weight_relative(const dropless_route_settings& settings,
                               const dropless_profile& profile, double spread) {
  const auto k = static_cast<double>(settings.top_k);
  const bool over_selected = is_softmax_of_selected(settings) || renormalizes(settings);
  if (is_softmax(settings) && over_selected) {
    return softmax_relative(k, spread) + fast_exponential_error(profile, spread);
  }
  const double own = score_relative(settings, profile, spread);
  return renormalizes(settings) ? own + (k + renormalized_pointwise) * u : own;
}

double routing_weight_subtract(double score, double bias) {
  const double size = (std::abs(score) + std::abs(bias)) * (1 + second_order);
  const double of_sum = 0.5 * ulp(DROPLESS_FP32, size);
  return of_sum + u * (std::abs(score) + of_sum);
}

std::vector<double> routing_weights(const dropless_route_settings& settings,
                                    const dropless_profile& profile,
                                    std::span<const SelectedExpert> selected) {
  const bool subtracts = profile.weight_source == DROPLESS_WEIGHT_SUBTRACT &&
                         std::any_of(selected.begin(), selected.end(),
                                     [](const SelectedExpert& expert) { return expert.bias != 0; });
  double total = 0, total_error = 0;
  std::vector<double> absolute;
  for (const SelectedExpert& expert : selected) {
    absolute.push_back(fp32_min_normal +
                       (subtracts ? routing_weight_subtract(expert.score, expert.bias) : 0));
    total += expert.score;
    total_error += absolute.back();
  }
  const double of_divisor = renormalizes(settings) && total > 0 ? total_error / total : 0;
  std::vector<double> errors;
  for (std::size_t j = 0; j < selected.size(); ++j) {
    const double weight = std::abs(selected[j].factor * selected[j].score);
    const double relative = routing_weight_relative(settings, profile, selected[j].spread);
    const double own = weight * relative + std::abs(selected[j].factor) * absolute[j];
    // 1 / (1 - x) <= 1 + 2x while x <= 1/2; beyond that the sum itself is lost.
    errors.push_back(of_divisor <= 0.5 ? own + 2 * of_divisor * (weight + own)
                                       : std::numeric_limits<double>::infinity());
  }
  return errors;
}

double selection_distance(const dropless_route_settings& settings, const dropless_profile& profile,
                          double score, double selection, double spread, bool biased) {
  if (!std::isfinite(selection)) return 0;         // masked, or a row that is not judged
  if (is_softmax_of_selected(settings)) return 0;  // selects on the logits themselves
  const double relative =
      is_softmax(settings) && !biased
          ? softmax_relative(0, spread) + fast_exponential_error(profile, spread)
          : score_relative(settings, profile, spread);
  return relative * std::abs(score) + 0.5 * ulp(DROPLESS_FP32, selection) + fp32_min_normal;
}

double group_distance(const dropless_route_settings& settings, std::span<const double> distances,
                      std::span<const double> selections) {
  if (distances.size() != selections.size()) throw std::logic_error("group_distance: sizes differ");
  if (distances.empty()) return 0;
  if (settings.group_score == DROPLESS_GROUP_SCORE_MAX) {
    return *std::max_element(distances.begin(), distances.end());
  }
  double gauge = 0;
  for (const double selection : selections) gauge += std::abs(selection);
  if (!std::isfinite(gauge)) return 0;
  const double additions = static_cast<double>(selections.size()) - 1;
  return std::accumulate(distances.begin(), distances.end(), 0.0) + additions * u * gauge;
}

double routing_gradient(const dropless_route_settings& settings, const dropless_profile& profile,
                        double gauge, double largest_spread, double logit) {
  if (std::isnan(gauge) || gauge == 0) return 0;
  if (!std::isfinite(largest_spread)) return std::numeric_limits<double>::infinity();
  const auto k = static_cast<double>(settings.top_k);
  double factor = 0;
  if (is_softmax_of_selected(settings)) {
    const double score =
        softmax_relative(k, largest_spread) + fast_exponential_error(profile, largest_spread);
    factor = 2 * score + (k + 6) * u;
  } else {
    const double score = score_relative(settings, profile, largest_spread);
    if (is_softmax(settings)) {
      factor = renormalizes(settings) ? 5 * score + (4 * k + 8) * u : 2 * score + (k + 6) * u;
    } else {
      factor = pointwise_slope_relative(settings.score_function, score, logit) +
               (renormalizes(settings) ? 3 * score + (3 * k + 6) * u : 3 * u);
    }
  }
  return factor * (1 + second_order) * gauge + gradient_underflow;
}

double expert_scale_gradient(const dropless_route_settings& settings,
                             const dropless_profile& profile, Index tokens, double gauge,
                             double largest_spread) {
  if (std::isnan(gauge) || gauge == 0) return 0;
  if (!std::isfinite(largest_spread)) return std::numeric_limits<double>::infinity();
  const double weight = routing_weight_relative(settings, profile, largest_spread);
  const double factor = weight + (static_cast<double>(tokens) + 2) * u;
  return factor * (1 + second_order) * gauge + gradient_underflow;
}

}  // namespace dropless::tolerances
