// SPDX-License-Identifier: Apache-2.0
// Score functions of one logit in fp32 (ROUTING-1) and what a row with NaN is (ROUTING-8).
//
// Errors in units of 2^-24: exp and log1p 2 to 4, a sum or a root 1, an approximate reciprocal 2;
// the bound of the two pointwise scores is 8 (ROUTING-6).
#pragma once

#include "optimized/cuda/elements.cuh"

namespace dropless::cuda {

__device__ __forceinline__ float sigmoid_score(float l) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0F + expf(-l)));
  return reciprocal;
}
__device__ __forceinline__ float sqrt_softplus_score(float l) {
  return __fsqrt_rn(fmaxf(l, 0.0F) + log1pf(expf(-fabsf(l))));
}
// Anything but softmax, which needs the row.
__device__ __forceinline__ float pointwise_score(int score_function, float l) {
  return score_function == DROPLESS_SCORE_SIGMOID ? sigmoid_score(l) : sqrt_softplus_score(l);
}

// In double, for the few selected logits of a backward pass: the score and its slope.
struct ScoreSlope {
  double score, slope;
};
__device__ inline ScoreSlope pointwise_slope(int score_function, double l) {
  const double decayed = exp(-fabs(l));  // never overflows
  const double sigmoid = (l >= 0 ? 1.0 : decayed) / (1.0 + decayed);
  if (score_function == DROPLESS_SCORE_SIGMOID) {
    return {sigmoid, decayed / ((1.0 + decayed) * (1.0 + decayed))};
  }
  const double score = sqrt(fmax(l, 0.0) + log1p(decayed));
  return {score, score == 0.0 ? 0.0 : sigmoid / (2.0 * score)};
}

// What has been seen of a row of logits.
struct RowKinds {
  bool nan = false, positive_infinity = false, finite = false;
  float most = -INFINITY;

  __device__ __forceinline__ void see(float l) {
    nan |= l != l;
    positive_infinity |= l == INFINITY;
    finite |= fabsf(l) < INFINITY;
    most = fmaxf(most, l);
  }
  // Of the whole warp's row.
  __device__ __forceinline__ void join() {
    nan = __any_sync(whole_warp, nan) != 0;
    positive_infinity = __any_sync(whole_warp, positive_infinity) != 0;
    finite = __any_sync(whole_warp, finite) != 0;
    most = warp_max(most);
  }
  [[nodiscard]] __device__ __forceinline__ bool is_nan_row(int score_function) const {
    return nan || (score_function == DROPLESS_SCORE_SOFTMAX && (positive_infinity || !finite));
  }
};

}  // namespace dropless::cuda
