// SPDX-License-Identifier: Apache-2.0
// Bounds of sums: "Accumulation" and "Statistical accumulation" in derivations.md.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tolerances/bounds.h"
#include "tolerances/constants.h"

namespace dropless::tolerances {

namespace {

using namespace constants;

int declared_accumulator(const dropless_profile& profile, Operands operands) {
  switch (operands) {
    case Operands::fp32:
      return profile.accumulator_fp32;
    case Operands::bf16:
      return profile.accumulator_bf16;
    case Operands::mxfp8:
      return profile.accumulator_mxfp8;
  }
  throw std::logic_error("gemm: unknown operands");
}

void check_length(Index length, Index extra) {
  if (length < 0 || extra < 0) throw std::logic_error("a sum of negative length");
}

// Products between two promotions, and the number of such stretches.
struct Stretches {
  double products, count;
};

Stretches stretches(const dropless_profile& profile, Index length) {
  const Index period = profile.promotion_period;
  const Index products = period > 0 ? std::min(length, period) : length;
  if (products == 0) return {0, 0};
  return {static_cast<double>(products), static_cast<double>((length + products - 1) / products)};
}

bool is_power_of_two(double x) {
  int exponent = 0;
  return x != 0 && std::isfinite(x) && std::abs(std::frexp(x, &exponent)) == 0.5;
}

}  // namespace

Index epilogue_roundings(double alpha, bool has_bias, double beta) {
  const Index of_alpha = is_power_of_two(alpha) ? 0 : 2;  // alpha in fp32, and the product
  const Index of_c = beta == 0 ? 0 : is_power_of_two(beta) ? 1 : 3;
  return of_alpha + (has_bias ? 1 : 0) + of_c;
}

double gemm(const dropless_profile& profile, Operands operands, Index length, double gauge,
            Index extra) {
  check_length(length, extra);
  if (std::isnan(gauge) || gauge == 0) return 0;
  const auto n = static_cast<double>(length);
  const auto more = static_cast<double>(extra);
  // A product of two fp32 values is rounded itself; those of the smaller formats are exact.
  const double rounded_products = operands == Operands::fp32 ? 1 : 0;
  double factor = 0, underflow = (n + more) * fp32_tiny;
  switch (declared_accumulator(profile, operands)) {
    case DROPLESS_ACCUMULATOR_FP32:
      factor = (n + rounded_products + more) * u;
      break;
    case DROPLESS_ACCUMULATOR_TENSOR_CORE_25:
      factor = (n + 1 + rounded_products + more) * u;
      break;
    case DROPLESS_ACCUMULATOR_HOPPER_FP8_13: {
      const Stretches s = stretches(profile, length);
      factor = (s.products + std::ceil(s.products / hopper_chunk)) * hopper_unit +
               (s.count + rounded_products + more) * u;
      underflow = n * hopper_tiny + more * fp32_tiny;
      break;
    }
    default:
      throw std::logic_error("gemm: the profile declares an unknown accumulator");
  }
  if (profile.partials == DROPLESS_PARTIALS_BF16) {
    // Every term passes through one partial sum that is stored in bf16.
    factor += bf16_roundoff * (1 + factor);
  }
  return factor * gauge + underflow;
}

double gemm_statistical(const dropless_profile& profile, Operands operands, Index length,
                        double root, double y) {
  check_length(length, 0);
  if (std::isnan(root) || std::isnan(y)) return 0;
  const auto growth = [](double n) { return std::max(n / truncating_growth, std::sqrt(n)); };
  const double size = std::max(root, std::abs(y));
  const auto n = static_cast<double>(length);
  double factor = growth(n) * u;
  if (declared_accumulator(profile, operands) == DROPLESS_ACCUMULATOR_HOPPER_FP8_13) {
    const Stretches s = stretches(profile, length);
    factor = growth(s.products) * hopper_unit + growth(s.count) * u;
  }
  if (profile.partials == DROPLESS_PARTIALS_BF16) factor += bf16_roundoff;
  return size == 0 ? 0 : statistical_lambda * factor * size + n * fp32_tiny;
}

double sum(Index terms, double gauge) {
  check_length(terms, 0);
  if (std::isnan(gauge) || gauge == 0) return 0;
  const auto n = static_cast<double>(terms);
  return (n + 1) * u * gauge + n * fp32_tiny;
}

double combine(const dropless_profile& profile, dropless_dtype payload, Index terms, double gauge) {
  const double last = sum(terms, gauge);
  if (profile.combine_rounding == DROPLESS_COMBINE_ROUNDS_ONCE || last == 0) return last;
  // The partial sums of the ranks (nodes) are stored once; together they are at most gauge + last.
  const FloatFormat& format = float_format(payload);
  const double smallest = std::ldexp(1.0, format.min_exponent - format.precision);
  return last + unit_roundoff(payload) * (gauge + last) + static_cast<double>(terms) * smallest;
}

}  // namespace dropless::tolerances
