// SPDX-License-Identifier: Apache-2.0
// Gate-up GEMM, activation and down GEMM of a set of experts, plain or with MXFP8 operands:
// LAYER-1 and LAYER-2.
#include "reference/layer_experts.h"

#include <dropless/formats/dtype.h>

#include "reference/activation.h"
#include "reference/checks.h"
#include "reference/mxfp8.h"

namespace dropless::reference {
namespace {

// The values that a GEMM sees: under MXFP8 what the codes of one direction stand for (LAYER-2,
// GROUPED_GEMM-7), otherwise the tensor itself.
Doubles operand(const ExpertMode& mode, int direction, dropless_dtype format, Index rows,
                Index columns, Input x, const Groups& groups) {
  if (!mode.mxfp8) return {x.begin(), x.end()};
  QuantizeSettings settings;
  settings.row_format = format;
  settings.column_format = format;
  const Quantized q = quantize(settings, mode.profile, rows, columns, x, groups);
  const bool row_wise = direction == DROPLESS_BLOCKS_ROW_WISE;
  return dequantize(direction, settings.scale_layout, format, rows, columns,
                    row_wise ? q.row_codes : q.column_codes,
                    row_wise ? q.row_scales : q.column_scales, groups);
}

// W [E,O,I] as an operand; blocks along I are row-wise, blocks along O column-wise.
Doubles weight_operand(const ExpertMode& mode, int direction, Index num_experts, Index out,
                       Index in, Input w) {
  const std::vector<Index> offsets = weight_offsets(num_experts, out);
  return operand(mode, direction, DROPLESS_E4M3, num_experts * out, in, w, {offsets, {}});
}

// One linear map of all experts: y = x W^T (+ bias).
struct Linear {
  GemmShape shape;
  Input w, bias;
};

Doubles linear_forward(const ExpertMode& mode, const Linear& linear, const Groups& groups,
                       Input x) {
  const auto& [num_experts, out, in, rows] = linear.shape;
  const int row_wise = DROPLESS_BLOCKS_ROW_WISE;
  const Doubles x_operand = operand(mode, row_wise, DROPLESS_E4M3, rows, in, x, groups);
  const Doubles w_operand = weight_operand(mode, row_wise, num_experts, out, in, linear.w);
  Doubles y = gemm_fprop(linear.shape, groups, 1, x_operand, w_operand, linear.bias).value;
  store(mode, y);
  return y;
}

struct LinearGradient {
  Doubles d_x, d_w, d_bias;
};

// LAYER-2: dgrad takes row-wise dy, wgrad column-wise dy and x, all made from the tensors as they
// were before any quantisation; the bias gradient is a plain sum of dy.
LinearGradient linear_backward(const ExpertMode& mode, const Linear& linear, const Groups& groups,
                               Input x, Input dy) {
  const auto& [num_experts, out, in, rows] = linear.shape;
  const int row_wise = DROPLESS_BLOCKS_ROW_WISE;
  const int column_wise = DROPLESS_BLOCKS_COLUMN_WISE;
  const dropless_dtype gradient = mode.gradient_format;
  LinearGradient result;
  {
    const Doubles dy_operand = operand(mode, row_wise, gradient, rows, out, dy, groups);
    const Doubles w_operand = weight_operand(mode, column_wise, num_experts, out, in, linear.w);
    result.d_x = gemm_dgrad(linear.shape, groups, 1, dy_operand, w_operand).value;
    store(mode, result.d_x);
  }
  {
    const Doubles dy_operand = operand(mode, column_wise, gradient, rows, out, dy, groups);
    const Doubles x_operand = operand(mode, column_wise, DROPLESS_E4M3, rows, in, x, groups);
    result.d_w = gemm_wgrad(linear.shape, groups, 1, dy_operand, x_operand).value;
  }
  if (linear.bias.empty()) return result;
  result.d_bias.assign(at(num_experts * out), 0.0);
  const std::vector<Zone> experts = zones(rows, groups);
  for (Index e = 0; e < num_experts; ++e) {
    for (Index row = experts[at(e)].first; row < experts[at(e)].real_end; ++row) {
      for (Index o = 0; o < out; ++o) result.d_bias[at(e * out + o)] += dy[at(row * out + o)];
    }
  }
  return result;
}

Linear gate_up_linear(const ExpertMode& mode, const ExpertWeights& w, Index rows) {
  const Index width = mode.activation.kind == DROPLESS_RELU2 ? w.intermediate : 2 * w.intermediate;
  return {{w.num_experts, width, w.hidden, rows}, w.gate_up, w.gate_up_bias};
}

Linear down_linear(const ExpertWeights& w, Index rows) {
  return {{w.num_experts, w.hidden, w.intermediate, rows}, w.down, w.down_bias};
}

}  // namespace

ExpertMode expert_mode(const dropless_layer_settings& settings, const dropless_profile& profile,
                       const LayerArithmetic& arithmetic) {
  if (settings.route == nullptr || settings.activation == nullptr) {
    throw Refused("a layer needs route and activation settings");
  }
  if (settings.recipe != DROPLESS_RECIPE_PLAIN && settings.recipe != DROPLESS_RECIPE_MXFP8) {
    throw Refused("unknown recipe " + std::to_string(settings.recipe));
  }
  if (settings.weight_placement < DROPLESS_WEIGHTS_LATE ||
      settings.weight_placement > DROPLESS_WEIGHTS_INPUT) {
    throw Refused("unknown weight placement " + std::to_string(settings.weight_placement));
  }
  if (settings.logits_dtype != DROPLESS_FP32 && settings.logits_dtype != DROPLESS_BF16) {
    throw Refused("logits_dtype " + std::to_string(settings.logits_dtype) +
                  " is neither fp32 nor bf16");
  }
  const bool mxfp8 = settings.recipe == DROPLESS_RECIPE_MXFP8;
  if (mxfp8 && settings.gradient_format != DROPLESS_E4M3 &&
      settings.gradient_format != DROPLESS_E5M2) {
    throw Refused("gradient_format " + std::to_string(settings.gradient_format) +
                  " is neither e4m3 nor e5m2");
  }
  return {*settings.activation, profile, mxfp8, settings.gradient_format, arithmetic.storage};
}

void store(const ExpertMode& mode, Doubles& values) {
  if (mode.storage == DROPLESS_FP32) return;
  for (double& value : values) value = round_to(mode.storage, value);
}

ExpertValues experts_forward(const ExpertMode& mode, const ExpertWeights& weights,
                             const Groups& groups, Index row_count, Input rows,
                             Input early_weights) {
  ExpertValues values;
  values.gate_up = linear_forward(mode, gate_up_linear(mode, weights, row_count), groups, rows);
  values.hidden =
      activation(mode.activation, row_count, weights.intermediate, values.gate_up, early_weights);
  store(mode, values.hidden);
  values.out = linear_forward(mode, down_linear(weights, row_count), groups, values.hidden);
  return values;
}

ExpertGradient experts_backward(const ExpertMode& mode, const ExpertWeights& weights,
                                const Groups& groups, Index row_count, Input rows, Input gate_up,
                                Input hidden, Input early_weights, Input d_out) {
  LinearGradient down =
      linear_backward(mode, down_linear(weights, row_count), groups, hidden, d_out);
  ActivationGradient act = activation_backward(mode.activation, row_count, weights.intermediate,
                                               gate_up, down.d_x, early_weights);
  store(mode, act.d_x);
  LinearGradient up =
      linear_backward(mode, gate_up_linear(mode, weights, row_count), groups, rows, act.d_x);
  return {std::move(up.d_x),   std::move(act.d_row_weights.value),
          std::move(up.d_w),   std::move(up.d_bias),
          std::move(down.d_w), std::move(down.d_bias)};
}

}  // namespace dropless::reference
