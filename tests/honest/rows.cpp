// SPDX-License-Identifier: Apache-2.0
// Rows added up in fp32, in another order than that of the slots: PERMUTATION-6 and 7.
#include "tests/honest/arithmetic.h"

namespace dropless::honest {
namespace {

using faults::view;

// sum over slots of weight * rows[row_map[t,j]], for every column.
void add_up(const dropless_tensor* row_map, const dropless_tensor* rows,
            const dropless_tensor* weights, const dropless_tensor* result, Order order) {
  const TensorView map = view(row_map), from = view(rows), to = view(result);
  for (Index t = 0; t < to.shape(0); ++t) {
    for (Index c = 0; c < to.shape(1); ++c) {
      Floats terms;
      for (Index j = 0; j < map.shape(1); ++j) {
        const Index row = map.load_integer(t, j);
        if (row < 0) continue;
        const float w = weights == nullptr ? 1 : static_cast<float>(view(weights).load(t, j));
        terms.push_back(w * static_cast<float>(from.load(row, c)));
      }
      to.store(sum_of(terms, order), t, c);
    }
  }
}

void unpermute_back(const dropless_unpermute_backward_args& a, Order order) {
  if (a.weights == nullptr) return;
  const TensorView map = view(a.row_map), d_y = view(a.d_y), rows = view(a.rows);
  for (Index t = 0; t < map.shape(0); ++t) {
    for (Index j = 0; j < map.shape(1); ++j) {
      const Index row = map.load_integer(t, j);
      if (row < 0) continue;
      const auto w = static_cast<float>(view(a.weights).load(t, j));
      Floats terms;
      for (Index c = 0; c < d_y.shape(1); ++c) {
        const auto d = static_cast<float>(d_y.load(t, c));
        terms.push_back(d * static_cast<float>(rows.load(row, c)));
        view(a.d_rows).store(w * d, row, c);
      }
      view(a.d_weights).store(sum_of(terms, order), t, j);
    }
  }
}

}  // namespace

void add_rows_in_fp32(Planted& variant, Order order) {
  variant.after<&Table::unpermute_forward>(
      [order](auto& a) { add_up(a.row_map, a.rows, a.weights, a.y, order); });
  variant.after<&Table::permute_backward>(
      [order](auto& a) { add_up(a.row_map, a.d_rows, nullptr, a.d_x, order); });
  variant.after<&Table::unpermute_backward>([order](auto& a) { unpermute_back(a, order); });
}

}  // namespace dropless::honest
