// SPDX-License-Identifier: Apache-2.0
// Bounds of the activation: "Activation" in derivations.md. Errors inside are counted in u.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "tolerances/bounds.h"
#include "tolerances/constants.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

// s = sigmoid(x) as fp32 computes it when x carries a relative error.
struct Sigmoid {
  double value, complement;
  double error;             // absolute, of s
  double complement_error;  // absolute, of 1 - s computed from s
};

Sigmoid sigmoid(const dropless_profile& profile, double x, double argument_relative,
                double absolute) {
  const bool fast = profile.exponential == DROPLESS_EXPONENTIAL_FAST;
  const double of_exponential =
      exponential + (fast ? fast_exponential + fast_exponential_per_unit * std::abs(x) : 0);
  const double s = 1 / (1 + std::exp(-x)), complement = 1 / (1 + std::exp(x));
  const double relative = complement * (of_exponential + std::abs(x) * argument_relative) + 1 +
                          (fast ? 2 : 1) * quotient;
  const double error = s * relative + absolute;
  return {s, complement, error, error + complement};
}

// h = q * s(x) * v, with q the gate as it enters, v the up projection as it enters.
struct Gated {
  double q, x, v;
  double slope_x;         // dx/dq
  double slope_relative;  // of dx/dq
  Sigmoid s;
  double v_roundings;
  bool q_held, v_held;  // clamped: the derivative is zero
};

Gated gated(const dropless_profile& profile, const dropless_activation_settings& settings,
            double gate, double up) {
  switch (settings.kind) {
    case DROPLESS_SWIGLU:
      return {gate, gate, up, 1, 0, sigmoid(profile, gate, 0, 0), 0, false, false};
    case DROPLESS_SWIGLU_CLAMPED: {
      const double q = std::min(gate, settings.limit);
      const double v = std::clamp(up, -settings.limit, settings.limit) + settings.offset;
      const double argument = settings.alpha == 1 ? 0 : clamped_argument;
      const double x = settings.alpha * q;
      return {q,
              x,
              v,
              settings.alpha,
              argument,
              sigmoid(profile, x, argument, 0),
              settings.offset == 0 ? 0.0 : 1.0,
              gate > settings.limit,
              std::abs(up) > settings.limit};
    }
    case DROPLESS_GEGLU_TANH: {
      // 0.5 (1 + tanh z) = sigmoid(2z); tanh brings an absolute error where 1 + tanh cancels.
      const double c = 2 * std::sqrt(2 / std::numbers::pi);
      const double x = c * (gate + 0.044715 * gate * gate * gate);
      const double slope = c * (1 + 3 * 0.044715 * gate * gate);
      return {gate,  x,           up,
              slope, geglu_slope, sigmoid(profile, x, geglu_argument, hyperbolic_tangent),
              0,     false,       false};
    }
    default:
      throw std::logic_error("activation bound: unknown kind");
  }
}

// Error of q s v alone, in u.
double product_error(const Gated& g) {
  return std::abs(g.q * g.v) * (g.s.error + (2 + g.v_roundings) * g.s.value);
}

// d(q s(x))/dq = s (1 + q x' (1 - s)): its absolute error in u.
double slope_error(const Gated& g) {
  const double reach = std::abs(g.q * g.slope_x);
  const double inner = reach * (g.s.complement_error + (g.slope_relative + 2) * g.s.complement) +
                       1 + reach * g.s.complement;  // the last: adding 1
  return (1 + reach * g.s.complement) * (g.s.error + g.s.value) + g.s.value * inner;
}

double slope_size(const Gated& g) {
  return g.s.value * std::abs(1 + g.q * g.slope_x * g.s.complement);
}

double finish(double error_in_u, double underflow_scale) {
  const double error = error_in_u * (1 + second_order) * u;
  return std::isnan(error)
             ? 0
             : error + activation_underflow * std::abs(underflow_scale) + fp32_min_normal;
}

}  // namespace

double activation_value(const dropless_profile& profile,
                        const dropless_activation_settings& settings, double gate, double up) {
  if (std::isnan(gate) || std::isnan(up)) return 0;
  if (settings.kind == DROPLESS_RELU2) return gate <= 0 ? 0 : finish(gate * gate, 0);
  const Gated g = gated(profile, settings, gate, up);
  return finish(product_error(g), g.v);
}

double activation_forward(const dropless_profile& profile,
                          const dropless_activation_settings& settings, double gate, double up,
                          double weight) {
  if (std::isnan(gate) || std::isnan(up) || std::isnan(weight)) return 0;
  const double of_weight = weight == 1 ? 0 : 1;
  if (settings.kind == DROPLESS_RELU2) {
    return gate <= 0 ? 0 : finish((1 + of_weight) * gate * gate * std::abs(weight), 0);
  }
  const Gated g = gated(profile, settings, gate, up);
  const double h = g.q * g.s.value * g.v;
  return finish(std::abs(weight) * (product_error(g) + of_weight * std::abs(h)), g.v * weight);
}

ActivationGradientError activation_backward(const dropless_profile& profile,
                                            const dropless_activation_settings& settings,
                                            double gate, double up, double dh, double weight) {
  if (std::isnan(gate) || std::isnan(up) || std::isnan(dh) || std::isnan(weight)) return {0, 0};
  const double d = std::abs(dh * weight);
  if (settings.kind == DROPLESS_RELU2) {
    return {gate <= 0 ? 0 : finish(3 * 2 * gate * d, 0), 0};
  }
  const Gated g = gated(profile, settings, gate, up);
  const double of_gate = std::abs(g.v) * d * (slope_error(g) + (3 + g.v_roundings) * slope_size(g));
  const double of_up = std::abs(g.q) * d * (g.s.error + 3 * g.s.value);
  return {g.q_held ? 0 : finish(of_gate, g.v * d), g.v_held ? 0 : finish(of_up, d)};
}

}  // namespace dropless::tolerances
