// SPDX-License-Identifier: Apache-2.0
// AdamW, text-book form: OPTIMIZER-1 onward. One element at a time, in double.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

struct AdamwSettings {
  double learning_rate = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, gradient_scale = 1;
  Index step = 1;
};

struct AdamwElement {
  double first_moment, second_moment;  // unrounded
  double update;                       // lr * (u + weight_decay * p), unrounded
  double weight;                       // p - update, unrounded
};

// Throws Refused: beta1 or beta2 outside [0, 1), a step below 1, a negative eps.
void check_adamw_settings(const AdamwSettings& settings);

// first_moment etc. are the values before the step.
AdamwElement adamw(const AdamwSettings& settings, double gradient, double first_moment,
                   double second_moment, double weight);

// Global-norm clip factors that are accepted (OPTIMIZER): max_norm / norm and
// max_norm / (norm + 1e-6), each at most 1.
struct ClipFactors {
  double plain, with_eps;
};
ClipFactors clip_factors(double norm, double max_norm);

}  // namespace dropless::reference
