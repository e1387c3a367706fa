// SPDX-License-Identifier: Apache-2.0
// The activation functions and their derivatives at one point, in fp32. ACTIVATION-1, 3 and 4.
//
// All gated kinds are h = q s(x) v with s the logistic function: q the gate as it enters, x what s
// is taken of, v the up projection as it enters. s is a reciprocal with an error of at most 1 ulp.
#pragma once

#include "optimized/cuda/elements.cuh"

namespace dropless::cuda {

struct ActivationSettings {
  int kind;
  bool interleaved;
  float limit, alpha, offset;
  [[nodiscard]] DROPLESS_HOST_DEVICE bool gated() const { return kind != DROPLESS_RELU2; }
};

__device__ __forceinline__ float logistic(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0F + expf(-x)));
  return reciprocal;
}

struct Gated {
  float q, x, v;
  float slope;  // dx/dq
  bool q_held = false, v_held = false;
};

// Comparisons with NaN are false, so that NaN passes the clamps (ACTIVATION-2).
template <int kind>
__device__ __forceinline__ Gated gated(const ActivationSettings& s, float g, float u) {
  if constexpr (kind == DROPLESS_SWIGLU_CLAMPED) {
    const float q = g > s.limit ? s.limit : g;
    const float bounded = u > s.limit ? s.limit : u;
    const float v = (bounded < -s.limit ? -s.limit : bounded) + s.offset;
    return {q, s.alpha * q, v, s.alpha, g > s.limit, u > s.limit || u < -s.limit};
  }
  if constexpr (kind == DROPLESS_GEGLU_TANH) {
    // 0.5 (1 + tanh z) = s(2 z): no cancellation where the tanh is near -1.
    constexpr float twice_root = 1.5957691216057308F, cubic = 0.044715F;  // 2 sqrt(2 / pi)
    const float squared = g * g;
    return {g, twice_root * (g * fmaf(cubic, squared, 1.0F)), u,
            twice_root * fmaf(3.0F * cubic, squared, 1.0F)};
  }
  return {g, g, u, 1.0F};
}

// h, finite whenever the exact value is.
template <int kind>
__device__ __forceinline__ float activate(const ActivationSettings& s, float g, float u) {
  if constexpr (kind == DROPLESS_RELU2) {
    const float positive = g < 0.0F ? 0.0F : g;
    return positive * positive;
  }
  const Gated at = gated<kind>(s, g, u);
  return at.q * logistic(at.x) * at.v;
}

struct ActivationGradient {
  float h, d_gate, d_up;
};

// Derivatives times d.
template <int kind>
__device__ __forceinline__ ActivationGradient differentiate(const ActivationSettings& s, float g,
                                                            float u, float d) {
  if constexpr (kind == DROPLESS_RELU2) {
    const float positive = g < 0.0F ? 0.0F : g;
    return {positive * positive, 2.0F * (positive * d), 0.0F};
  }
  const Gated at = gated<kind>(s, g, u);
  const float sigmoid = logistic(at.x), moving = sigmoid * (1.0F - sigmoid);
  // q times the slope may be huge where s no longer moves: its part is exactly 0 there.
  const float slope = moving == 0.0F ? sigmoid : fmaf(at.q * at.slope, moving, sigmoid);
  const float glu = at.q * sigmoid;
  return {glu * at.v, at.q_held ? 0.0F : (d * at.v) * slope, at.v_held ? 0.0F : d * glu};
}

}  // namespace dropless::cuda
