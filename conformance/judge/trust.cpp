// SPDX-License-Identifier: Apache-2.0
// Measures of a case's inputs.
#include "conformance/judge/trust.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cmath>
#include <limits>
#include <vector>

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

// A hash table of bit patterns, half full at most: outputs have millions of elements, and a tree of
// them took longer than everything else about a case.
std::int64_t distinct(std::span<const double> values) {
  constexpr auto empty = std::bit_cast<std::uint64_t>(-0.0);  // every zero is counted as +0
  const int width = std::bit_width(2 * values.size() + 1);    // at least 1
  const std::size_t size = std::size_t{1} << width;
  std::vector<std::uint64_t> table(size, empty);
  std::int64_t count = 0;
  bool nan = false;
  for (const double value : values) {
    if (std::isnan(value)) {
      nan = true;
      continue;
    }
    const auto bits = std::bit_cast<std::uint64_t>(value + 0.0);       // -0 becomes +0
    std::size_t place = bits * 0x9e3779b97f4a7c15ULL >> (64 - width);  // the best mixed bits
    while (table[place] != empty && table[place] != bits) place = (place + 1) & (size - 1);
    if (table[place] == bits) continue;
    table[place] = bits;
    ++count;
  }
  return count + (nan ? 1 : 0);
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
