// SPDX-License-Identifier: Apache-2.0
// Error bounds: every one a formula with its derivation in tolerances/derivations.md and its
// constants in tolerances/constants.h. All are absolute errors of the unrounded result; the
// output rounding is added by the rounded interval.
//
// u = 2^-24 (unit roundoff of fp32). `gauge` is the sum of |terms| that the reference hands out.
#pragma once

#include <dropless/contract.h>

#include <cstdint>

#include "tolerances/float_format.h"

namespace dropless::tolerances {

using Index = std::int64_t;

// What the operands of a GEMM are: it selects the declared accumulator of the profile.
enum class Operands { fp32, bf16, mxfp8 };

// Sum of `length` products accumulated as the profile declares, plus `extra` additions in fp32
// (bias, beta * C, split-K partials). GROUPED_GEMM-6.
double gemm(const dropless_profile& profile, Operands operands, Index length, double gauge,
            Index extra = 0);
// Zero-mean data only, root = sqrt(sum (a b)^2): label every check that uses it statistical.
double gemm_statistical(const dropless_profile& profile, Operands operands, Index length,
                        double root, double y);

// fp32 sum of `terms` products in any order (unpermute, weight gradients, combine).
double sum(Index terms, double gauge);

// ROUTING-6: relative error of a routing weight. `spread` = |l - max l| of this expert's logit.
double routing_weight_relative(const dropless_route_settings& settings,
                               const dropless_profile& profile, double spread);
// ROUTING-2: absolute error of the cancellation when the profile declares "subtract".
double routing_weight_subtract(double score, double bias);
// ROUTING-3: d, the distance within which selection scores may be exchanged.
double selection_distance(const dropless_route_settings& settings, const dropless_profile& profile,
                          double score, double selection, double spread);
// ROUTING-12: absolute error of one d_logits element whose |terms| add up to gauge.
double routing_gradient(const dropless_route_settings& settings, const dropless_profile& profile,
                        double gauge, double largest_spread);

// ACTIVATION-1, 4, 5: absolute error of h and of a derivative product, from fp32 arithmetic.
// `scale` = |h| (forward) or |dh| * (|f'| + |f|-like terms) (backward); see the derivation.
double activation_forward(const dropless_profile& profile,
                          const dropless_activation_settings& settings, double gate, double up,
                          double weight);
struct ActivationGradientError {
  double d_gate, d_up;
};
ActivationGradientError activation_backward(const dropless_profile& profile,
                                            const dropless_activation_settings& settings,
                                            double gate, double up, double dh, double weight);
// Error of the unrounded, unweighted h alone: the factor inside d_w = dot(dh, h).
double activation_value(const dropless_profile& profile,
                        const dropless_activation_settings& settings, double gate, double up);

// LOSSES-1 and the router losses: a scalar made of `terms` terms with |terms| adding up to gauge,
// each term the result of a logsumexp over `width` logits of magnitude up to `largest`.
double loss_value(Index terms, Index width, double gauge, double largest);
double loss_gradient(Index terms, Index width, double gauge, double largest);

// OPTIMIZER-1: weight within 1 ulp of p plus 4 ulp of the update; moments within 2 ulp.
double adamw_weight(double weight, double update);
double adamw_moment(double moment);

}  // namespace dropless::tolerances
