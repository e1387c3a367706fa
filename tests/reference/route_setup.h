// SPDX-License-Identifier: Apache-2.0
// Settings and inputs for the tests of the reference's routing and losses.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "reference/checks.h"
#include "reference/routing.h"

namespace dropless::reference::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline dropless_route_settings route_settings(Index num_experts, Index top_k, int score_function) {
  dropless_route_settings settings{};
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  settings.num_experts = num_experts;
  settings.top_k = top_k;
  settings.score_function = score_function;
  settings.renormalize_eps = 1e-20;
  settings.scaling_factor = 1;
  return settings;
}

inline dropless_profile default_profile() {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  return profile;
}

// Logit with sigmoid(logit) = p.
inline double logit_of(double p) {
  return std::log(p / (1 - p));
}

// Values like those of fp32 tensors: exact in fp32.
inline double fp32(double x) {
  return static_cast<double>(static_cast<float>(x));
}

inline Doubles random_values(std::mt19937_64& random, Index count, double spread) {
  std::normal_distribution<double> normal(0, spread);
  Doubles values;
  for (Index i = 0; i < count; ++i) values.push_back(fp32(normal(random)));
  return values;
}

}  // namespace dropless::reference::testing
