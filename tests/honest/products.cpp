// SPDX-License-Identifier: Apache-2.0
// The three products, written from GROUPED_GEMM-0 to 7: operands as matrices whose rows are the
// vectors of the contraction, then one dot product an element.
#include "tests/honest/products.h"

#include "reference/mxfp8.h"
#include "tests/faults/products.h"

namespace dropless::honest {
namespace {

using accumulators::Dot;
using accumulators::Values;
using faults::view;
using faults::Zone;
using Doubles = std::vector<double>;

bool has_codes(const dropless_operand& operand) {
  const dropless_dtype dtype = operand.values->dtype;
  return dtype == DROPLESS_E4M3 || dtype == DROPLESS_E5M2;
}

std::vector<std::uint8_t> bytes_of(const dropless_tensor* tensor) {
  std::vector<std::uint8_t> bytes;
  for (const Index value : faults::integers_of(tensor)) {
    bytes.push_back(static_cast<std::uint8_t>(value));
  }
  return bytes;
}

// The values that an operand stands for, as a matrix [rows, columns] with groups of rows.
Doubles matrix_of(const dropless_operand& operand, int direction, Index rows, Index columns,
                  const reference::Groups& groups) {
  if (!has_codes(operand)) return faults::values_of(operand.values);
  return reference::dequantize(direction, operand.scale_layout, operand.values->dtype, rows,
                               columns, bytes_of(operand.values), bytes_of(operand.scales), groups);
}

struct Groups {
  std::vector<Index> offsets, counts;
  [[nodiscard]] reference::Groups groups() const { return {offsets, counts}; }
};

template <class Args>
Doubles rows_of(const dropless_operand& operand, const Args& a, int direction) {
  const TensorView values = view(operand.values);
  const Groups zones{faults::integers_of(a.offsets), faults::integers_of(a.counts)};
  return matrix_of(operand, direction, values.shape(0), values.shape(1), zones.groups());
}

// W [E,O,I] as [E*O,I], one group per expert.
Doubles weights_of(const dropless_operand& operand, int direction) {
  const TensorView values = view(operand.values);
  const Index experts = values.shape(0), out = values.shape(1);
  const Groups zones{reference::weight_offsets(experts, out), {}};
  return matrix_of(operand, direction, experts * out, values.shape(2), zones.groups());
}

Doubles transposed(const Doubles& matrix, Index first, Index rows, Index columns) {
  Doubles result(static_cast<std::size_t>(rows * columns));
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] =
          matrix[static_cast<std::size_t>((first + r) * columns + c)];
    }
  }
  return result;
}

Values vector_at(const Doubles& matrix, Index row, Index length) {
  return Values(matrix).subspan(static_cast<std::size_t>(row * length),
                                static_cast<std::size_t>(length));
}

float scaled(double alpha, float sum) {
  return alpha == 1 ? sum : static_cast<float>(alpha) * sum;
}

// y = alpha x W_e^T + bias_e.
void compute(const dropless_gemm_fprop_args& a, const Dot& dot, const std::vector<Zone>& zones,
             const Doubles&) {
  const int direction = DROPLESS_BLOCKS_ROW_WISE;
  const Doubles x = rows_of(*a.x, a, direction), w = weights_of(*a.w, direction);
  const Index out = view(a.y).shape(1), in = view(a.w->values).shape(2);
  const Doubles bias = faults::values_of(a.bias);
  for (std::size_t e = 0; e < zones.size(); ++e) {
    const Index expert = static_cast<Index>(e);
    for (Index r = zones[e].first; r < zones[e].real_end; ++r) {
      for (Index o = 0; o < out; ++o) {
        const Index row = expert * out + o;
        float y = scaled(a.alpha, dot(vector_at(x, r, in), vector_at(w, row, in)));
        if (!bias.empty()) y += static_cast<float>(bias[static_cast<std::size_t>(row)]);
        view(a.y).store(y, r, o);
      }
    }
  }
}

// dx = alpha dy W_e.
void compute(const dropless_gemm_dgrad_args& a, const Dot& dot, const std::vector<Zone>& zones,
             const Doubles&) {
  const Doubles dy = rows_of(*a.dy, a, DROPLESS_BLOCKS_ROW_WISE);
  const Doubles w = weights_of(*a.w, DROPLESS_BLOCKS_COLUMN_WISE);
  const Index out = view(a.w->values).shape(1), in = view(a.w->values).shape(2);
  for (std::size_t e = 0; e < zones.size(); ++e) {
    const Doubles columns = transposed(w, static_cast<Index>(e) * out, out, in);
    for (Index r = zones[e].first; r < zones[e].real_end; ++r) {
      for (Index i = 0; i < in; ++i) {
        view(a.dx).store(scaled(a.alpha, dot(vector_at(dy, r, out), vector_at(columns, i, out))), r,
                         i);
      }
    }
  }
}

// dW_e = alpha dy_e^T x_e + beta C_e.
void compute(const dropless_gemm_wgrad_args& a, const Dot& dot, const std::vector<Zone>& zones,
             const Doubles& c) {
  const int direction = DROPLESS_BLOCKS_COLUMN_WISE;
  const Doubles dy = rows_of(*a.dy, a, direction), x = rows_of(*a.x, a, direction);
  const Index out = view(a.dw).shape(1), in = view(a.dw).shape(2);
  for (std::size_t e = 0; e < zones.size(); ++e) {
    const Index rows = zones[e].real_end - zones[e].first;
    if (rows == 0) continue;
    const Doubles left = transposed(dy, zones[e].first, rows, out);
    const Doubles right = transposed(x, zones[e].first, rows, in);
    for (Index o = 0; o < out; ++o) {
      for (Index i = 0; i < in; ++i) {
        float y = scaled(a.alpha, dot(vector_at(left, o, rows), vector_at(right, i, rows)));
        if (a.beta != 0) {
          const Index position = (static_cast<Index>(e) * out + o) * in + i;
          const auto old = static_cast<float>(c[static_cast<std::size_t>(position)]);
          y += static_cast<float>(a.beta) * old;
        }
        view(a.dw).store(y, static_cast<Index>(e), o, i);
      }
    }
  }
}

// C before the call, which may write over it.
template <class Args>
Doubles kept_c(const Args&) {
  return {};
}
Doubles kept_c(const dropless_gemm_wgrad_args& a) {
  return a.beta != 0 ? faults::values_of(a.c) : Doubles{};
}

const Dot& chosen(const Accumulators& all, const dropless_operand& left,
                  const dropless_operand& right) {
  if (left.values->dtype == DROPLESS_FP32 || right.values->dtype == DROPLESS_FP32) return all.fp32;
  return has_codes(left) || has_codes(right) ? all.mxfp8 : all.bf16;
}

}  // namespace

void accumulate_with(Planted& variant, Accumulators accumulators) {
  faults::around_products(variant, [accumulators](const auto& next, auto& a) -> dropless_status {
    const Doubles c = kept_c(a);
    const dropless_status status = next(a);
    if (status != DROPLESS_OK || view(faults::output_of(a)).size() == 0) return status;
    const Dot& dot = chosen(accumulators, *faults::left_of(a), *faults::right_of(a));
    compute(a, dot, faults::zones_of_call(a), c);
    return status;
  });
}

}  // namespace dropless::honest
