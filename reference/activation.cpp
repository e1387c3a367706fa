// SPDX-License-Identifier: Apache-2.0
// The activations between the expert GEMMs and their derivatives: ACTIVATION-1 to 5.
#include "reference/activation.h"

#include <cmath>
#include <numbers>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

// Written with sigmoid everywhere: g * sigmoid(g) stays finite (and no NaN appears) where e^-g
// overflows, and 0.5 (1 + tanh z) = sigmoid(2z) does not cancel for negative z (ACTIVATION-3).
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// silu(g) = g sigmoid(g)
ActivationPoint swiglu(double gate, double up) {
  const double s = sigmoid(gate);
  const double slope = s * (1 + gate * sigmoid(-gate));
  return {gate * s * up, slope * up, gate * s};
}

ActivationPoint swiglu_clamped(const dropless_activation_settings& settings, double gate,
                               double up) {
  const double limit = settings.limit;
  // Comparisons are written so that NaN passes through the clamp. At the limit itself the slope
  // of the inside is taken (ACTIVATION-4 accepts either side).
  const bool gate_held = gate > limit;
  const bool up_held = up > limit || up < -limit;
  const double g = gate_held ? limit : gate;
  const double u = up > limit ? limit : up < -limit ? -limit : up;
  const double s = sigmoid(settings.alpha * g);
  const double slope = s * (1 + settings.alpha * g * sigmoid(-settings.alpha * g));
  return {g * s * (u + settings.offset), (gate_held ? 0.0 : slope) * (u + settings.offset),
          (up_held ? 0.0 : 1.0) * (g * s)};
}

ActivationPoint geglu_tanh(double gate, double up) {
  const double c = std::sqrt(2 / std::numbers::pi);
  const double z = c * (gate + 0.044715 * gate * gate * gate);
  const double dz = c * (1 + 3 * 0.044715 * gate * gate);
  const double s = sigmoid(2 * z);
  const double slope = s * (1 + 2 * gate * dz * sigmoid(-2 * z));
  return {gate * s * up, slope * up, gate * s};
}

ActivationPoint relu2(double x) {
  const double positive = x <= 0 ? 0.0 : x;  // NaN stays NaN
  return {positive * positive, 2 * positive, 0};
}

void check_settings(const dropless_activation_settings& settings) {
  if (settings.kind < DROPLESS_SWIGLU || settings.kind > DROPLESS_RELU2) {
    throw Refused("unknown activation " + std::to_string(settings.kind));
  }
  if (settings.gate_up_layout != DROPLESS_GATE_UP_CONCATENATED &&
      settings.gate_up_layout != DROPLESS_GATE_UP_INTERLEAVED) {
    throw Refused("unknown gate-up layout " + std::to_string(settings.gate_up_layout));
  }
}

Index input_width(const dropless_activation_settings& settings, Index width) {
  return settings.kind == DROPLESS_RELU2 ? width : 2 * width;
}

void check_shapes(const dropless_activation_settings& settings, Index rows, Index width, Input x,
                  Input row_weights) {
  check_settings(settings);
  if (rows < 0 || width < 0) throw Refused("negative size");
  check_size(x.size(), rows * input_width(settings, width), "x");
  if (!row_weights.empty()) check_size(row_weights.size(), rows, "row_weights");
}

// The point of output column i, from row `x_row` of the input.
ActivationPoint point_at(const dropless_activation_settings& settings, Index width, Index i,
                         const double* x_row) {
  const GateUpColumns columns = gate_up_columns(settings, width, i);
  return activate(settings, x_row[columns.gate], columns.up < 0 ? 0.0 : x_row[columns.up]);
}

}  // namespace

ActivationPoint activate(const dropless_activation_settings& settings, double gate, double up) {
  switch (settings.kind) {
    case DROPLESS_SWIGLU:
      return swiglu(gate, up);
    case DROPLESS_SWIGLU_CLAMPED:
      return swiglu_clamped(settings, gate, up);
    case DROPLESS_GEGLU_TANH:
      return geglu_tanh(gate, up);
    case DROPLESS_RELU2:
      return relu2(gate);
    default:
      throw Refused("unknown activation " + std::to_string(settings.kind));
  }
}

GateUpColumns gate_up_columns(const dropless_activation_settings& settings, Index width, Index i) {
  if (settings.kind == DROPLESS_RELU2) return {i, -1};
  if (settings.gate_up_layout == DROPLESS_GATE_UP_INTERLEAVED) return {2 * i, 2 * i + 1};
  return {i, width + i};
}

Doubles activation(const dropless_activation_settings& settings, Index rows, Index width, Input x,
                   Input row_weights) {
  check_shapes(settings, rows, width, x, row_weights);
  Doubles h(at(rows * width), 0.0);
  for (Index row = 0; row < rows; ++row) {
    const double* const x_row = x.data() + row * input_width(settings, width);
    const double weight = row_weights.empty() ? 1.0 : row_weights[at(row)];
    for (Index i = 0; i < width; ++i) {
      h[at(row * width + i)] = point_at(settings, width, i, x_row).h * weight;
    }
  }
  return h;
}

ActivationGradient activation_backward(const dropless_activation_settings& settings, Index rows,
                                       Index width, Input x, Input dh, Input row_weights) {
  check_shapes(settings, rows, width, x, row_weights);
  check_size(dh.size(), rows * width, "dh");
  ActivationGradient gradient;
  gradient.d_x.assign(x.size(), 0.0);
  gradient.d_row_weights = {Doubles(row_weights.size(), 0.0), Doubles(row_weights.size(), 0.0)};
  for (Index row = 0; row < rows; ++row) {
    const Index x_begin = row * input_width(settings, width);
    const double weight = row_weights.empty() ? 1.0 : row_weights[at(row)];
    for (Index i = 0; i < width; ++i) {
      const ActivationPoint point = point_at(settings, width, i, x.data() + x_begin);
      const GateUpColumns columns = gate_up_columns(settings, width, i);
      const double d = dh[at(row * width + i)];
      gradient.d_x[at(x_begin + columns.gate)] = d * weight * point.d_gate;
      if (columns.up >= 0) gradient.d_x[at(x_begin + columns.up)] = d * weight * point.d_up;
      if (row_weights.empty()) continue;
      // ACTIVATION-5: h neither rounded nor weighted.
      gradient.d_row_weights.value[at(row)] += d * point.h;
      gradient.d_row_weights.gauge[at(row)] += std::abs(d * point.h);
    }
  }
  return gradient;
}

}  // namespace dropless::reference
