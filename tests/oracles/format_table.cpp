// SPDX-License-Identifier: Apache-2.0
// The table-built format oracle.
#include "tests/oracles/format_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dropless::oracles {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64 &&
              std::numeric_limits<long double>::max_exponent >= 16384);

std::uint32_t power_of_two(int exponent) {
  std::uint32_t result = 1;
  for (int i = 0; i < exponent; ++i) result *= 2;
  return result;
}

}  // namespace

const FormatDefinition& bf16_definition() {
  static const FormatDefinition definition{"bf16", 8, 7, 127, Specials::ieee};
  return definition;
}
const FormatDefinition& fp16_definition() {
  static const FormatDefinition definition{"fp16", 5, 10, 15, Specials::ieee};
  return definition;
}
const FormatDefinition& e4m3_definition() {
  static const FormatDefinition definition{"e4m3", 4, 3, 7, Specials::only_nan};
  return definition;
}
const FormatDefinition& e5m2_definition() {
  static const FormatDefinition definition{"e5m2", 5, 2, 15, Specials::ieee};
  return definition;
}
const FormatDefinition& e8m0_definition() {
  static const FormatDefinition definition{"e8m0", 8, 0, 127, Specials::scale_format};
  return definition;
}

FormatTable::FormatTable(FormatDefinition definition) : definition_(std::move(definition)) {
  const std::uint32_t magnitudes =
      power_of_two(definition_.exponent_bits + definition_.mantissa_bits);
  for (std::uint32_t code = 0; code < magnitudes; ++code) {
    if (std::isfinite(value(code))) entries_.push_back({value(code), code});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.value < b.value; });
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    if (!(entries_[i - 1].value < entries_[i].value)) throw std::logic_error("two equal values");
  }
}

std::uint32_t FormatTable::code_count() const {
  const int sign_bits = definition_.specials == Specials::scale_format ? 0 : 1;
  return power_of_two(definition_.exponent_bits + definition_.mantissa_bits + sign_bits);
}

long double FormatTable::value(std::uint32_t code) const {
  const int bias = definition_.bias;
  const std::uint32_t mantissas = power_of_two(definition_.mantissa_bits);
  const std::uint32_t exponents = power_of_two(definition_.exponent_bits);
  const std::uint32_t mantissa = code % mantissas;
  const std::uint32_t exponent = code / mantissas % exponents;
  const bool negative = code / mantissas / exponents != 0;
  const long double nan = std::numeric_limits<long double>::quiet_NaN();
  long double magnitude = 0;
  if (definition_.specials == Specials::scale_format) {
    return code == exponents - 1 ? nan : std::ldexp(1.0L, static_cast<int>(code) - bias);
  }
  if (definition_.specials == Specials::only_nan && exponent == exponents - 1 &&
      mantissa == mantissas - 1) {
    return nan;
  }
  if (definition_.specials == Specials::ieee && exponent == exponents - 1) {
    if (mantissa != 0) return nan;
    magnitude = std::numeric_limits<long double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<long double>(mantissa) / mantissas, 1 - bias);
  } else {
    magnitude = std::ldexp(1 + static_cast<long double>(mantissa) / mantissas,
                           static_cast<int>(exponent) - bias);
  }
  return negative ? -magnitude : magnitude;
}

long double FormatTable::overflow_threshold() const {
  const long double largest = entries_.back().value;
  if (definition_.specials == Specials::scale_format) return largest * 1.5L;
  const long double spacing = largest - entries_[entries_.size() - 2].value;
  return largest + spacing / 2;
}

// To the even code; a block scale has no mantissa that could be even, and takes the larger one.
bool FormatTable::ties_go_up(const Entry& lower) const {
  return definition_.specials == Specials::scale_format || lower.code % 2 != 0;
}

bool FormatTable::rounds_beyond_the_largest(long double magnitude) const {
  const long double threshold = overflow_threshold();
  if (magnitude == threshold) return ties_go_up(entries_.back());
  return magnitude > threshold;
}

FormatTable::Encoded FormatTable::encode(long double x, bool saturate) const {
  if (std::isnan(x)) return {0, true};
  const bool has_sign = definition_.specials != Specials::scale_format;
  if (!has_sign && (x < 0 || (x == 0 && !saturate))) return {0, true};
  const std::uint32_t sign = has_sign && std::signbit(x) ? code_count() / 2 : 0;
  const long double magnitude = std::fabs(x);
  if (rounds_beyond_the_largest(magnitude)) {
    if (saturate) return {sign + entries_.back().code, false};
    if (definition_.specials != Specials::ieee) return {0, true};
    return {sign + entries_.back().code + 1, false};
  }
  const auto above = std::upper_bound(entries_.begin(), entries_.end(), magnitude,
                                      [](long double m, const Entry& e) { return m < e.value; });
  if (above == entries_.begin()) return {sign + above->code, false};  // e8m0 has no zero
  const Entry& low = *(above - 1);
  if (above == entries_.end()) return {sign + low.code, false};
  const long double midpoint = (low.value + above->value) / 2;
  const bool up = magnitude > midpoint || (magnitude == midpoint && ties_go_up(low));
  return {sign + (up ? above->code : low.code), false};
}

const FormatTable& bf16_table() {
  static const FormatTable table(bf16_definition());
  return table;
}
const FormatTable& fp16_table() {
  static const FormatTable table(fp16_definition());
  return table;
}
const FormatTable& e4m3_table() {
  static const FormatTable table(e4m3_definition());
  return table;
}
const FormatTable& e5m2_table() {
  static const FormatTable table(e5m2_definition());
  return table;
}
const FormatTable& e8m0_table() {
  static const FormatTable table(e8m0_definition());
  return table;
}

}  // namespace dropless::oracles
