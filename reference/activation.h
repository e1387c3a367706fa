// SPDX-License-Identifier: Apache-2.0
// Activation, text-book form: ACTIVATION-1 to 5.
#pragma once

#include <dropless/contract.h>

#include "reference/value.h"

namespace dropless::reference {

// One element of a gated activation, in double. For relu2 `up` is ignored.
struct ActivationPoint {
  double h;             // act(gate, up)
  double d_gate, d_up;  // partial derivatives
};
ActivationPoint activate(const dropless_activation_settings& settings, double gate, double up);

// Columns of gate and up for output column i of `width` = I (ACTIVATION-2). up = -1 for relu2.
struct GateUpColumns {
  Index gate, up;
};
GateUpColumns gate_up_columns(const dropless_activation_settings& settings, Index width, Index i);

// x [rows,2I] or [rows,I] -> h [rows,I], times row_weights [rows] when not empty.
Doubles activation(const dropless_activation_settings& settings, Index rows, Index width, Input x,
                   Input row_weights = {});

struct ActivationGradient {
  Doubles d_x;           // shape of x
  Gauged d_row_weights;  // [rows], empty without weights
};
ActivationGradient activation_backward(const dropless_activation_settings& settings, Index rows,
                                       Index width, Input x, Input dh, Input row_weights = {});

}  // namespace dropless::reference
