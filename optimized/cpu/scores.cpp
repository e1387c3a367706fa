// SPDX-License-Identifier: Apache-2.0
// Score functions over a row of logits.
#include "optimized/cpu/scores.h"

#include <cmath>

#include "optimized/cpu/exponential.h"

namespace dropless::cpu {
namespace {

// Below this logit softplus(l) = exp(l) to the last bit of a double.
constexpr double tiny_logit = -40.0;

double sqrt_softplus(double l) {
  if (l < tiny_logit) return std::exp(l / 2);
  return std::sqrt(std::max(l, 0.0) + std::log1p(std::exp(-std::abs(l))));
}

double sqrt_softplus_slope(double l, double score) {
  if (l < tiny_logit) return score / 2;
  return logistic(l).value / (2 * score);
}

float largest(const float* x, Index n) {
  float most = -std::numeric_limits<float>::infinity();
  for (Index i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

constexpr Index lanes = 8;

// Sum by lanes, then over the lanes: the same order for every row, and vectorisable.
DROPLESS_INLINE double sum_by_lanes(const double* x, Index n) {
  double partial[lanes] = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (Index l = 0; l < lanes; ++l) partial[l] += x[i + l];
  }
  for (Index l = 0; i < n; ++i, ++l) partial[l] += x[i];
  double sum = 0;
  for (Index l = 0; l < lanes; ++l) sum += partial[l];
  return sum;
}

// exp(l - max) of a whole row, and their sum.
double exponentials(const float* logits, Index n, float most, double* out) {
  double sum = 0;
  with_simd([=, &sum]() DROPLESS_INLINE_LAMBDA {
    for (Index i = 0; i < n; ++i) {
      out[i] = exp_accurate(static_cast<double>(logits[i]) - static_cast<double>(most));
    }
    sum = sum_by_lanes(out, n);
  });
  return sum;
}

}  // namespace

void score_row(int score_function, const float* logits, Index n, double* scores) {
  if (score_function == DROPLESS_SCORE_SOFTMAX) {
    log_sum_exp(logits, n, scores);
  } else if (score_function == DROPLESS_SCORE_SIGMOID) {
    with_simd([=]() DROPLESS_INLINE_LAMBDA {
      for (Index i = 0; i < n; ++i) scores[i] = logistic(static_cast<double>(logits[i])).value;
    });
  } else {
    for (Index i = 0; i < n; ++i) scores[i] = sqrt_softplus(static_cast<double>(logits[i]));
  }
}

void slope_row(int score_function, const float* logits, Index n, const double* scores,
               double* slopes) {
  if (score_function == DROPLESS_SCORE_SIGMOID) {
    with_simd([=]() DROPLESS_INLINE_LAMBDA {
      for (Index i = 0; i < n; ++i) {
        const Logistic s = logistic(static_cast<double>(logits[i]));
        slopes[i] = s.value * s.complement;
      }
    });
  } else {
    for (Index i = 0; i < n; ++i) {
      slopes[i] = sqrt_softplus_slope(static_cast<double>(logits[i]), scores[i]);
    }
  }
}

double log_sum_exp(const float* logits, Index n, double* probabilities) {
  constexpr Index piece = 1024;
  const float most = largest(logits, n);
  if (probabilities != nullptr) {
    const double sum = exponentials(logits, n, most, probabilities);
    const double factor = 1.0 / sum;
    for (Index i = 0; i < n; ++i) probabilities[i] *= factor;
    return static_cast<double>(most) + std::log(sum);
  }
  double scratch[piece], sum = 0;
  for (Index i = 0; i < n; i += piece) {
    sum += exponentials(logits + i, std::min(piece, n - i), most, scratch);
  }
  return static_cast<double>(most) + std::log(sum);
}

bool is_nan_row(int score_function, const float* logits, Index n) {
  constexpr std::uint32_t infinite = 0x7F800000u;
  std::uint32_t nans = 0, infinities = 0, finites = 0;
  with_simd([=, &nans, &infinities, &finites]() DROPLESS_INLINE_LAMBDA {
    std::uint32_t nan = 0, positive = 0, finite = 0;
    for (Index i = 0; i < n; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(logits[i]);
      const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
      nan += magnitude > infinite ? 1 : 0;
      positive += bits == infinite ? 1 : 0;
      finite += magnitude < infinite ? 1 : 0;
    }
    nans = nan, infinities = positive, finites = finite;
  });
  return nans > 0 || (score_function == DROPLESS_SCORE_SOFTMAX && (infinities > 0 || finites == 0));
}

}  // namespace dropless::cpu
