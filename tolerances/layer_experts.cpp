// SPDX-License-Identifier: Apache-2.0
// One set of experts inside the layer's bound.
#include "tolerances/layer_experts.h"

#include <cmath>

#include "tolerances/layer_activation.h"
#include "tolerances/quantisation.h"

namespace dropless::tolerances {

namespace {

bool is_mxfp8(const Experts& experts) {
  return experts.call.settings.recipe == DROPLESS_RECIPE_MXFP8;
}

Operands operands_of(const Experts& experts) {
  if (is_mxfp8(experts)) return Operands::mxfp8;
  return experts.call.storage == DROPLESS_FP32 ? Operands::fp32 : Operands::bf16;
}

enum class Direction { row_wise, column_wise };

// What the GEMM sees of a tensor (LAYER-2): under MXFP8 the values of the codes of one direction.
Approximate operand(const Experts& experts, Direction direction, dropless_dtype format,
                    const Approximate& x, Index columns, std::span<const Index> offsets) {
  if (!is_mxfp8(experts)) return x;
  const int rule = experts.call.profile.scale_rule;
  return direction == Direction::row_wise ? requantised_rows(format, rule, x, columns)
                                          : requantised_columns(format, rule, x, columns, offsets);
}

std::vector<Index> weight_offsets(Index num_experts, Index out) {
  std::vector<Index> offsets;
  for (Index e = 0; e <= num_experts; ++e) offsets.push_back(e * out);
  return offsets;
}

// y = x W^T (+ bias) for W [E,O,I].
struct Linear {
  Index out, in;
  Input w, bias;
};

Linear gate_up_of(const Experts& experts) {
  return {experts.width(), experts.hidden, experts.gate_up, experts.gate_up_bias};
}
Linear down_of(const Experts& experts) {
  return {experts.hidden, experts.intermediate, experts.down, experts.down_bias};
}

Approximate weights_of(const Experts& experts, const Linear& linear, Direction direction) {
  return operand(experts, direction, DROPLESS_E4M3, Approximate(linear.w), linear.in,
                 weight_offsets(experts.num_experts, linear.out));
}

std::size_t elements(Index rows, Index columns) {
  return static_cast<std::size_t>(rows * columns);
}

Approximate linear_forward(const Experts& experts, const Linear& linear, const Approximate& x) {
  const Approximate a =
      operand(experts, Direction::row_wise, DROPLESS_E4M3, x, linear.in, experts.offsets);
  const Approximate w = weights_of(experts, linear, Direction::row_wise);
  Approximate y(elements(experts.rows(), linear.out));
  for (Index e = 0; e < experts.num_experts; ++e) {
    const auto g = static_cast<std::size_t>(e);
    const Index first = experts.offsets[g];
    const Input bias = linear.bias.empty()
                           ? Input()
                           : linear.bias.subspan(elements(e, linear.out), elements(1, linear.out));
    multiply(experts.call.profile, operands_of(experts), {experts.counts[g], linear.in, linear.out},
             view(a, linear.in, first), view(w, linear.in, e * linear.out).transposed(), bias, y,
             first);
  }
  return y;
}

struct LinearBackward {
  Approximate d_x, d_w, d_bias;
};

LinearBackward linear_backward(const Experts& experts, const Linear& linear, const Approximate& x,
                               const Approximate& dy) {
  const dropless_profile& profile = experts.call.profile;
  const Operands kind = operands_of(experts);
  const dropless_dtype format = experts.call.settings.gradient_format;
  const Approximate dy_rows =
      operand(experts, Direction::row_wise, format, dy, linear.out, experts.offsets);
  const Approximate dy_columns =
      operand(experts, Direction::column_wise, format, dy, linear.out, experts.offsets);
  const Approximate x_columns =
      operand(experts, Direction::column_wise, DROPLESS_E4M3, x, linear.in, experts.offsets);
  const Approximate w = weights_of(experts, linear, Direction::column_wise);

  LinearBackward result;
  result.d_x = Approximate(elements(experts.rows(), linear.in));
  result.d_w = Approximate(linear.w.size());
  result.d_bias = Approximate(linear.bias.size());
  for (Index e = 0; e < experts.num_experts; ++e) {
    const auto g = static_cast<std::size_t>(e);
    const Index first = experts.offsets[g], count = experts.counts[g];
    multiply(profile, kind, {count, linear.out, linear.in}, view(dy_rows, linear.out, first),
             view(w, linear.in, e * linear.out), {}, result.d_x, first);
    multiply(profile, kind, {linear.out, count, linear.in},
             view(dy_columns, linear.out, first).transposed(), view(x_columns, linear.in, first),
             {}, result.d_w, e * linear.out);
    if (!linear.bias.empty()) {
      add_rows(count, linear.out, view(dy, linear.out, first), result.d_bias, e * linear.out);
    }
  }
  store(experts.call.storage, result.d_x);
  return result;
}

// Calls visit(row, i, position of gate, position of up or -1) for every real element of hidden.
template <class Visit>
void for_each_real(const Experts& experts, Visit visit) {
  const Index width = experts.width(), inner = experts.intermediate;
  const bool interleaved =
      experts.call.settings.activation->gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED;
  for (std::size_t e = 0; e < experts.counts.size(); ++e) {
    for (Index r = experts.offsets[e]; r < experts.offsets[e] + experts.counts[e]; ++r) {
      for (Index i = 0; i < inner; ++i) {
        if (width == inner) {
          visit(r, i, r * width + i, Index{-1});
        } else if (interleaved) {
          visit(r, i, r * width + 2 * i, r * width + 2 * i + 1);
        } else {
          visit(r, i, r * width + i, r * width + inner + i);
        }
      }
    }
  }
}

Near element(const Approximate& x, Index position) {
  return position < 0 ? Near{} : at(x, static_cast<std::size_t>(position));
}

Near weight_of(const Approximate& row_weights, Index row) {
  return row_weights.size() == 0 ? Near{1, 0} : element(row_weights, row);
}

}  // namespace

Index Experts::width() const {
  return call.settings.activation->kind == DROPLESS_RELU2 ? intermediate : 2 * intermediate;
}

ExpertStages experts_forward(const Experts& experts, const Approximate& rows,
                             const Approximate& row_weights) {
  const dropless_dtype storage = experts.call.storage;
  ExpertStages stages;
  stages.gate_up = linear_forward(experts, gate_up_of(experts), rows);
  store(storage, stages.gate_up);
  stages.hidden = Approximate(elements(experts.rows(), experts.intermediate));
  for_each_real(experts, [&](Index row, Index i, Index gate, Index up) {
    const auto point = activate(experts.call.profile, *experts.call.settings.activation,
                                element(stages.gate_up, gate), element(stages.gate_up, up),
                                weight_of(row_weights, row), {});
    set(stages.hidden, elements(row, experts.intermediate) + static_cast<std::size_t>(i),
        point.weighted);
  });
  store(storage, stages.hidden);
  stages.out = linear_forward(experts, down_of(experts), stages.hidden);
  store(storage, stages.out);
  return stages;
}

ExpertsBackward experts_backward(const Experts& experts, const Approximate& rows,
                                 const Approximate& row_weights, const ExpertStages& stages,
                                 const Approximate& d_out) {
  const LinearBackward down = linear_backward(experts, down_of(experts), stages.hidden, d_out);
  Approximate d_gate_up(stages.gate_up.size());
  ExpertsBackward result;
  result.d_row_weights = Approximate(row_weights.size());
  Doubles gauges(row_weights.size(), 0.0);
  for_each_real(experts, [&](Index row, Index i, Index gate, Index up) {
    const Near dh = element(down.d_x, row * experts.intermediate + i);
    const auto point = activate(experts.call.profile, *experts.call.settings.activation,
                                element(stages.gate_up, gate), element(stages.gate_up, up),
                                weight_of(row_weights, row), dh);
    set(d_gate_up, static_cast<std::size_t>(gate), point.d_gate);
    if (up >= 0) set(d_gate_up, static_cast<std::size_t>(up), point.d_up);
    if (row_weights.size() == 0) return;
    const auto r = static_cast<std::size_t>(row);
    const Near term = dh * point.h;
    set(result.d_row_weights, r, at(result.d_row_weights, r) + term);
    gauges[r] += std::abs(term.value) + term.error;
  });
  for (std::size_t r = 0; r < gauges.size(); ++r) {
    result.d_row_weights.error[r] += sum(experts.intermediate + 1, gauges[r]);
  }
  settle(result.d_row_weights);
  store(experts.call.storage, d_gate_up);
  LinearBackward up = linear_backward(experts, gate_up_of(experts), rows, d_gate_up);
  result.d_rows = std::move(up.d_x);
  result.gate_up = std::move(up.d_w);
  result.gate_up_bias = std::move(up.d_bias);
  result.down = down.d_w;
  result.down_bias = down.d_bias;
  return result;
}

}  // namespace dropless::tolerances
