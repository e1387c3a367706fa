// SPDX-License-Identifier: Apache-2.0
// Error bounds: every one a formula with its derivation in tolerances/derivations.md (under the
// heading named in each comment) and its constants in tolerances/constants.h. All are absolute
// errors of the unrounded result unless named "relative"; the output rounding is added by the
// rounded interval.
//
//     const auto y = reference::gemm_fprop(...);
//     Index extra = tolerances::epilogue_roundings(alpha, has_bias, 0);
//     errors[i] = tolerances::gemm(profile, Operands::bf16, gemm_k, y.gauge[i], extra);
//     judge.bounded("GROUPED_GEMM-6a", "y", y_buffer, y.value, errors);
//
// u = 2^-24 (unit roundoff of fp32). `gauge` is the sum of |terms| that the reference hands out. A
// gauge of 0 gives 0 (every term is exactly zero), a NaN gauge gives 0 (NaN is expected and only
// NaN passes), an infinite one +inf (not judged).
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tolerances/float_format.h"

namespace dropless::tolerances {

using Index = std::int64_t;

// ---- Sums: "Accumulation" -----------------------------------------------------------------------

// What the operands of a GEMM are: it selects the declared accumulator of the profile.
enum class Operands { fp32, bf16, mxfp8 };

// Sum of `length` products accumulated as the profile declares, in any order and with any split of
// it, plus `extra` further fp32 roundings (see epilogue_roundings). GROUPED_GEMM-6.
double gemm(const dropless_profile& profile, Operands operands, Index length, double gauge,
            Index extra = 0);
// The roundings after the products: alpha unless a power of two, the bias, beta * C and its
// addition.
Index epilogue_roundings(double alpha, bool has_bias, double beta);
// Zero-mean data only, root = sqrt(sum (a b)^2): label every check that uses it statistical.
double gemm_statistical(const dropless_profile& profile, Operands operands, Index length,
                        double root, double y);

// fp32 sum of `terms` products, (terms + 1) u: PERMUTATION-6 with terms = K, the dot product of
// PERMUTATION-7 with terms = H + 1.
double sum(Index terms, double gauge);
// EXCHANGE-6: the same, plus the roundings to `payload` that the profile declares before the last.
double combine(const dropless_profile& profile, dropless_dtype payload, Index terms, double gauge);

// ---- Routing: "Scores and weights" --------------------------------------------------------------

// `spread` below: for softmax |l - max| of the expert's logit, max over the row (over the selected
// K where the softmax is over those); for sigmoid and sqrtsoftplus |l|, which matters only under a
// fast exponential.

// Relative error of an unbiased score (ROUTING-1), and of a weight made of it (ROUTING-6).
double score_relative(const dropless_route_settings& settings, const dropless_profile& profile,
                      double spread);
double routing_weight_relative(const dropless_route_settings& settings,
                               const dropless_profile& profile, double spread);
// ROUTING-2: absolute error of an unbiased score when the profile declares "subtract".
double routing_weight_subtract(double score, double bias);
// The above put together for one token: absolute errors of its selected weights.
struct SelectedExpert {
  double score;   // unbiased (softmax over the selected K: that softmax)
  double spread;  // see above
  double bias;    // 0 without
  double factor;  // weight = factor * score: scaling factor * expert scale / divisor
};
std::vector<double> routing_weights(const dropless_route_settings& settings,
                                    const dropless_profile& profile,
                                    std::span<const SelectedExpert> selected);

// ROUTING-3: d, the distance within which selection scores may be exchanged. `biased`: the call has
// an expert bias (then the common factor of a softmax does reorder). Masked experts: 0.
double selection_distance(const dropless_route_settings& settings, const dropless_profile& profile,
                          double score, double selection, double spread, bool biased = true);
// The same for the score of a group, from the d and the selection scores of the members that it
// adds up (all members where the group score is their maximum).
double group_distance(const dropless_route_settings& settings, std::span<const double> distances,
                      std::span<const double> selections);

// ROUTING-12, "Router gradient": absolute error of one d_logits element whose |terms| add up to
// gauge. largest_spread: over the unmasked selected experts and the element's own (not finite:
// +inf, not judged); logit: the element's own.
double routing_gradient(const dropless_route_settings& settings, const dropless_profile& profile,
                        double gauge, double largest_spread, double logit);
// d_expert_scale[e], a sum over `tokens` terms.
double expert_scale_gradient(const dropless_route_settings& settings,
                             const dropless_profile& profile, Index tokens, double gauge,
                             double largest_spread);

// ---- Activation: "Activation" -------------------------------------------------------------------

// ACTIVATION-1, 5: absolute error of h = act(gate, up) * weight (1 without weights).
double activation_forward(const dropless_profile& profile,
                          const dropless_activation_settings& settings, double gate, double up,
                          double weight);
// ACTIVATION-4: of the two derivative products, weight included.
struct ActivationGradientError {
  double d_gate, d_up;
};
ActivationGradientError activation_backward(const dropless_profile& profile,
                                            const dropless_activation_settings& settings,
                                            double gate, double up, double dh, double weight);
// Of the unrounded, unweighted h alone: the factor inside d_w = dot(dh, h). The error of d_w is
// sum |dh| activation_value + sum(I, sum |dh h|).
double activation_value(const dropless_profile& profile,
                        const dropless_activation_settings& settings, double gate, double up);

// ---- Losses: "Losses" ---------------------------------------------------------------------------

// LOSSES-1. gauge as the reference gives it: mean of |max| + |log sum| + |target|.
double cross_entropy(const dropless_profile& profile, Index tokens, Index vocabulary, double gauge);
// spread = max of the row - this logit; factor = |d_loss| / number of labelled tokens.
double cross_entropy_gradient(const dropless_profile& profile, Index vocabulary, double gauge,
                              double spread, double factor);
// ROUTING-15. largest = largest |logsumexp| of the tokens in scope.
double z_loss(const dropless_profile& profile, Index tokens, Index num_experts, double coeff,
              double gauge, double largest);
// factor = |d_loss * coeff| * 2 / number of tokens in scope.
double z_loss_gradient(const dropless_profile& profile, Index num_experts, double gauge,
                       double spread, double factor);
// ROUTING-14. largest_spread as for routing, over all E of all tokens in scope.
double balance_loss(const dropless_route_settings& settings, const dropless_profile& profile,
                    Index tokens, double gauge, double largest_spread);
double balance_loss_gradient(const dropless_route_settings& settings,
                             const dropless_profile& profile, double gauge, double largest_spread,
                             double logit);

// ---- Optimizer: "Optimizer" ---------------------------------------------------------------------

// OPTIMIZER-1: weight within 1 ulp of p plus 4 ulp of the update; moments within 2 ulp. Where terms
// of opposite sign cancel, the ulp is that of the terms: pass the sum of their magnitudes as gauge
// (0: nothing cancels).
double adamw_weight(double weight, double update, double update_gauge = 0);
double adamw_moment(double moment, double gauge = 0);

}  // namespace dropless::tolerances
