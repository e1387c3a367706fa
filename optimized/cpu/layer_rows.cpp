// SPDX-License-Identifier: Apache-2.0
// Row by row arithmetic of the layer.
#include "optimized/cpu/layer_rows.h"

#include "optimized/cpu/scales.h"
#include "optimized/cpu/values.h"

namespace dropless::cpu {
namespace {

constexpr Index piece = 256;

// body(row, column, n) for every piece of every row, inside with_simd.
template <class Body>
void for_pieces(int threads, Index rows, Index width, const Body& body) {
  parallel_ranges(threads, rows, rows_per_task(width * 8), [&](Index begin, Index end) {
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      for (Index row = begin; row < end; ++row) {
        for (Index column = 0; column < width; column += piece) {
          body(row, column, std::min(piece, width - column));
        }
      }
    });
  });
}

}  // namespace

void scale_rows(int threads, const Tensor& x, const float* scale, const Tensor& out) {
  for_pieces(threads, x.shape[0], x.shape[1],
             [&](Index row, Index column, Index n) DROPLESS_INLINE_LAMBDA {
               float values[piece];
               load_run(x.at(row, column), x.dtype, x.inner_stride(), n, values);
               const float factor = scale[row];
               for (Index i = 0; i < n; ++i) values[i] *= factor;
               store_run(values, n, out.at(row, column), out.dtype, out.inner_stride());
             });
}

void add_parts(int threads, const std::vector<Part>& parts, const Tensor& out) {
  for_pieces(threads, out.shape[0], out.shape[1],
             [&](Index row, Index column, Index n) DROPLESS_INLINE_LAMBDA {
               double sums[piece] = {};
               float values[piece];
               for (const Part& part : parts) {
                 const Tensor& x = part.x;
                 load_run(x.at(part.one_row ? 0 : row, column), x.dtype, x.inner_stride(), n,
                          values);
                 if (part.scale != nullptr) {
                   const double factor = static_cast<double>(part.scale[row]);
                   for (Index i = 0; i < n; ++i) sums[i] += factor * static_cast<double>(values[i]);
                 } else {
                   for (Index i = 0; i < n; ++i) sums[i] += static_cast<double>(values[i]);
                 }
               }
               for (Index i = 0; i < n; ++i) values[i] = static_cast<float>(sums[i]);
               store_run(values, n, out.at(row, column), out.dtype, out.inner_stride());
             });
}

std::vector<double> dot_rows(int threads, const Tensor& a, const Tensor& b, bool one_row) {
  std::vector<double> dots(static_cast<std::size_t>(a.shape[0]), 0.0);
  for_pieces(threads, a.shape[0], a.shape[1],
             [&](Index row, Index column, Index n) DROPLESS_INLINE_LAMBDA {
               float x[piece], y[piece];
               load_run(a.at(row, column), a.dtype, a.inner_stride(), n, x);
               load_run(b.at(one_row ? 0 : row, column), b.dtype, b.inner_stride(), n, y);
               double sum = dots[static_cast<std::size_t>(row)];
               for (Index i = 0; i < n; ++i)
                 sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
               dots[static_cast<std::size_t>(row)] = sum;
             });
  return dots;
}

void sum_scaled_rows(int threads, const Tensor& x, const float* scale, const Tensor& out) {
  const Index width = x.shape[1];
  parallel_for(threads, ceil_div(width, piece), [&](Index task) {
    const Index column = task * piece, n = std::min(piece, width - column);
    with_simd([&]() DROPLESS_INLINE_LAMBDA {
      double sums[piece] = {};
      float values[piece];
      for (Index row = 0; row < x.shape[0]; ++row) {
        load_run(x.at(row, column), x.dtype, x.inner_stride(), n, values);
        const double factor = static_cast<double>(scale[row]);
        for (Index i = 0; i < n; ++i) sums[i] += factor * static_cast<double>(values[i]);
      }
      for (Index i = 0; i < n; ++i) values[i] = static_cast<float>(sums[i]);
      store_run(values, n, out.at(0, column), out.dtype, out.inner_stride());
    });
  });
}

}  // namespace dropless::cpu
