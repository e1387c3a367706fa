// SPDX-License-Identifier: Apache-2.0
// The rounded interval, and the rounding it rests on.
#include "tolerances/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "tolerances/float_format.h"
#include "tolerances/power_of_two.h"

namespace dropless::tolerances {

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

double round_to(dropless_dtype dtype, double y) {
  const FloatFormat& format = float_format(dtype);
  if (std::isnan(y) || y == 0) return y;
  const double beyond = format.saturates ? format.largest : infinity;
  if (std::abs(y) >= 2 * format.largest) return std::copysign(beyond, y);
  // Spacing of the format around y: constant below the smallest normal number.
  const int spacing = std::max(exponent_of(y), format.min_exponent) - (format.precision - 1);
  // Beside 1.5 * 2^52 spacings a double has room for whole spacings only: the sum is rounded to
  // nearest even, and the difference is exact.
  const double large = 1.5 * power_of_two(52 + spacing);
  const double rounded = std::copysign((y + large) - large, y);
  return std::abs(rounded) > format.largest ? std::copysign(beyond, y) : rounded;
}

Interval rounded_interval(dropless_dtype dtype, double y, double error) {
  if (std::isnan(error) || error < 0) {
    throw std::logic_error("rounded_interval: an error bound is NaN or negative");
  }
  if (std::isnan(y)) return {y, y};
  if (error == infinity) return {-infinity, infinity};
  if (error == 0) {
    const double only = round_to(dtype, y);
    return {only, only};
  }
  return {round_to(dtype, std::nextafter(y - error, -infinity)),
          round_to(dtype, std::nextafter(y + error, infinity))};
}

bool contains(const Interval& interval, double got) {
  if (std::isnan(interval.low)) return std::isnan(got);
  return interval.low <= got && got <= interval.high;
}

double excess(const Interval& interval, double got, double error) {
  if (contains(interval, got)) return 0;
  if (std::isnan(got) || std::isnan(interval.low) || error == 0) return infinity;
  return (got < interval.low ? interval.low - got : got - interval.high) / error;
}

}  // namespace dropless::tolerances
