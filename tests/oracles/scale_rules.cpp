// SPDX-License-Identifier: Apache-2.0
// Scale rules by bisection over a monotone question.
#include "tests/oracles/scale_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace dropless::oracles {
namespace {

// Smallest integer k with holds(k), for a question that stays true once it is.
template <typename Question>
int smallest(Question holds) {
  int low = -2000;
  int high = 2000;
  if (holds(low) || !holds(high)) throw std::logic_error("outside the range of the search");
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

// Largest k with 2^k <= x.
int floor_exponent(long double x) {
  return smallest([x](int k) { return std::ldexp(1.0L, k) > x; }) - 1;
}

// x to `mantissa_bits` bits after the leading one, ties to even.
long double round_mantissa(long double x, int mantissa_bits) {
  const long double grid = std::ldexp(1.0L, floor_exponent(x) - mantissa_bits);
  const long double units = std::floor(x / grid);
  const long double rest = x / grid - units;
  const bool odd = std::fmod(units, 2.0L) != 0;
  return (rest > 0.5L || (rest == 0.5L && odd) ? units + 1 : units) * grid;
}

}  // namespace

const FormatTable& element_table(dropless_dtype format) {
  if (format == DROPLESS_E4M3) return e4m3_table();
  if (format == DROPLESS_E5M2) return e5m2_table();
  throw std::invalid_argument("not an MXFP8 element format");
}

int scale_exponent(long double amax, dropless_dtype format, int scale_rule) {
  const FormatTable& table = element_table(format);
  const long double largest = table.entries().back().value;
  const int emax = floor_exponent(largest);
  switch (scale_rule) {
    case DROPLESS_SCALE_RCEIL:  // the smallest scale under which amax does not saturate
      return smallest([&](int k) { return amax <= std::ldexp(largest, k); });
    case DROPLESS_SCALE_CEIL:
      return smallest([&](int k) { return amax <= std::ldexp(1.0L, k + emax); });
    case DROPLESS_SCALE_FLOOR:
      return floor_exponent(amax) - emax;
    case DROPLESS_SCALE_EVEN:
      return floor_exponent(round_mantissa(amax, table.definition().mantissa_bits)) - emax;
    default:
      throw std::invalid_argument("unknown scale rule");
  }
}

std::uint8_t scale_byte(long double amax, dropless_dtype format, int scale_rule) {
  if (amax == 0) return 0;
  if (std::isinf(amax)) return 254;
  return static_cast<std::uint8_t>(
      std::clamp(scale_exponent(amax, format, scale_rule) + 127, 0, 254));
}

FormatTable::Encoded encode(long double x, std::uint8_t byte, dropless_dtype format) {
  return element_table(format).encode(x / e8m0_table().value(byte), true);
}

float decode(std::uint8_t code, std::uint8_t byte, dropless_dtype format) {
  return static_cast<float>(element_table(format).value(code) * e8m0_table().value(byte));
}

}  // namespace dropless::oracles
