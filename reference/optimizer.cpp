// SPDX-License-Identifier: Apache-2.0
// AdamW, text-book form: OPTIMIZER-1.
#include "reference/optimizer.h"

#include <cmath>

namespace dropless::reference {
namespace {

void check_beta(double beta, const char* name) {
  if (!(beta >= 0 && beta < 1)) {
    throw Refused(std::string(name) + " = " + std::to_string(beta) + " is outside [0, 1)");
  }
}

}  // namespace

void check_adamw_settings(const AdamwSettings& s) {
  check_beta(s.beta1, "beta1");
  check_beta(s.beta2, "beta2");
  if (s.step < 1) throw Refused("step = " + std::to_string(s.step) + " is below 1");
  if (!(s.eps >= 0)) throw Refused("eps = " + std::to_string(s.eps) + " is below 0");
}

AdamwElement adamw(const AdamwSettings& s, double gradient, double first_moment,
                   double second_moment, double weight) {
  check_adamw_settings(s);
  const double t = static_cast<double>(s.step);
  const double g = s.gradient_scale * gradient;
  const double m = s.beta1 * first_moment + (1 - s.beta1) * g;
  const double v = s.beta2 * second_moment + (1 - s.beta2) * g * g;
  const double c1 = 1 - std::pow(s.beta1, t);
  const double c2 = 1 - std::pow(s.beta2, t);
  const double u = (m / c1) / (std::sqrt(v / c2) + s.eps);
  const double update = s.learning_rate * (u + s.weight_decay * weight);
  return {m, v, update, weight - update};
}

ClipFactors clip_factors(double norm, double max_norm) {
  if (!(max_norm >= 0)) throw Refused("max_norm = " + std::to_string(max_norm) + " is below 0");
  const auto at_most_one = [](double factor) { return factor > 1 ? 1 : factor; };  // NaN stays
  // A norm of 0 clips nothing, whatever max_norm is.
  const double plain = norm == 0 ? 1 : at_most_one(max_norm / norm);
  return {plain, at_most_one(max_norm / (norm + 1e-6))};
}

}  // namespace dropless::reference
