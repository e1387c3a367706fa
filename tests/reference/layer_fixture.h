// SPDX-License-Identifier: Apache-2.0
// A small MoE layer with random parameters, for the tests of the reference layer.
#pragma once

#include "reference/layer.h"
#include "tests/reference/random_data.h"

namespace dropless::test {

using reference::Doubles;
using reference::Index;

enum class Shared { none, plain, gated };

struct LayerFixture {
  static constexpr Index kTokens = 6, kHidden = 5, kIntermediate = 3, kExperts = 4, kTopK = 2;
  static constexpr Index kSharedIntermediate = 2;

  dropless_route_settings route{};
  dropless_activation_settings activation{};
  dropless_layer_settings settings{};
  dropless_profile profile{};
  reference::LayerArithmetic arithmetic;

  Index tokens = kTokens, hidden = kHidden, intermediate = kIntermediate;
  Index shared_intermediate = 0;
  Doubles x, router_weight, router_bias, expert_bias, expert_scale;
  Doubles gate_up, gate_up_bias, down, down_bias, shared_gate_up, shared_down, shared_gate;
  std::vector<std::uint8_t> token_mask;
  std::vector<Index> given_ids;

  explicit LayerFixture(std::uint64_t seed, int placement = DROPLESS_WEIGHTS_LATE,
                        int kind = DROPLESS_SWIGLU, Shared shared = Shared::none,
                        Index hidden_size = kHidden, Index intermediate_size = kIntermediate)
      : hidden(hidden_size), intermediate(intermediate_size) {
    route.struct_size = sizeof route;
    route.struct_version = DROPLESS_STRUCT_VERSION;
    route.num_experts = kExperts;
    route.top_k = kTopK;
    route.score_function = DROPLESS_SCORE_SIGMOID;
    route.renormalize = 1;
    route.renormalize_eps = 1e-20;
    route.scaling_factor = 2.5;
    activation.struct_size = sizeof activation;
    activation.struct_version = DROPLESS_STRUCT_VERSION;
    activation.kind = kind;
    activation.limit = 0.5;
    activation.alpha = 1.702;
    activation.offset = 1;
    settings.struct_size = sizeof settings;
    settings.struct_version = DROPLESS_STRUCT_VERSION;
    settings.weight_placement = placement;
    profile.struct_size = sizeof profile;
    profile.struct_version = DROPLESS_STRUCT_VERSION;
    profile.alignment = 16;

    RandomData random(seed);
    const Index factor = kind == DROPLESS_RELU2 ? 1 : 2;
    const Index width = factor * intermediate;
    x = random.uniforms(tokens * hidden, -1, 1);
    router_weight = random.uniforms(kExperts * hidden, -1, 1);
    router_bias = random.uniforms(kExperts, -0.3, 0.3);
    expert_bias = random.uniforms(kExperts, -0.2, 0.2);
    expert_scale = random.uniforms(kExperts, 0.5, 1.5);
    gate_up = random.uniforms(kExperts * width * hidden, -1, 1);
    gate_up_bias = random.uniforms(kExperts * width, -0.5, 0.5);
    down = random.uniforms(kExperts * hidden * intermediate, -1, 1);
    down_bias = random.uniforms(kExperts * hidden, -0.5, 0.5);
    if (shared == Shared::none) return;
    shared_intermediate = kSharedIntermediate;
    shared_gate_up = random.uniforms(factor * shared_intermediate * hidden, -1, 1);
    shared_down = random.uniforms(hidden * shared_intermediate, -1, 1);
    if (shared == Shared::gated) shared_gate = random.uniforms(hidden, -1, 1);
  }

  [[nodiscard]] dropless_layer_settings layer_settings() const {
    dropless_layer_settings result = settings;
    result.route = &route;
    result.activation = &activation;
    return result;
  }
  [[nodiscard]] reference::LayerParameters parameters() const {
    return {hidden,       intermediate, shared_intermediate, router_weight,
            router_bias,  expert_bias,  expert_scale,        gate_up,
            gate_up_bias, down,         down_bias,           shared_gate_up,
            shared_down,  shared_gate};
  }
  [[nodiscard]] reference::LayerInput input() const { return {tokens, x, token_mask, given_ids}; }

  [[nodiscard]] reference::LayerOutput forward() const {
    return reference::layer(layer_settings(), profile, parameters(), input(), arithmetic);
  }
  [[nodiscard]] reference::LayerGradient backward(const reference::LayerTrace& trace,
                                                  const Doubles& d_y,
                                                  const Doubles& d_logits = {}) const {
    return reference::layer_backward(layer_settings(), profile, parameters(), input(), trace, d_y,
                                     arithmetic, d_logits);
  }
};

}  // namespace dropless::test
