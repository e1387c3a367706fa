// SPDX-License-Identifier: Apache-2.0
// A random layer with every optional parameter, run forward and backward, for tests that compare
// bits.
#pragma once

#include <stdexcept>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {

struct LayerCase {
  Index tokens = 37, hidden = 48, intermediate = 40, experts = 6, top_k = 2, shared = 24;
  dropless_dtype dtype = DROPLESS_BF16;
  int placement = DROPLESS_WEIGHTS_LATE, recipe = DROPLESS_RECIPE_PLAIN, recompute = 0;
  bool keep = true;
  int threads = 2;

  // Bytes of all outputs and gradients, one after the other.
  std::vector<std::byte> run() const {
    auto route = route_settings(experts, top_k, DROPLESS_SCORE_SIGMOID);
    route.renormalize = 1, route.scaling_factor = 2.5;
    auto activation = make_args<dropless_activation_settings>();
    auto settings = make_args<dropless_layer_settings>();
    settings.route = &route, settings.activation = &activation;
    settings.weight_placement = placement, settings.recipe = recipe;
    settings.gradient_format = DROPLESS_E5M2, settings.recompute = recompute;
    settings.logits_dtype = DROPLESS_FP32;

    const auto shapes = parameter_shapes();
    std::vector<Array> parameters, gradients;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const bool fp32 = i < 4;
      parameters.push_back(
          Array(fp32 ? DROPLESS_FP32 : dtype, shapes[i]).random(static_cast<unsigned>(i), 0.3));
      gradients.emplace_back(DROPLESS_FP32, shapes[i]);
    }
    const auto parameter_args = connect(parameters), gradient_args = connect(gradients);

    const Array x = Array(dtype, {tokens, hidden}).random(100);
    const Array d_y = Array(dtype, {tokens, hidden}).random(101);
    std::vector<double> flags(static_cast<std::size_t>(tokens), 1);
    flags[3] = 0;
    const Array mask = Array(DROPLESS_U8, {tokens}).set(flags);
    const Array y(dtype, {tokens, hidden}), d_x(dtype, {tokens, hidden});
    const Array ids(DROPLESS_I32, {tokens, top_k}), counts(DROPLESS_I64, {experts});
    const Array d_logits = Array(DROPLESS_FP32, {tokens, experts}).random(102, 0.1);
    auto forward = make_args<dropless_layer_args>();
    forward.settings = &settings, forward.parameters = &parameter_args;
    forward.x = x.get(), forward.token_mask = mask.get(), forward.y = y.get();
    forward.ids = ids.get(), forward.tokens_per_expert = counts.get();
    forward.keep = keep ? 1 : 0;
    check(perform(implementation().layer_forward, forward, threads));
    auto backward = make_args<dropless_layer_backward_args>();
    backward.forward = &forward, backward.d_y = d_y.get(), backward.d_x = d_x.get();
    backward.gradients = &gradient_args, backward.d_logits = d_logits.get();
    check(perform(implementation().layer_backward, backward, threads));

    std::vector<std::byte> all;
    for (const Array* a : {&y, &ids, &counts, &d_x}) append(all, *a);
    for (const Array& gradient : gradients) append(all, gradient);
    return all;
  }

 private:
  std::vector<Shape> parameter_shapes() const {
    return {{experts, hidden},
            {experts},
            {experts},
            {experts},
            {experts, 2 * intermediate, hidden},
            {experts, 2 * intermediate},
            {experts, hidden, intermediate},
            {experts, hidden},
            {2 * shared, hidden},
            {hidden, shared},
            {1, hidden}};
  }
  static dropless_layer_parameters connect(const std::vector<Array>& a) {
    auto p = make_args<dropless_layer_parameters>();
    p.router_weight = a[0].get(), p.router_bias = a[1].get(), p.expert_bias = a[2].get();
    p.expert_scale = a[3].get(), p.gate_up = a[4].get(), p.gate_up_bias = a[5].get();
    p.down = a[6].get(), p.down_bias = a[7].get(), p.shared_gate_up = a[8].get();
    p.shared_down = a[9].get(), p.shared_gate = a[10].get();
    return p;
  }
  static void check(const Outcome& outcome) {
    if (outcome.status != DROPLESS_OK) throw std::runtime_error(outcome.message);
  }
  static void append(std::vector<std::byte>& all, const Array& array) {
    all.insert(all.end(), array.bytes().begin(), array.bytes().end());
  }
};

}  // namespace dropless::cpu::testing
