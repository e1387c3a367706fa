// SPDX-License-Identifier: Apache-2.0
// What activation faults share: points of the input, other settings, rows that are real.
#pragma once

#include <functional>

#include "reference/activation.h"
#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

void add_activation_backward(std::vector<Fault>& faults);

using Settings = dropless_activation_settings;

// One output element of a forward call that succeeded.
struct Point {
  const Settings& settings;
  double gate, up;  // up = 0 for relu2
  double weight;    // 1 without early weights
};

// visit(row, column) for the elements of real rows.
template <class Args, class Visit>
void each_real(const Args& a, Index columns, Visit visit) {
  for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
    for (Index row = zone.first; row < zone.real_end; ++row) {
      for (Index i = 0; i < columns; ++i) visit(row, i);
    }
  }
}

// Padding rows of a matrix hold again what they held before.
template <class Args>
void restore_padding(const Args& a, const Copy& before, const dropless_tensor* matrix) {
  for (const Zone& zone : zones_of(a.offsets, a.counts, view(a.x).shape(0))) {
    for (Index row = zone.real_end; row < zone.end; ++row) {
      for (Index i = 0; i < view(matrix).shape(1); ++i) {
        view(matrix).store_integer(before.elements().load_integer(row, i), row, i);
      }
    }
  }
}

template <class Args>
Point point_of(const Args& a, Index width, Index row, Index i) {
  const auto columns = reference::gate_up_columns(*a.settings, width, i);
  return {*a.settings, view(a.x).load(row, columns.gate),
          columns.up < 0 ? 0.0 : view(a.x).load(row, columns.up),
          a.row_weights != nullptr ? view(a.row_weights).load(row) : 1.0};
}

// Other settings in both directions.
void change_activation(Planted& planted, std::function<void(Settings&)> change);
// h = change(h, point), after the forward call.
void change_results(Planted& planted, std::function<double(double, const Point&)> change);
// The columns of gate and up change places, in both directions.
void swap_gate_and_up(Planted& planted);

}  // namespace dropless::faults
