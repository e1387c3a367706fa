// SPDX-License-Identifier: Apache-2.0
// Values that are only known to within an error, and how they travel through sums of products:
// "Layer" in derivations.md.
//
//     Approximate y = ...;                 |any legal computation - y.value[i]| <= y.error[i]
//     store(DROPLESS_BF16, y);             the same after it was kept in bf16, or more precisely
//     multiply_add(profile, operands, view(x), view(w).transposed(), ...)
#pragma once

#include <dropless/contract.h>

#include <span>
#include <vector>

#include "tolerances/bounds.h"

namespace dropless::tolerances {

using Doubles = std::vector<double>;
using Input = std::span<const double>;

struct Approximate {
  Doubles value, error;  // same size

  Approximate() = default;
  explicit Approximate(std::size_t size) : value(size, 0.0), error(size, 0.0) {}
  // Known exactly: what the caller handed in.
  explicit Approximate(Input exact) : value(exact.begin(), exact.end()), error(exact.size(), 0.0) {}
  [[nodiscard]] std::size_t size() const { return value.size(); }
};

// A number with its error, for single elements.
struct Near {
  double value = 0, error = 0;
};
inline Near at(const Approximate& x, std::size_t i) {
  return {x.value[i], x.error[i]};
}
inline void set(Approximate& x, std::size_t i, Near near) {
  x.value[i] = near.value;
  x.error[i] = near.error;
}
// Exact sum and product of approximate numbers; rounding is the caller's.
Near operator+(Near a, Near b);
Near operator*(Near a, Near b);

// An error that became NaN (infinity times zero) means that nothing is known: +inf, not judged.
void settle(Approximate& x);

// Kept in `dtype`, or in anything more precise where the clause leaves that open (GENERAL-1). The
// value becomes the rounded one, as the reference keeps it; fp32 keeps the value and adds half an
// ulp.
enum class Kept { in_format, at_least };
void store(dropless_dtype dtype, Approximate& x, Kept kept = Kept::at_least);
// May have been kept in `dtype` on the way, unlike in the reference: the value stays.
void maybe_store(dropless_dtype dtype, Approximate& x);

// Rows and columns of a matrix inside an Approximate.
struct View {
  const double* value;
  const double* error;
  Index row_stride, column_stride;
  [[nodiscard]] View transposed() const { return {value, error, column_stride, row_stride}; }
};
View view(const Approximate& x, Index columns, Index first_row = 0);

// out[first_row + i, j] = sum_k a[i,k] b[k,j] (+ bias[j]), accumulated as the profile declares for
// these operands, plus one rounding of grace; out has `columns` columns.
struct ProductShape {
  Index rows, inner, columns;
};
void multiply(const dropless_profile& profile, Operands operands, const ProductShape& shape,
              const View& a, const View& b, Input bias, Approximate& out, Index first_row);

// sum_i a_i b_i over contiguous elements in fp32, any order.
Near dot(std::size_t count, const View& a, const View& b);
// Column sums of `rows` rows of x, in fp32, into out.
void add_rows(Index rows, Index columns, const View& x, Approximate& out, Index first_out);

}  // namespace dropless::tolerances
