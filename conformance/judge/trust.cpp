// SPDX-License-Identifier: Apache-2.0
// Measures of a case's inputs.
#include "conformance/judge/trust.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <limits>
#include <set>

namespace dropless::conformance::trust {

double share_of_zeros(std::span<const double> values) {
  if (values.empty()) return 1;
  const auto zeros = std::ranges::count(values, 0.0);
  return static_cast<double>(zeros) / static_cast<double>(values.size());
}

std::int64_t distinct(std::span<const std::uint8_t> bytes) {
  std::bitset<256> seen;
  for (const std::uint8_t byte : bytes) seen.set(byte);
  return static_cast<std::int64_t>(seen.count());
}

std::int64_t distinct(std::span<const double> values) {
  std::set<double> seen;
  bool nan = false;
  for (const double value : values) {
    if (std::isnan(value)) {
      nan = true;
    } else {
      seen.insert(value);
    }
  }
  return static_cast<std::int64_t>(seen.size()) + (nan ? 1 : 0);
}

double spread_in_binades(std::span<const double> values) {
  double smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (const double value : values) {
    const double magnitude = std::abs(value);
    if (magnitude == 0 || !std::isfinite(magnitude)) continue;
    smallest = std::min(smallest, magnitude);
    largest = std::max(largest, magnitude);
  }
  return largest == 0 ? 0 : std::log2(largest) - std::log2(smallest);
}

double root_mean_square(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double share_of_different_neighbours(std::span<const std::uint8_t> bytes, std::int64_t stride) {
  const auto step = static_cast<std::size_t>(stride);
  if (stride <= 0 || bytes.size() <= step) return 0;
  std::size_t different = 0;
  for (std::size_t i = 0; i + step < bytes.size(); ++i) different += bytes[i] != bytes[i + step];
  return static_cast<double>(different) / static_cast<double>(bytes.size() - step);
}

}  // namespace dropless::conformance::trust
