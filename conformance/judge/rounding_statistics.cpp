// SPDX-License-Identifier: Apache-2.0
// z = sum / standard deviation, under independent rounding up with the probability of the fraction.
#include "conformance/judge/rounding_statistics.h"

#include <cmath>

#include "tolerances/float_format.h"
#include "tolerances/interval.h"

namespace dropless::conformance {

Neighbours bf16_neighbours(double x) {
  const double nearest = tolerances::round_to(DROPLESS_BF16, x);
  if (nearest == x) return {x, x};
  const double gap = tolerances::ulp(DROPLESS_BF16, x);
  return nearest < x ? Neighbours{nearest, nearest + gap} : Neighbours{nearest - gap, nearest};
}

RoundingTests rounding_tests(std::span<const double> expected, std::span<const double> got,
                             const std::vector<bool>& judged) {
  double mean = 0, with_fraction = 0, with_previous = 0;
  double mean_variance = 0, fraction_variance = 0, previous_variance = 0;
  double previous = 0, previous_v = 0;
  std::int64_t inexact = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!judged.empty() && !judged[i]) continue;
    const auto [low, high] = bf16_neighbours(expected[i]);
    if (low == high) continue;
    const double fraction = (expected[i] - low) / (high - low);
    const double v = fraction * (1 - fraction);
    const double error = (got[i] - expected[i]) / (high - low);
    const double centred = fraction - 0.5;
    mean += error, mean_variance += v;
    with_fraction += error * centred, fraction_variance += v * centred * centred;
    with_previous += error * previous, previous_variance += v * previous_v;
    previous = error, previous_v = v;
    ++inexact;
  }
  return {{{"mean rounding error", mean / std::sqrt(mean_variance)},
           {"rounding error against the fraction", with_fraction / std::sqrt(fraction_variance)},
           {"rounding errors of neighbours", with_previous / std::sqrt(previous_variance)}},
          inexact};
}

}  // namespace dropless::conformance
