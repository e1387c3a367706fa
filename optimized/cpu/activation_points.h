// SPDX-License-Identifier: Apache-2.0
// The activation functions and their derivatives over runs of elements, in double. ACTIVATION-1, 4.
#pragma once

#include <dropless/contract.h>

#include "optimized/cpu/exponential.h"
#include "optimized/cpu/threads.h"

namespace dropless::cpu {

struct ActivationSettings {
  int kind;
  double limit, alpha, offset;
  bool interleaved;
  [[nodiscard]] bool gated() const { return kind != DROPLESS_RELU2; }
};

// h and its derivatives by gate and up.
struct ActivationPoint {
  double h, d_gate, d_up;
};

// silu(g) * u.
DROPLESS_INLINE ActivationPoint swiglu(double g, double u) {
  const Logistic s = logistic(g);
  const double silu = g * s.value;
  return {silu * u, u * s.value * (1.0 + g * s.complement), silu};
}

// Comparisons with NaN are false, so that NaN passes the clamps (ACTIVATION-2).
DROPLESS_INLINE ActivationPoint swiglu_clamped(double g, double u, double limit, double alpha,
                                               double offset) {
  const double gate = g > limit ? limit : g;
  const double bounded = u > limit ? limit : u;
  const double up = (bounded < -limit ? -limit : bounded) + offset;
  const Logistic s = logistic(alpha * gate);
  const double glu = gate * s.value;
  const double d_gate = up * s.value * (1.0 + alpha * gate * s.complement);
  const bool up_held = u > limit || u < -limit;
  return {glu * up, g > limit ? 0.0 : d_gate, up_held ? 0.0 : glu};
}

// 0.5 g (1 + tanh(z)) u with z = sqrt(2/pi) (g + 0.044715 g^3): (1 + tanh z) / 2 is the logistic
// function of 2 z, which keeps its relative accuracy where the tanh is near -1.
DROPLESS_INLINE ActivationPoint geglu_tanh(double g, double u) {
  constexpr double twice_root = 1.5957691216057307118;  // 2 sqrt(2 / pi)
  constexpr double cubic = 0.044715;
  const Logistic s = logistic(twice_root * (g + cubic * g * g * g));
  const double gelu = g * s.value;
  const double slope = twice_root * (1.0 + 3.0 * cubic * g * g);
  // g * slope may be huge where the logistic function no longer moves: its part is exactly 0 there.
  const double moving = s.complement * s.value;
  const double d_gelu = s.value + (moving == 0.0 ? 0.0 : g * slope * moving);
  return {gelu * u, u * d_gelu, gelu};
}

// max(x, 0)^2; a NaN stays.
DROPLESS_INLINE ActivationPoint relu2(double x) {
  const double positive = x < 0.0 ? 0.0 : x;
  return {positive * positive, 2.0 * positive, 0.0};
}

template <int kind>
DROPLESS_INLINE ActivationPoint activation_point(const ActivationSettings& s, double g, double u) {
  if constexpr (kind == DROPLESS_SWIGLU) return swiglu(g, u);
  if constexpr (kind == DROPLESS_SWIGLU_CLAMPED) {
    return swiglu_clamped(g, u, s.limit, s.alpha, s.offset);
  }
  if constexpr (kind == DROPLESS_GEGLU_TANH) return geglu_tanh(g, u);
  return relu2(g);
}

template <int kind>
DROPLESS_INLINE void activate_run_of(const ActivationSettings& s, const float* gate,
                                     const float* up, double weight, Index n, float* out) {
  for (Index i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]), u = static_cast<double>(up[i]);
    out[i] = static_cast<float>(activation_point<kind>(s, g, u).h * weight);
  }
}

// out = act(gate, up) * weight.
DROPLESS_INLINE void activate_run(const ActivationSettings& s, const float* gate, const float* up,
                                  double weight, Index n, float* out) {
  switch (s.kind) {
    case DROPLESS_SWIGLU:
      return activate_run_of<DROPLESS_SWIGLU>(s, gate, up, weight, n, out);
    case DROPLESS_SWIGLU_CLAMPED:
      return activate_run_of<DROPLESS_SWIGLU_CLAMPED>(s, gate, up, weight, n, out);
    case DROPLESS_GEGLU_TANH:
      return activate_run_of<DROPLESS_GEGLU_TANH>(s, gate, up, weight, n, out);
    default:
      return activate_run_of<DROPLESS_RELU2>(s, gate, up, weight, n, out);
  }
}

template <int kind>
DROPLESS_INLINE void differentiate_run_of(const ActivationSettings& s, const float* gate,
                                          const float* up, const float* dh, double weight, Index n,
                                          float* d_gate, float* d_up, double* products) {
  for (Index i = 0; i < n; ++i) {
    const double g = static_cast<double>(gate[i]), u = static_cast<double>(up[i]);
    const ActivationPoint point = activation_point<kind>(s, g, u);
    const double gradient = static_cast<double>(dh[i]);
    d_gate[i] = static_cast<float>(gradient * weight * point.d_gate);
    d_up[i] = static_cast<float>(gradient * weight * point.d_up);
    products[i] = gradient * point.h;
  }
}

// d_gate and d_up carry the weight; products = dh * h, h unweighted and unrounded (ACTIVATION-5).
DROPLESS_INLINE void differentiate_run(const ActivationSettings& s, const float* gate,
                                       const float* up, const float* dh, double weight, Index n,
                                       float* d_gate, float* d_up, double* products) {
  switch (s.kind) {
    case DROPLESS_SWIGLU:
      return differentiate_run_of<DROPLESS_SWIGLU>(s, gate, up, dh, weight, n, d_gate, d_up,
                                                   products);
    case DROPLESS_SWIGLU_CLAMPED:
      return differentiate_run_of<DROPLESS_SWIGLU_CLAMPED>(s, gate, up, dh, weight, n, d_gate, d_up,
                                                           products);
    case DROPLESS_GEGLU_TANH:
      return differentiate_run_of<DROPLESS_GEGLU_TANH>(s, gate, up, dh, weight, n, d_gate, d_up,
                                                       products);
    default:
      return differentiate_run_of<DROPLESS_RELU2>(s, gate, up, dh, weight, n, d_gate, d_up,
                                                  products);
  }
}

}  // namespace dropless::cpu
