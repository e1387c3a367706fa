// SPDX-License-Identifier: Apache-2.0
// Layer data: parameters of a published model's shape, scaled so that every stage has RMS near 1.
#include <cmath>

#include "conformance/cases/data.h"
#include "conformance/cases/layer/over_ranks.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/loads.h"
#include "conformance/cases/routing/setup.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

// Uniform with the given standard deviation, representable in dtype.
std::vector<double> spread(dropless_dtype dtype, Index count, double deviation, Random& random) {
  std::vector<double> values(static_cast<std::size_t>(count));
  const double reach = deviation * std::sqrt(3.0);
  for (double& v : values) {
    v = tolerances::round_to(dtype, reach * (2 * random.uniform() - 1));
  }
  return values;
}

void fill_parameters(const Model& model, LayerData& data, Random& random) {
  const Index e = data.experts(), h = data.hidden, i = data.intermediate;
  const double by_hidden = 1 / std::sqrt(static_cast<double>(h));
  const Index rows = data.gate_up_rows(i);
  data.router_weight = spread(data.router_dtype, e * h, 1.5 * by_hidden, random);
  if (model.router_bias) data.router_bias = spread(DROPLESS_FP32, e, 0.5, random);
  data.gate_up = spread(data.dtype, e * rows * h, 1.5 * by_hidden, random);
  data.down = spread(data.dtype, e * h * i, 2 / std::sqrt(static_cast<double>(i)), random);
  if (model.ffn_bias) {
    data.gate_up_bias = spread(data.dtype, e * rows, 0.5, random);
    data.down_bias = spread(data.dtype, e * h, 0.5, random);
  }
  if (data.shared_intermediate == 0) return;
  const Index s = data.shared_intermediate;
  data.shared_gate_up = spread(data.dtype, data.gate_up_rows(s) * h, 1.5 * by_hidden, random);
  data.shared_down = spread(data.dtype, h * s, 2 / std::sqrt(static_cast<double>(s)), random);
  if (model.shared_gate) data.shared_gate = spread(data.dtype, h, by_hidden, random);
}

}  // namespace

void LayerData::connect() {
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  settings.route = &route;
  settings.activation = &activation;
}

Index LayerData::gate_up_rows(Index width) const {
  return activation.kind == DROPLESS_RELU2 ? width : 2 * width;
}

reference::LayerParameters LayerData::parameters() const {
  reference::LayerParameters p;
  p.hidden = hidden, p.intermediate = intermediate, p.shared_intermediate = shared_intermediate;
  p.router_weight = router_weight, p.router_bias = router_bias;
  p.expert_bias = expert_bias, p.expert_scale = expert_scale;
  p.gate_up = gate_up, p.gate_up_bias = gate_up_bias;
  p.down = down, p.down_bias = down_bias;
  p.shared_gate_up = shared_gate_up, p.shared_down = shared_down, p.shared_gate = shared_gate;
  return p;
}

void fill_layer(const CaseRun& run, LayerData& data, Index tokens) {
  const Model model = scaled(run.model(), run.integer("divisor"));
  Random random = run.random("layer");
  data.tokens = tokens < 0 ? run.integer("tokens") : tokens;
  data.dtype = run.word("dtype") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16;
  data.hidden = model.hidden, data.intermediate = model.intermediate;
  data.shared_intermediate = model.shared_intermediate;
  const RoutingData routing = model_data(model, data.tokens, DROPLESS_FP32, random);
  data.route = routing.settings;
  data.activation = model.activation;
  data.connect();
  data.expert_bias = routing.bias, data.expert_scale = routing.scale;
  const std::string& placement = run.word("placement");
  data.settings.weight_placement = placement == "early"   ? DROPLESS_WEIGHTS_EARLY
                                   : placement == "input" ? DROPLESS_WEIGHTS_INPUT
                                                          : DROPLESS_WEIGHTS_LATE;
  const std::string& recipe = run.word("recipe");
  data.settings.recipe = recipe == "plain" ? DROPLESS_RECIPE_PLAIN : DROPLESS_RECIPE_MXFP8;
  data.settings.gradient_format = recipe == "mxfp8_e5m2" ? DROPLESS_E5M2 : DROPLESS_E4M3;
  data.settings.logits_dtype = DROPLESS_FP32;

  data.x = spread(data.dtype, data.tokens * data.hidden, 1, random);
  fill_parameters(model, data, random);
  if (run.word("routing") == "given") {
    data.given_ids =
        ids_for_load("zipf", data.tokens, data.experts(), data.route.top_k, random, 0.1);
  }
  if (run.word("mask") != "none") {
    data.mask.resize(static_cast<std::size_t>(data.tokens));
    for (auto& m : data.mask) m = run.word("mask") == "some" && random.chance(0.8) ? 1 : 0;
  }
}

void add_layer(Registry& registry) {
  add_layer_bounded(registry);
  add_layer_contract(registry);
  add_layer_exact(registry);
  add_layer_queue(registry);
  add_layer_stages(registry);
  add_layer_state(registry);
  add_layer_strides(registry);
  add_layer_over_ranks(registry);
  add_layer_over_ranks_exact(registry);
  add_layer_over_ranks_refusals(registry);
}

}  // namespace dropless::conformance
