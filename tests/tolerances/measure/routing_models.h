// SPDX-License-Identifier: Apache-2.0
// Routing of one token in plain fp32, as a legal implementation writes it, with switches that break
// it; and the exact result in double. Selection is given: this is about values, not about top-k.
#pragma once

#include <dropless/contract.h>

#include <functional>
#include <vector>

#include "tolerances/bounds.h"

namespace dropless::tolerances::models {

struct Fp32Mode {
  std::function<float(float)> exponential;  // e^x
  std::function<float(float)> stored;       // what becomes of a stored score
  bool reciprocal = false;                  // multiplies by 1 / sum
  bool backwards = false;                   // sums from the other end
  bool renormalizes_over_all = false;       // a fault: the sum of all E, not of the K
  bool forgets_the_sum = false;             // a fault in the gradient: D taken as constant
  bool complement_from_score = true;        // 1 - s instead of sigmoid(-l)
};
Fp32Mode accurate();
Fp32Mode fast();         // e^x = 2^(x log2 e) with a rounded product and 2 ulp
Fp32Mode bf16_scores();  // a fault

struct Token {
  std::vector<double> logits;
  std::vector<double> bias;      // [E] or empty
  std::vector<std::size_t> ids;  // K selected experts
  std::vector<double> d_weights;
};

struct Weights {
  std::vector<double> scores;   // [E]
  std::vector<double> weights;  // [K]
  double divisor = 1;
};
Weights exact_weights(const dropless_route_settings& settings, const Token& token);
Weights fp32_weights(const dropless_route_settings& settings, const dropless_profile& profile,
                     const Token& token, const Fp32Mode& mode);
// What Selection needs for tolerances::routing_weights.
std::vector<SelectedExpert> selected_experts(const dropless_route_settings& settings,
                                             const Token& token, const Weights& exact);
double spread_of(const dropless_route_settings& settings, const Token& token, std::size_t expert);

struct Gradient {
  std::vector<double> value, gauge;  // [E]
};
Gradient exact_gradient(const dropless_route_settings& settings, const Token& token);
std::vector<double> fp32_gradient(const dropless_route_settings& settings, const Token& token,
                                  const Fp32Mode& mode);

}  // namespace dropless::tolerances::models
