// SPDX-License-Identifier: Apache-2.0
// Models of accumulators, legal and broken.
#include "tests/accumulators/accumulators.h"

#include <dropless/formats.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace dropless::accumulators {

namespace {

float product(double a, double b) {
  return static_cast<float>(a) * static_cast<float>(b);
}

float tree(std::span<const float> terms) {
  if (terms.empty()) return 0;
  if (terms.size() == 1) return terms[0];
  const std::size_t half = terms.size() / 2;
  return tree(terms.first(half)) + tree(terms.subspan(half));
}

// floor(log2 |x|) of a normal double; operands of at most 24 bits have no others but 0.
int exponent(double x) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 52 & 0x7FF) - 1023;
}

bool all_finite(Values values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

float to_bf16(float x) {
  return Bf16::from_float(x).to_float();
}

}  // namespace

float sequential(Values a, Values b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += product(a[i], b[i]);
  return sum;
}

float reversed(Values a, Values b) {
  float sum = 0;
  for (std::size_t i = a.size(); i-- > 0;) sum += product(a[i], b[i]);
  return sum;
}

float pairwise(Values a, Values b) {
  std::vector<float> terms;
  for (std::size_t i = 0; i < a.size(); ++i) terms.push_back(product(a[i], b[i]));
  return tree(terms);
}

float fused(Values a, Values b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum = std::fma(static_cast<float>(a[i]), static_cast<float>(b[i]), sum);
  }
  return sum;
}

double step(const Unit& unit, double accumulator, Values a, Values b) {
  constexpr int none = -100000;
  int largest = accumulator == 0 ? none : exponent(accumulator);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != 0 && b[i] != 0) largest = std::max(largest, exponent(a[i]) + exponent(b[i]));
  }
  if (largest == none) return 0;
  largest = std::max(largest, -133);  // the aligner's smallest exponent
  const int shift = unit.aligned_bits - largest;
  const double scale = std::ldexp(1.0, shift);  // the conversion below truncates
  std::int64_t sum = static_cast<std::int64_t>(accumulator * scale);
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<std::int64_t>(a[i] * b[i] * scale);
  }
  if (sum == 0) return 0;
  const double exact = std::ldexp(static_cast<double>(sum), -shift);
  const int spacing = std::max(exponent(exact), -126) - unit.result_bits;
  return std::ldexp(std::trunc(std::ldexp(exact, -spacing)), spacing);
}

float tensor_core(const Unit& unit, Values a, Values b, int period) {
  if (!all_finite(a) || !all_finite(b)) return sequential(a, b);
  double accumulator = 0;
  float promoted = 0;
  int since = 0;
  for (std::size_t i = 0; i < a.size(); i += static_cast<std::size_t>(unit.length)) {
    const std::size_t n = std::min(a.size() - i, static_cast<std::size_t>(unit.length));
    accumulator = step(unit, accumulator, a.subspan(i, n), b.subspan(i, n));
    since += unit.length;
    if (period > 0 && since >= period) {
      promoted += static_cast<float>(accumulator);
      accumulator = 0;
      since = 0;
    }
  }
  return period > 0 ? promoted + static_cast<float>(accumulator) : static_cast<float>(accumulator);
}

float tensor_core_of_products(const Unit& unit, Values a, Values b) {
  std::vector<double> products;
  for (std::size_t i = 0; i < a.size(); ++i) products.push_back(product(a[i], b[i]));
  return tensor_core(unit, products, std::vector<double>(a.size(), 1.0));
}

float split(int parts, const Dot& inner, bool bf16_partials, Values a, Values b) {
  float sum = 0;
  const auto count = static_cast<std::size_t>(parts);
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t begin = a.size() * p / count, end = a.size() * (p + 1) / count;
    const float part = inner(a.subspan(begin, end - begin), b.subspan(begin, end - begin));
    sum += bf16_partials ? to_bf16(part) : part;
  }
  return sum;
}

float all_bf16(Values a, Values b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum = to_bf16(sum + product(a[i], b[i]));
  return sum;
}

}  // namespace dropless::accumulators
