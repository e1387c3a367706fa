// SPDX-License-Identifier: Apache-2.0
// fprop, dgrad and wgrad over ragged groups of rows: GROUPED_GEMM-0 to 6.
#include "reference/grouped_gemm.h"

#include <cmath>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

Gauged zeros(Index size) {
  return {Doubles(at(size), 0.0), Doubles(at(size), 0.0)};
}

// Zones of the experts, after the shapes have been checked (GENERAL-3).
std::vector<Zone> expert_zones(const GemmShape& shape, const Groups& groups) {
  if (shape.num_experts < 0 || shape.out < 0 || shape.in < 0 || shape.rows < 0) {
    throw Refused("negative size in a GEMM shape");
  }
  std::vector<Zone> result = zones(shape.rows, groups);
  check_size(result.size(), shape.num_experts, "groups");
  return result;
}

// alpha * sum, |alpha| * gauge, for every element of a finished row or matrix.
void scale(Gauged& y, Index begin, Index end, double alpha) {
  for (Index i = begin; i < end; ++i) {
    y.value[at(i)] *= alpha;
    y.gauge[at(i)] *= std::abs(alpha);
  }
}

// to[i] += factor * from[i] for i in 0 .. count.
void add_scaled(Gauged& to, Index to_begin, double factor, Input from, Index from_begin,
                Index count) {
  double* const value = to.value.data() + to_begin;
  double* const gauge = to.gauge.data() + to_begin;
  const double* const source = from.data() + from_begin;
  for (Index i = 0; i < count; ++i) {
    const double term = factor * source[i];
    value[i] += term;
    gauge[i] += std::abs(term);
  }
}

}  // namespace

Gauged gemm_fprop(const GemmShape& shape, const Groups& groups, double alpha, Input x, Input w,
                  Input bias) {
  const auto& [num_experts, out, in, rows] = shape;
  const std::vector<Zone> experts = expert_zones(shape, groups);
  check_size(x.size(), rows * in, "x");
  check_size(w.size(), num_experts * out * in, "w");
  if (!bias.empty()) check_size(bias.size(), num_experts * out, "bias");
  Gauged y = zeros(rows * out);
  for (Index e = 0; e < num_experts; ++e) {
    for (Index row = experts[at(e)].first; row < experts[at(e)].real_end; ++row) {
      const double* const x_row = x.data() + row * in;
      for (Index o = 0; o < out; ++o) {
        const double* const w_row = w.data() + (e * out + o) * in;
        double sum = 0;
        double gauge = 0;
        for (Index i = 0; i < in; ++i) {
          const double term = x_row[i] * w_row[i];
          sum += term;
          gauge += std::abs(term);
        }
        const double b = bias.empty() ? 0.0 : bias[at(e * out + o)];
        y.value[at(row * out + o)] = alpha * sum + b;
        y.gauge[at(row * out + o)] = std::abs(alpha) * gauge + std::abs(b);
      }
    }
  }
  return y;
}

Gauged gemm_dgrad(const GemmShape& shape, const Groups& groups, double alpha, Input dy, Input w) {
  const auto& [num_experts, out, in, rows] = shape;
  const std::vector<Zone> experts = expert_zones(shape, groups);
  check_size(dy.size(), rows * out, "dy");
  check_size(w.size(), num_experts * out * in, "w");
  Gauged dx = zeros(rows * in);
  for (Index e = 0; e < num_experts; ++e) {
    for (Index row = experts[at(e)].first; row < experts[at(e)].real_end; ++row) {
      for (Index o = 0; o < out; ++o) {
        add_scaled(dx, row * in, dy[at(row * out + o)], w, (e * out + o) * in, in);
      }
      scale(dx, row * in, (row + 1) * in, alpha);
    }
  }
  return dx;
}

Gauged gemm_wgrad(const GemmShape& shape, const Groups& groups, double alpha, Input dy, Input x,
                  double beta, Input c) {
  const auto& [num_experts, out, in, rows] = shape;
  const std::vector<Zone> experts = expert_zones(shape, groups);
  check_size(dy.size(), rows * out, "dy");
  check_size(x.size(), rows * in, "x");
  if (beta != 0) check_size(c.size(), num_experts * out * in, "c");
  Gauged dw = zeros(num_experts * out * in);
  for (Index e = 0; e < num_experts; ++e) {
    const Zone& zone = experts[at(e)];
    const Index begin = e * out * in;
    for (Index row = zone.first; row < zone.real_end; ++row) {
      for (Index o = 0; o < out; ++o) {
        add_scaled(dw, begin + o * in, dy[at(row * out + o)], x, row * in, in);
      }
    }
    scale(dw, begin, begin + out * in, alpha);
    if (beta == 0) continue;  // C is not read, NaN in it has no influence (GROUPED_GEMM-6)
    const bool empty = zone.real_end == zone.first;
    for (Index i = begin; i < begin + out * in; ++i) {
      const double term = beta * c[at(i)];
      // An empty expert keeps beta * C bit by bit, the sign of a zero included (GROUPED_GEMM-5).
      dw.value[at(i)] = empty ? term : dw.value[at(i)] + term;
      dw.gauge[at(i)] += std::abs(term);
    }
  }
  return dw;
}

std::vector<RowKind> row_kinds(Index rows, const Groups& groups) {
  std::vector<RowKind> kinds(at(rows), RowKind::tail);
  for (const Zone& zone : zones(rows, groups)) {
    for (Index row = zone.first; row < zone.end; ++row) {
      kinds[at(row)] = row < zone.real_end ? RowKind::real : RowKind::padding;
    }
  }
  return kinds;
}

}  // namespace dropless::reference
