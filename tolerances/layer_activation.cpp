// SPDX-License-Identifier: Apache-2.0
// The activation of approximate inputs.
#include "tolerances/layer_activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "tolerances/constants.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

// f(q) with its derivative and a bound of |f''| everywhere; h = f(q) v.
struct Curve {
  double f, slope, curvature;
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// q sigmoid(a q): |f''| <= a / 2.
Curve scaled_silu(double q, double a) {
  const double s = sigmoid(a * q);
  return {q * s, s * (1 + a * q * sigmoid(-a * q)), silu_curvature * std::abs(a)};
}

Curve gelu(double q) {
  const double c = 2 * std::sqrt(2 / std::numbers::pi);
  const double s = sigmoid(c * (q + 0.044715 * q * q * q));
  const double dx = c * (1 + 3 * 0.044715 * q * q);
  return {q * s, s + q * dx * s * (1 - s), gelu_curvature};
}

Curve curve(const dropless_activation_settings& settings, double q) {
  switch (settings.kind) {
    case DROPLESS_SWIGLU:
      return scaled_silu(q, 1);
    case DROPLESS_SWIGLU_CLAMPED:
      return scaled_silu(q, settings.alpha);
    case DROPLESS_GEGLU_TANH:
      return gelu(q);
    case DROPLESS_RELU2:
      return {q > 0 ? q * q : 0, q > 0 ? 2 * q : 0, 2};
    default:
      throw std::logic_error("activation bound: unknown kind");
  }
}

// A clamp of an approximate number: its value, how far it can move, and whether its slope is 1, 0
// or, within the error of the limit, either.
struct Clamped {
  Near near;
  Near slope;
};

Clamped clamp(Near x, double low, double high) {
  const double value = std::clamp(x.value, low, high);
  const double up = std::clamp(x.value + x.error, low, high) - value;
  const double down = value - std::clamp(x.value - x.error, low, high);
  const bool inside = x.value >= low && x.value <= high;
  const double to_limit = std::min(std::abs(x.value - low), std::abs(x.value - high));
  return {{value, std::max(up, down)}, {inside ? 1.0 : 0.0, to_limit <= x.error ? 1.0 : 0.0}};
}

}  // namespace

ActivationPoint activate(const dropless_profile& profile,
                         const dropless_activation_settings& settings, Near gate, Near up,
                         Near weight, Near dh) {
  Clamped q{gate, {1, 0}}, v{up, {1, 0}};
  if (settings.kind == DROPLESS_SWIGLU_CLAMPED) {
    q = clamp(gate, -HUGE_VAL, settings.limit);
    v = clamp(up, -settings.limit, settings.limit);
    v.near.value += settings.offset;
  } else if (settings.kind == DROPLESS_RELU2) {
    v = {{1, 0}, {0, 0}};
  }
  const Curve c = curve(settings, q.near.value);
  const double e = q.near.error;
  const Near f{c.f, (std::abs(c.slope) + 0.5 * c.curvature * e) * e};
  const Near slope = Near{c.slope, c.curvature * e} * q.slope;

  // The rounding bounds are taken at the value; where the input moves they change by no more than a
  // small share of what the result moves.
  const auto rounded = [](Near x, double rounding) {
    return Near{x.value, x.error * (1 + moved_rounding) + rounding};
  };
  const Near h = f * v.near;
  const Near d = dh * weight;
  const auto backward =
      activation_backward(profile, settings, gate.value, up.value, dh.value, weight.value);
  ActivationPoint point;
  point.h = rounded(h, activation_value(profile, settings, gate.value, up.value));
  point.weighted = rounded(
      h * weight, activation_forward(profile, settings, gate.value, up.value, weight.value));
  point.d_gate = rounded(slope * v.near * d, backward.d_gate);
  point.d_up = rounded(f * v.slope * d, backward.d_up);
  return point;
}

}  // namespace dropless::tolerances
