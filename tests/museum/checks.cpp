// SPDX-License-Identifier: Apache-2.0
// The common checks.
#include "tests/museum/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dropless::museum {
namespace {

using Values = std::span<const double>;

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool close(double expected, double got, double relative, double absolute) {
  if (same(expected, got)) return true;
  if (!std::isfinite(expected) || !std::isfinite(got)) return false;
  return std::abs(got - expected) <= absolute + relative * std::abs(expected);
}

std::size_t matches(Values expected, Values got, double relative, double absolute) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    count += close(expected[i], got[i], relative, absolute) ? 1 : 0;
  }
  return count;
}

// Places where both are the same NaN or infinity say nothing; where only one is, the sums are NaN.
template <class Visit>
void each_pair(Values expected, Values got, Visit visit) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i]) && same(expected[i], got[i])) continue;
    visit(expected[i], got[i]);
  }
}

bool tight_pair(Values expected, Values got) {
  return matches(expected, got, 1.6e-2, 1e-5) == expected.size();
}
bool fp8_pair(Values expected, Values got) {
  return matches(expected, got, 0.125, 0.0675) == expected.size();
}
bool loose_pair(Values expected, Values got) {
  return matches(expected, got, 5e-2, 5e-2) == expected.size();
}

bool cosine(Values expected, Values got) {
  double product = 0, squares = 0;
  each_pair(expected, got, [&](double e, double g) { product += e * g, squares += e * e + g * g; });
  if (squares == 0) return true;
  return 1 - 2 * product / squares < 1e-3;
}

bool signal_to_noise(Values expected, Values got) {
  double signal = 0, noise = 0;
  each_pair(expected, got,
            [&](double e, double g) { signal += e * e, noise += (g - e) * (g - e); });
  if (noise == 0) return true;
  return 10 * std::log10(signal / noise) >= 27;
}

bool most_match(Values expected, Values got) {
  return static_cast<double>(matches(expected, got, 1.6e-2, 1e-5)) >=
         0.95 * static_cast<double>(expected.size());
}

}  // namespace

bool equal(Values expected, Values got) {
  return std::equal(expected.begin(), expected.end(), got.begin(), got.end(), same);
}

const std::vector<CommonCheck>& common_checks() {
  static const std::vector<CommonCheck> all = {
      {"allclose 1.6e-2, 1e-5",
       "every element within 1e-5 + 1.6e-2 |expected|, the default of a framework for bf16",
       tight_pair},
      {"allclose 5e-2, 5e-2", "every element within 5e-2 + 5e-2 |expected|", loose_pair},
      {"allclose 0.125, 0.0675",
       "every element within 0.0675 + 0.125 |expected|, in use for 8-bit formats", fp8_pair},
      {"95 % matched", "95 % of the elements within 1e-5 + 1.6e-2 |expected|", most_match},
      {"cosine 1e-3", "1 - 2 <x, y> / (<x, x> + <y, y>) below 1e-3 over the tensor", cosine},
      {"SQNR 27 dB", "10 log10(sum of squares / sum of squared errors) of at least 27",
       signal_to_noise}};
  return all;
}

}  // namespace dropless::museum
