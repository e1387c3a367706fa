// SPDX-License-Identifier: Apache-2.0
// What loss faults share.
#pragma once

#include <functional>

#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

void add_z_loss(std::vector<Fault>& faults);
void add_cross_entropy(std::vector<Fault>& faults);

// The same fault in the balance loss and in its gradient.
template <class F>
void around_balance(Planted& planted, F fault) {
  planted.around<&Table::balance_loss_forward>(fault);
  planted.around<&Table::balance_loss_backward>(fault);
}

// Other router settings in both.
template <class Change>
void change_loss_settings(Planted& planted, Change change) {
  around_balance(planted, [change](const auto& next, auto& a) {
    const bool complete =
        a.settings != nullptr && a.settings->struct_size >= sizeof(dropless_route_settings);
    if (!complete) return next(a);
    dropless_route_settings settings = *a.settings;
    change(settings);
    a.settings = &settings;
    return next(a);
  });
}

}  // namespace dropless::faults
