// SPDX-License-Identifier: Apache-2.0
// Scores of one token over all experts, and their slopes, in double. ROUTING-1, ROUTING-14.
#pragma once

#include "optimized/cpu/route_settings.h"

namespace dropless::cpu {

// Softmax, sigmoid or sqrt(softplus) of n logits.
void score_row(int score_function, const float* logits, Index n, double* scores);

// d score / d logit of each logit by itself: sigmoid and sqrt(softplus) only.
void slope_row(int score_function, const float* logits, Index n, const double* scores,
               double* slopes);

// log(sum of exp) of n logits; when probabilities is not null, their softmax as well.
double log_sum_exp(const float* logits, Index n, double* probabilities);

// A row whose routing is not a number (ROUTING-8).
bool is_nan_row(int score_function, const float* logits, Index n);

}  // namespace dropless::cpu
