// SPDX-License-Identifier: Apache-2.0
// The statistical rules of stochastic rounding to bf16 (OPTIMIZER-1h): z-tests of the rounding
// errors, in units of the gap between the two neighbours.
//
//     for (const RoundingTest& test : rounding_tests(expected, got)) test.z, test.what
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dropless::conformance {

// Chance that a right implementation exceeds it in one of the three tests: 1.1e-7, twice the tail
// of the normal distribution, three times (docs/tolerances.md holds the simulation).
inline constexpr double rounding_z_limit = 5.5;

// The bf16 values around x; both x where bf16 holds it.
struct Neighbours {
  double low, high;
};
Neighbours bf16_neighbours(double x);

struct RoundingTest {
  std::string_view what;
  double z;
};
struct RoundingTests {
  // The mean of the errors; their relation to the fraction (nearest rounding and one random number
  // for all elements show there); that of neighbours.
  RoundingTest tests[3];
  std::int64_t inexact = 0;  // elements that took part
};
// `expected` before rounding; elements that bf16 holds exactly take no part, nor do those that are
// not judged (empty: all are).
RoundingTests rounding_tests(std::span<const double> expected, std::span<const double> got,
                             const std::vector<bool>& judged = {});

}  // namespace dropless::conformance
