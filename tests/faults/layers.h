// SPDX-License-Identifier: Apache-2.0
// What layer faults share: one changeable copy of everything that a layer call points to.
#pragma once

#include <functional>

#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

void add_layer_backward(std::vector<Fault>& faults);
void add_layer_elsewhere(std::vector<Fault>& faults);
void add_layer_over_ranks(std::vector<Fault>& faults);
void add_layer_strides(std::vector<Fault>& faults);

using Forward = dropless_layer_args;
using Backward = dropless_layer_backward_args;

struct LayerParts {
  dropless_layer_settings settings;
  dropless_route_settings route;
  dropless_activation_settings activation;
  dropless_layer_parameters parameters;

  // Everything that `args` points to; false when something is missing or too short.
  bool take(const Forward& args);
  // `args` points here.
  void put_into(Forward& args);
};

using PartsChange = std::function<void(LayerParts&)>;
// The layer with other settings or parameters: forward, backward, or both.
enum class Pass { forward, backward, both };
void change_layer(Planted& planted, Pass pass, PartsChange change);

// change(args, parts), after a forward call that succeeded.
using ForwardChange = std::function<void(Forward&, const LayerParts&)>;
void after_forward(Planted& planted, ForwardChange change);
// change(args, gradients), after a backward call that succeeded. Gradients that are not wanted are
// null.
using BackwardChange = std::function<void(Backward&, const dropless_layer_parameters&)>;
void after_backward(Planted& planted, BackwardChange change);

}  // namespace dropless::faults
