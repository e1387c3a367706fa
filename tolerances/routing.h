// SPDX-License-Identifier: Apache-2.0
// What the bounds of routing and of the losses share.
#pragma once

#include <dropless/contract.h>

namespace dropless::tolerances {

// Relative error that a fast exponential adds at this argument; 0 for an accurate one.
double fast_exponential_error(const dropless_profile& profile, double argument);

// Relative error of the derivative of sigmoid or sqrtsoftplus at `logit`, computed in fp32 from a
// score (or sigmoid) of relative error score_error.
double pointwise_slope_relative(int score_function, double score_error, double logit);

}  // namespace dropless::tolerances
