// SPDX-License-Identifier: Apache-2.0
// Rows back to their tokens, and the gradients of both directions. PERMUTATION-6 and 7. Sums run in
// slot order, in fp32, with one rounding to the output type.
#include "optimized/cpu/operations.h"
#include "optimized/cpu/row_map.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index piece = 512;  // columns whose sums stay in registers and the nearest cache

DROPLESS_INLINE void add_run(const std::byte* row, dropless_dtype dtype, Index stride, Index n,
                             const float* weight, float* sums) {
  float values[piece];
  load_run(row, dtype, stride, n, values);
  if (weight != nullptr) {
    for (Index i = 0; i < n; ++i) sums[i] += *weight * values[i];
  } else {
    for (Index i = 0; i < n; ++i) sums[i] += values[i];
  }
}

// y[t] = sum over slots of (weight *) rows[map(t, slot)].
void sum_slots(int threads, const RowMap& map, const Tensor& rows, const Tensor& weights,
               const Tensor& y) {
  const Index hidden = y.shape[1];
  const Index grain = rows_per_task(hidden * rows.element * (map.top_k() + 1));
  parallel_ranges(threads, map.tokens(), grain, [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float sums[piece];
      for (Index t = begin; t < end; ++t) {
        for (Index column = 0; column < hidden; column += piece) {
          const Index n = std::min(piece, hidden - column);
          for (Index i = 0; i < n; ++i) sums[i] = 0;
          for (Index j = 0; j < map.top_k(); ++j) {
            const Index row = map(t, j);
            if (row < 0) continue;
            add_run(rows.at(row, column), rows.dtype, rows.inner_stride(), n,
                    weights ? &weights.as<float>(t, j) : nullptr, sums);
          }
          store_run(sums, n, y.at(t, column), y.dtype, y.inner_stride());
        }
      }
    });
  });
}

// Partial sums of a dot product, one per lane, added up in a fixed order.
constexpr Index lanes = 16;
DROPLESS_INLINE void dot_run(const float* a, const float* b, Index n, float* partial) {
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (Index l = 0; l < lanes; ++l) partial[l] += a[i + l] * b[i + l];
  }
  for (Index l = 0; i < n; ++i, ++l) partial[l] += a[i] * b[i];
}
DROPLESS_INLINE float add_lanes(const float* partial) {
  float sum = 0;
  for (Index l = 0; l < lanes; ++l) sum += partial[l];
  return sum;
}

}  // namespace

void unpermute_forward(Call& call, const dropless_unpermute_args& args) {
  const Tensor rows = tensor(args.rows, "rows", floats, {any, any});
  const Tensor y = tensor(args.y, "y", floats, {any, rows.shape[1]});
  const RowMap map(args.row_map, y.shape[0], any, rows.shape[0]);
  const Tensor weights =
      optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {map.tokens(), map.top_k()});
  sum_slots(call.threads(), map, rows, weights, y);
  call.ran_simd();
}

void permute_backward(Call& call, const dropless_permute_backward_args& args) {
  const Tensor d_rows = tensor(args.d_rows, "d_rows", floats, {any, any});
  const Tensor d_x = tensor(args.d_x, "d_x", floats, {any, d_rows.shape[1]});
  const RowMap map(args.row_map, d_x.shape[0], any, d_rows.shape[0]);
  const Tensor d_row_weights =
      optional_tensor(args.d_row_weights, "d_row_weights", {DROPLESS_FP32}, {d_rows.shape[0]});
  const Tensor d_weights =
      optional_tensor(args.d_weights, "d_weights", {DROPLESS_FP32}, {map.tokens(), map.top_k()});
  refuse_if(d_weights.given && !d_row_weights.given, "d_weights: without d_row_weights");

  sum_slots(call.threads(), map, d_rows, {}, d_x);
  for (Index t = 0; d_weights && t < map.tokens(); ++t) {
    for (Index j = 0; j < map.top_k(); ++j) {
      const Index row = map(t, j);
      d_weights.as<std::uint32_t>(t, j) = row < 0 ? 0 : d_row_weights.as<std::uint32_t>(row);
    }
  }
  call.ran_simd();
}

void unpermute_backward(Call& call, const dropless_unpermute_backward_args& args) {
  const Tensor d_y = tensor(args.d_y, "d_y", floats, {any, any});
  const Index hidden = d_y.shape[1];
  const Tensor d_rows = tensor(args.d_rows, "d_rows", floats, {any, hidden});
  const RowMap map(args.row_map, d_y.shape[0], any, d_rows.shape[0]);
  const Padding padding(args.offsets, args.source, d_rows.shape[0], map.tokens() * map.top_k());
  const Tensor weights =
      optional_tensor(args.weights, "weights", {DROPLESS_FP32}, {map.tokens(), map.top_k()});
  const bool weighted = weights.given;
  const Tensor rows =
      weighted ? tensor(args.rows, "rows", floats, {d_rows.shape[0], hidden}) : Tensor{};
  const Tensor d_weights = weighted ? optional_tensor(args.d_weights, "d_weights", {DROPLESS_FP32},
                                                      {map.tokens(), map.top_k()})
                                    : Tensor{};

  const Index grain = rows_per_task(hidden * d_rows.element * 2 * (map.top_k() + 1));
  parallel_ranges(call.threads(), map.tokens(), grain, [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      float gradient[piece], values[piece];
      for (Index t = begin; t < end; ++t) {
        for (Index j = 0; j < map.top_k(); ++j) {
          const Index row = map(t, j);
          if (row < 0) {
            if (d_weights) d_weights.as<float>(t, j) = 0;
            continue;
          }
          float partial[lanes] = {};
          for (Index column = 0; column < hidden; column += piece) {
            const Index n = std::min(piece, hidden - column);
            load_run(d_y.at(t, column), d_y.dtype, d_y.inner_stride(), n, gradient);
            if (d_weights) {
              load_run(rows.at(row, column), rows.dtype, rows.inner_stride(), n, values);
              dot_run(gradient, values, n, partial);
            }
            if (weighted) {
              const float weight = weights.as<float>(t, j);
              for (Index i = 0; i < n; ++i) gradient[i] *= weight;
            }
            store_run(gradient, n, d_rows.at(row, column), d_rows.dtype, d_rows.inner_stride());
          }
          if (d_weights) d_weights.as<float>(t, j) = add_lanes(partial);
        }
      }
    });
  });
  for (const Index row : padding.rows()) zero_row(d_rows, row);
  call.ran_simd();
}

}  // namespace dropless::cpu
