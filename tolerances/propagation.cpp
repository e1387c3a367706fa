// SPDX-License-Identifier: Apache-2.0
// How approximate values travel through storage, products and sums.
#include "tolerances/propagation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tolerances/constants.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {

namespace {

double settled(double error) {
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// Exact sums of products with their gauges; the rounding of the accumulator comes on top.
struct Accumulator {
  double value = 0, error = 0, gauge = 0;
  void add(double a, double a_error, double b, double b_error) {
    value += a * b;
    error += std::abs(a) * b_error + std::abs(b) * a_error + a_error * b_error;
    gauge += (std::abs(a) + a_error) * (std::abs(b) + b_error);
  }
};

}  // namespace

Near operator+(Near a, Near b) {
  return {a.value + b.value, a.error + b.error};
}

Near operator*(Near a, Near b) {
  return {a.value * b.value,
          settled(std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error)};
}

void settle(Approximate& x) {
  for (double& error : x.error) error = settled(error);
}

void store(dropless_dtype dtype, Approximate& x, Kept kept) {
  if (dtype == DROPLESS_FP32) return maybe_store(dtype, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double low = x.value[i] - settled(x.error[i]), high = x.value[i] + settled(x.error[i]);
    const double value = round_to(dtype, x.value[i]);
    double error = std::max(round_to(dtype, high) - value, value - round_to(dtype, low));
    if (kept == Kept::at_least) error = std::max({error, high - value, value - low});
    set(x, i, {value, settled(error)});
  }
}

void maybe_store(dropless_dtype dtype, Approximate& x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double size = std::abs(x.value[i]) + x.error[i];
    if (size == 0) continue;
    x.error[i] = settled(x.error[i] + 0.5 * ulp(dtype, size));
  }
}

View view(const Approximate& x, Index columns, Index first_row) {
  return {x.value.data() + first_row * columns, x.error.data() + first_row * columns, columns, 1};
}

void multiply(const dropless_profile& profile, Operands operands, const ProductShape& shape,
              const View& a, const View& b, Input bias, Approximate& out, Index first_row) {
  const Index grace = bias.empty() ? 1 : 2;
  for (Index i = 0; i < shape.rows; ++i) {
    for (Index j = 0; j < shape.columns; ++j) {
      Accumulator sum;
      for (Index k = 0; k < shape.inner; ++k) {
        const Index at_a = i * a.row_stride + k * a.column_stride;
        const Index at_b = k * b.row_stride + j * b.column_stride;
        sum.add(a.value[at_a], a.error[at_a], b.value[at_b], b.error[at_b]);
      }
      if (!bias.empty()) sum.add(bias[static_cast<std::size_t>(j)], 0, 1, 0);
      const auto position = static_cast<std::size_t>((first_row + i) * shape.columns + j);
      out.value[position] = sum.value;
      out.error[position] =
          settled(sum.error + gemm(profile, operands, shape.inner, sum.gauge, grace));
    }
  }
}

Near dot(std::size_t count, const View& a, const View& b) {
  Accumulator total;
  for (Index i = 0; i < static_cast<Index>(count); ++i) {
    const Index at_a = i * a.column_stride, at_b = i * b.column_stride;
    total.add(a.value[at_a], a.error[at_a], b.value[at_b], b.error[at_b]);
  }
  return {total.value, settled(total.error + sum(static_cast<Index>(count) + 1, total.gauge))};
}

void add_rows(Index rows, Index columns, const View& x, Approximate& out, Index first_out) {
  for (Index j = 0; j < columns; ++j) {
    Accumulator total;
    for (Index i = 0; i < rows; ++i) {
      const Index at_x = i * x.row_stride + j * x.column_stride;
      total.add(x.value[at_x], x.error[at_x], 1, 0);
    }
    set(out, static_cast<std::size_t>(first_out + j),
        {total.value, settled(total.error + sum(rows, total.gauge))});
  }
}

}  // namespace dropless::tolerances
