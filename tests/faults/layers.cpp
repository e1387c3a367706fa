// SPDX-License-Identifier: Apache-2.0
// Copies of layer calls.
#include "tests/faults/layers.h"

namespace dropless::faults {
namespace {

template <class Struct>
bool copy_whole(const Struct* from, Struct& to) {
  if (from == nullptr || from->struct_size < sizeof(Struct)) return false;
  to = *from;
  return true;
}

}  // namespace

bool LayerParts::take(const Forward& args) {
  return copy_whole(args.settings, settings) && copy_whole(settings.route, route) &&
         copy_whole(settings.activation, activation) && copy_whole(args.parameters, parameters);
}

void LayerParts::put_into(Forward& args) {
  settings.route = &route;
  settings.activation = &activation;
  args.settings = &settings;
  args.parameters = &parameters;
}

void change_layer(Planted& planted, Pass pass, PartsChange change) {
  if (pass != Pass::backward) {
    planted.around<&Table::layer_forward>([change](const auto& next, Forward& a) {
      LayerParts parts;
      if (!parts.take(a)) return next(a);
      change(parts);
      parts.put_into(a);
      return next(a);
    });
  }
  if (pass != Pass::forward) {
    planted.around<&Table::layer_backward>([change](const auto& next, Backward& a) {
      Forward forward{};
      LayerParts parts;
      if (!copy_whole(a.forward, forward) || !parts.take(forward)) return next(a);
      change(parts);
      parts.put_into(forward);
      a.forward = &forward;
      return next(a);
    });
  }
}

void after_forward(Planted& planted, ForwardChange change) {
  planted.after<&Table::layer_forward>([change](Forward& a) {
    LayerParts parts;
    if (parts.take(a)) change(a, parts);
  });
}

void after_backward(Planted& planted, BackwardChange change) {
  planted.after<&Table::layer_backward>([change](Backward& a) {
    dropless_layer_parameters gradients{};
    copy_whole(a.gradients, gradients);
    change(a, gradients);
  });
}

}  // namespace dropless::faults
