// SPDX-License-Identifier: Apache-2.0
// Router scores and their derivatives (ROUTING-1), and the logsumexp that the losses share.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

// 1 / (1 + e^-x), without overflow for any x; 1 at +Inf, 0 at -Inf.
double sigmoid(double x);
// ln(1 + e^x), accurate for every x: close to e^x far below zero, close to x far above.
double softplus(double x);

// Score of one logit, and its derivative, for the two functions that look at one logit alone
// (sigmoid, sqrt(softplus)).
double pointwise_score(int score_function, double logit);
double pointwise_slope(int score_function, double logit);

// softmax over all elements. NaN everywhere where it is undefined (ROUTING-8): a NaN, a +Inf, or no
// finite element. An element -Inf gives exactly 0.
Doubles softmax(Input logits);

// The transposed derivative of softmax: d_x_i = p_i (d_p_i - sum_j d_p_j p_j).
Gauged softmax_backward(Input p, const Gauged& d_p);

// Unbiased scores of one token (ROUTING-1).
Doubles scores(int score_function, Input logits);
// ROUTING-8: the scores of this row cannot be defined.
bool is_undefined_row(int score_function, Input logits);

// ROUTING-6: what the chosen scores are divided by, given their sum; 1 without renormalisation.
double weight_divisor(const dropless_route_settings& settings, double sum);

// ln sum exp, split so that a gauge can be made of its terms: value = largest + log_sum.
struct LogSumExp {
  double largest;
  double log_sum;
  [[nodiscard]] double value() const { return largest + log_sum; }
  [[nodiscard]] double gauge() const;  // |largest| + |log_sum|
};
LogSumExp log_sum_exp(Input logits);

}  // namespace dropless::reference
