// SPDX-License-Identifier: Apache-2.0
// Bounds of the optimizer step: "Optimizer" in derivations.md.
#include <algorithm>
#include <cmath>

#include "tolerances/bounds.h"
#include "tolerances/constants.h"

namespace dropless::tolerances {

namespace {
double fp32_ulps(double count, double at) {
  return std::isnan(at) ? 0 : count * ulp(DROPLESS_FP32, at);
}
}  // namespace

double adamw_weight(double weight, double update, double update_gauge) {
  return fp32_ulps(constants::adamw_weight_ulps, weight) +
         fp32_ulps(constants::adamw_update_ulps, std::max(std::abs(update), update_gauge));
}

double adamw_moment(double moment, double gauge) {
  return fp32_ulps(constants::adamw_moment_ulps, std::max(std::abs(moment), gauge));
}

}  // namespace dropless::tolerances
