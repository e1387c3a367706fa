// SPDX-License-Identifier: Apache-2.0
// Measures of a case's inputs, for Judge::require. A case must be able to see what it claims to
// test. Every measure of nothing is the distrustful answer: all zeros, no values, no spread.
#pragma once

#include <cstdint>
#include <span>

namespace dropless::conformance::trust {

double share_of_zeros(std::span<const double> values);
std::int64_t distinct(std::span<const std::uint8_t> bytes);
std::int64_t distinct(std::span<const double> values);  // +0 and -0 are one, all NaN are one
// log2(max |x| / min |x|) over the finite nonzero values.
double spread_in_binades(std::span<const double> values);
double root_mean_square(std::span<const double> values);  // NaN when a value is
// Share of neighbouring pairs (distance `stride`) that differ: catches constant scales and rows.
double share_of_different_neighbours(std::span<const std::uint8_t> bytes, std::int64_t stride = 1);

}  // namespace dropless::conformance::trust
