// SPDX-License-Identifier: Apache-2.0
// Random parameters of one layer, exact in its format.
#include <cmath>
#include <random>

#include "tests/tolerances/measure/layer_model.h"
#include "tolerances/interval.h"

namespace dropless::tolerances::models {

reference::LayerParameters LayerData::parameters() const {
  reference::LayerParameters p;
  p.hidden = hidden, p.intermediate = intermediate, p.shared_intermediate = shared_intermediate;
  p.router_weight = router_weight, p.router_bias = router_bias, p.expert_scale = expert_scale;
  p.gate_up = gate_up, p.gate_up_bias = gate_up_bias, p.down = down, p.down_bias = down_bias;
  p.shared_gate_up = shared_gate_up, p.shared_down = shared_down, p.shared_gate = shared_gate;
  return p;
}

LayerModel LayerData::model() const {
  LayerModel m;
  m.hidden = hidden, m.intermediate = intermediate, m.shared_intermediate = shared_intermediate;
  m.router_weight = router_weight, m.router_bias = router_bias, m.expert_scale = expert_scale;
  m.gate_up = gate_up, m.gate_up_bias = gate_up_bias, m.down = down, m.down_bias = down_bias;
  m.shared_gate_up = shared_gate_up, m.shared_down = shared_down, m.shared_gate = shared_gate;
  return m;
}

void fill(LayerData& data, const LayerShape& shape, dropless_dtype storage, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto make = [&](Index count, double size) {
    Doubles values;
    for (Index i = 0; i < count; ++i) values.push_back(round_to(storage, size * normal(random)));
    return values;
  };
  data.tokens = shape.tokens, data.hidden = shape.hidden, data.intermediate = shape.intermediate;
  data.shared_intermediate = shape.shared_intermediate;
  data.storage = storage;
  data.route.num_experts = shape.num_experts, data.route.top_k = shape.top_k;
  data.route.renormalize_eps = 1e-20, data.route.scaling_factor = 2.5;
  data.settings.route = &data.route, data.settings.activation = &data.activation;
  data.activation.limit = 1, data.activation.alpha = 1.702, data.activation.offset = 1;
  const bool gated = data.activation.kind != DROPLESS_RELU2;
  const Index e = shape.num_experts, h = shape.hidden, i = shape.intermediate,
              s = shape.shared_intermediate, up = gated ? 2 : 1;
  const double in = 1 / std::sqrt(static_cast<double>(h));
  const double inner = 1 / std::sqrt(static_cast<double>(i));
  data.x = make(shape.tokens * h, 1), data.d_y = make(shape.tokens * h, 1);
  data.router_weight = make(e * h, in), data.router_bias = make(e, 0.1);
  data.expert_scale = make(e, 0.2);
  for (double& v : data.expert_scale) v = round_to(storage, 1 + v);
  data.gate_up = make(e * up * i * h, in), data.down = make(e * h * i, inner);
  data.gate_up_bias = make(e * up * i, 0.1), data.down_bias = make(e * h, 0.1);
  if (s == 0) return;
  data.shared_gate_up = make(up * s * h, in), data.shared_down = make(h * s, inner);
  data.shared_gate = make(h, in);
}

}  // namespace dropless::tolerances::models
