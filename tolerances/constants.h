// SPDX-License-Identifier: Apache-2.0
// The constants of the bounds, as data. "in u" means: in units of the unit roundoff of fp32. Where
// each comes from is said in tolerances/derivations.md under the heading named beside it.
#pragma once

namespace dropless::tolerances::constants {

// "Notation"
inline constexpr double u = 0x1p-24;                 // unit roundoff of fp32
inline constexpr double fp32_tiny = 0x1p-149;        // smallest subnormal
inline constexpr double fp32_min_normal = 0x1p-126;  // flushing to zero costs at most this
// Products of relative errors, at most 2^-11 in sum: (1 + x) <= (1 + second_order) absorbs them.
inline constexpr double second_order = 0x1p-10;

// "Accumulation"
inline constexpr double bf16_roundoff = 0x1p-8;
inline constexpr int hopper_chunk = 32;          // products per truncating step
inline constexpr double hopper_unit = 0x1p-13;   // 13 fraction bits, truncated
inline constexpr double hopper_tiny = 0x1p-139;  // 13 fraction bits below 2^-126
inline constexpr double statistical_lambda = 4;  // measured, see "Statistical accumulation"
inline constexpr double truncating_growth = 8;   // products per unit of linear growth

// "Scores and weights" (ROUTING-6), in u
inline constexpr double pointwise_score = 8;
inline constexpr double renormalized_pointwise = 4;  // beside K
inline constexpr double softmax_score = 16;          // beside the length and the spread
// "Fast exponential": (2 + 1.2 |x|) ulp, an ulp being at most 2 u
inline constexpr double fast_exponential = 4;
inline constexpr double fast_exponential_per_unit = 2.4;

// "Router gradient"
inline constexpr double gradient_underflow = 0x1p-120;

// "Activation", in u
inline constexpr double exponential = 4;  // 2 ulp
inline constexpr double quotient = 2;     // 1 / (1 + e): division, or reciprocal and product
inline constexpr double hyperbolic_tangent = 1.5;  // 2 ulp of tanh, halved, and t * t
inline constexpr double geglu_argument = 7;    // relative error of sqrt(2/pi) (g + 0.044715 g^3)
inline constexpr double geglu_slope = 6;       // of its derivative
inline constexpr double clamped_argument = 2;  // alpha rounded to fp32, and the product
// e^-g overflows below g = -88: the exact silu is up to 2^-118.9 there, the computed one is 0.
inline constexpr double activation_underflow = 0x1p-118;

// "Losses", in u
inline constexpr double logarithm = 4;  // 2 ulp

// "Layer": bounds of second derivatives
inline constexpr double silu_curvature = 0.5;   // |silu''|, at 0
inline constexpr double gelu_curvature = 0.81;  // |gelu''| of the tanh form, at 0: 0.798
// A rounding bound taken at the value, where the input moves: at most 256 u of the movement.
inline constexpr double moved_rounding = 0x1p-16;

// OPTIMIZER-1, in ulp
inline constexpr double adamw_weight_ulps = 1;
inline constexpr double adamw_update_ulps = 4;
inline constexpr double adamw_moment_ulps = 2;

}  // namespace dropless::tolerances::constants
