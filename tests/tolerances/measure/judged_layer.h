// SPDX-License-Identifier: Apache-2.0
// A layer, its reference and its bound, for the proof of that bound and for the tests of its
// values.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/layer.h"
#include "tests/tolerances/measure/layer_model.h"
#include "tolerances/layer.h"

namespace dropless::tolerances {

struct LayerKind {
  const char* name;
  models::LayerShape shape;
  dropless_dtype storage;
  int score_function, renormalize, placement, activation, recipe, alignment;
};

const std::vector<LayerKind>& layer_kinds();

struct JudgedLayer {
  models::LayerData data;
  reference::LayerOutput reference;
  reference::LayerGradient gradient;
  LayerForward forward;
  LayerBackward backward;

  JudgedLayer(const LayerKind& setup, std::uint64_t seed);

  // Calls visit(name, exact, bound, computed) for every output.
  template <class Visit>
  void each(const models::LayerResult& got, Visit visit) const {
    visit("y", reference.y, forward.y, got.y);
    visit("d_x", gradient.d_x, backward.d_x, got.d_x);
    visit("router weight", gradient.router_weight, backward.router_weight, got.router_weight);
    visit("router bias", gradient.router_bias, backward.router_bias, got.router_bias);
    visit("expert scale", gradient.expert_scale, backward.expert_scale, got.expert_scale);
    visit("gate-up", gradient.gate_up, backward.gate_up, got.gate_up);
    visit("gate-up bias", gradient.gate_up_bias, backward.gate_up_bias, got.gate_up_bias);
    visit("down", gradient.down, backward.down, got.down);
    visit("down bias", gradient.down_bias, backward.down_bias, got.down_bias);
    visit("shared gate-up", gradient.shared_gate_up, backward.shared_gate_up, got.shared_gate_up);
    visit("shared down", gradient.shared_down, backward.shared_down, got.shared_down);
    visit("shared gate", gradient.shared_gate, backward.shared_gate, got.shared_gate);
  }
};

}  // namespace dropless::tolerances
