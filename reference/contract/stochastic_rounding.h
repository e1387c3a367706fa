// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bf16 by a counter: no state, so that the same seed repeats the same bits
// whatever the order in which elements are visited (OPTIMIZER-1).
#pragma once

#include <cstdint>

#include "reference/value.h"

namespace dropless::reference {

// Uniform in [0, 1), 53 bits, a function of its arguments alone.
double counter_uniform(std::uint64_t seed, std::uint64_t step, std::uint64_t element);

// Code of one of the two bf16 neighbours of x: the one farther from zero with a probability equal
// to the distance from the other, in units of their spacing, so that the mean is x. Exact values
// stay; where the farther neighbour would be infinite, and for NaN and Inf, to nearest even.
std::uint16_t round_stochastically(double x, double uniform);

}  // namespace dropless::reference
