// SPDX-License-Identifier: Apache-2.0
// MXFP8 of approximate values.
#include "tolerances/quantisation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tolerances/interval.h"

namespace dropless::tolerances {

namespace {

constexpr Index block = 32;

double requantised(dropless_dtype format, int exponent, double x) {
  return std::ldexp(round_to(format, std::ldexp(x, -exponent)), exponent);
}

}  // namespace

int scale_exponent(dropless_dtype format, int scale_rule, double amax) {
  if (!(amax > 0)) return -127;
  if (std::isinf(amax)) return 127;
  const FloatFormat& f = float_format(format);
  const int emax = std::ilogb(f.largest);
  const int e = std::ilogb(amax);
  const double s = std::ldexp(amax, -e);
  double threshold = std::numeric_limits<double>::infinity();
  bool reached_counts = false;
  switch (scale_rule) {
    case DROPLESS_SCALE_RCEIL:
      threshold = 1.75;
      break;
    case DROPLESS_SCALE_CEIL:
      threshold = 1;
      break;
    case DROPLESS_SCALE_EVEN:
      threshold = 2 - std::ldexp(1.0, -f.precision);
      reached_counts = true;
      break;
    default:
      break;
  }
  const bool up = reached_counts ? s >= threshold : s > threshold;
  return std::clamp(e - emax + (up ? 1 : 0), -127, 127);
}

void requantise_block(dropless_dtype format, int scale_rule, Approximate& x, Index first,
                      Index stride, Index count) {
  double amax = 0, least = 0, most = 0;
  for (Index i = 0; i < count; ++i) {
    const auto p = static_cast<std::size_t>(first + i * stride);
    amax = std::max(amax, std::abs(x.value[p]));
    least = std::max(least, std::abs(x.value[p]) - x.error[p]);
    most = std::max(most, std::abs(x.value[p]) + x.error[p]);
  }
  const int own = scale_exponent(format, scale_rule, amax);
  const int low = scale_exponent(format, scale_rule, least);
  const int high = scale_exponent(format, scale_rule, most);
  for (Index i = 0; i < count; ++i) {
    const auto p = static_cast<std::size_t>(first + i * stride);
    const Near v = at(x, p);
    const double value = requantised(format, own, v.value);
    double error = std::isfinite(v.error) ? 0 : v.error;
    for (int k = low; k <= high && std::isfinite(error); ++k) {
      error = std::max({error, requantised(format, k, v.value + v.error) - value,
                        value - requantised(format, k, v.value - v.error)});
    }
    set(x, p, {value, error});
  }
}

Approximate requantised_rows(dropless_dtype format, int scale_rule, Approximate x, Index columns) {
  const Index rows = columns == 0 ? 0 : static_cast<Index>(x.size()) / columns;
  for (Index row = 0; row < rows; ++row) {
    for (Index c = 0; c < columns; c += block) {
      requantise_block(format, scale_rule, x, row * columns + c, 1, std::min(block, columns - c));
    }
  }
  return x;
}

Approximate requantised_columns(dropless_dtype format, int scale_rule, Approximate x, Index columns,
                                std::span<const Index> offsets) {
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    for (Index row = offsets[g]; row < offsets[g + 1]; row += block) {
      for (Index c = 0; c < columns; ++c) {
        requantise_block(format, scale_rule, x, row * columns + c, columns,
                         std::min(block, offsets[g + 1] - row));
      }
    }
  }
  return x;
}

}  // namespace dropless::tolerances
