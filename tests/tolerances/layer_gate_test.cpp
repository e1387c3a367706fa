// SPDX-License-Identifier: Apache-2.0
// The gate of the layer's bound: its values are those of the reference, fp32 layers in any order
// and with or without stored intermediates pass, broken ones fail.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/layer.h"
#include "tests/tolerances/gate.h"
#include "tests/tolerances/layer_model.h"
#include "tolerances/layer.h"

namespace dropless::tolerances {
namespace {

using models::LayerData;
using models::LayerFault;
using models::LayerMode;
using models::LayerShape;

struct LayerKind {
  const char* name;
  LayerShape shape;
  dropless_dtype storage;
  int score_function, renormalize, placement, activation, recipe, alignment;
};

const LayerShape small{20, 32, 16, 24, 6, 2};
const LayerShape blocks{40, 64, 32, 32, 4, 2};

const LayerKind setups[] = {
    {"layer fp32", small, DROPLESS_FP32, DROPLESS_SCORE_SIGMOID, 1, DROPLESS_WEIGHTS_LATE,
     DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 1},
    {"layer fp32, early", small, DROPLESS_FP32, DROPLESS_SCORE_SOFTMAX, 1, DROPLESS_WEIGHTS_EARLY,
     DROPLESS_GEGLU_TANH, DROPLESS_RECIPE_PLAIN, 16},
    {"layer fp32, input", small, DROPLESS_FP32, DROPLESS_SCORE_SOFTMAX, 0, DROPLESS_WEIGHTS_INPUT,
     DROPLESS_RELU2, DROPLESS_RECIPE_PLAIN, 1},
    {"layer bf16", small, DROPLESS_BF16, DROPLESS_SCORE_SOFTMAX, 1, DROPLESS_WEIGHTS_LATE,
     DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 16},
    {"layer bf16, early, clamped", small, DROPLESS_BF16, DROPLESS_SCORE_SQRT_SOFTPLUS, 1,
     DROPLESS_WEIGHTS_EARLY, DROPLESS_SWIGLU_CLAMPED, DROPLESS_RECIPE_PLAIN, 1},
    {"layer bf16, input", small, DROPLESS_BF16, DROPLESS_SCORE_SIGMOID, 0, DROPLESS_WEIGHTS_INPUT,
     DROPLESS_SWIGLU, DROPLESS_RECIPE_PLAIN, 1},
    {"layer mxfp8 of fp32", blocks, DROPLESS_FP32, DROPLESS_SCORE_SIGMOID, 1, DROPLESS_WEIGHTS_LATE,
     DROPLESS_SWIGLU, DROPLESS_RECIPE_MXFP8, 32},
    {"layer mxfp8 of bf16", blocks, DROPLESS_BF16, DROPLESS_SCORE_SIGMOID, 1, DROPLESS_WEIGHTS_LATE,
     DROPLESS_SWIGLU, DROPLESS_RECIPE_MXFP8, 32},
};

// A layer, its reference and its bound.
struct Judged {
  LayerData data;
  reference::LayerOutput reference;
  reference::LayerGradient gradient;
  LayerForward forward;
  LayerBackward backward;

  Judged(const LayerKind& setup, std::uint64_t seed) {
    data.activation.kind = setup.activation;
    data.settings.weight_placement = setup.placement;
    data.settings.recipe = setup.recipe;
    data.settings.gradient_format = DROPLESS_E5M2;
    data.settings.logits_dtype = DROPLESS_FP32;
    data.route.score_function = setup.score_function;
    data.route.renormalize = data.route.renormalize_single = setup.renormalize;
    data.profile.alignment = setup.alignment;
    models::fill(data, setup.shape, setup.storage, seed);
    reference::LayerInput input;
    input.tokens = data.tokens, input.x = data.x;
    const auto parameters = data.parameters();
    const reference::LayerArithmetic arithmetic{setup.storage};
    reference = reference::layer(data.settings, data.profile, parameters, input, arithmetic);
    gradient = reference::layer_backward(data.settings, data.profile, parameters, input,
                                         reference.trace, data.d_y, arithmetic);
    const auto& trace = reference.trace;
    const LayerCall call{
        data.settings, data.profile,
        data.model(),  {trace.routing.ids, trace.offsets, trace.counts, trace.source},
        data.tokens,   data.x,
        setup.storage, setup.storage == DROPLESS_FP32 ? Operands::fp32 : Operands::bf16};
    forward = layer_forward(call);
    backward = layer_backward(call, forward, data.d_y);
  }

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

TEST(LayerBound, ItsValuesAreThoseOfTheReference) {
  for (const LayerKind& setup : setups) {
    const Judged layer(setup, 3);
    const auto got = models::fp32_layer(layer.data, layer.reference.trace, {});
    layer.each(got, [&](const char* name, const Doubles& exact, const Approximate& bound,
                        const models::Floats& computed) {
      ASSERT_EQ(exact.size(), bound.size()) << setup.name << " " << name;
      ASSERT_EQ(exact.size(), computed.size()) << setup.name << " " << name;
      double size = 1e-30;
      for (const double x : exact) size = std::max(size, std::abs(x));
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(exact[i], bound.value[i], 1e-9 * size) << setup.name << " " << name << i;
        ASSERT_TRUE(std::isfinite(bound.error[i])) << setup.name << " " << name << i;
        ASSERT_GE(bound.error[i], 0) << setup.name << " " << name << i;
      }
    });
    const auto& ids = layer.reference.trace.routing;
    for (std::size_t i = 0; i < ids.weights.size(); ++i) {
      ASSERT_NEAR(ids.weights[i], layer.forward.weights.value[i], 1e-9);
    }
  }
}

struct FaultCase {
  const char* name;
  LayerFault fault;
  const char* output;  // where it shows
};

const FaultCase faults[] = {
    {"weights forgotten", LayerFault::weights_forgotten, "y"},
    {"scaling factor on the shared expert", LayerFault::scaling_on_shared, "y"},
    {"shared gate forgotten", LayerFault::shared_gate_forgotten, "y"},
    {"gate and up exchanged", LayerFault::gate_and_up_exchanged, "y"},
    {"a row dropped", LayerFault::row_dropped, "y"},
    {"router gradient forgotten", LayerFault::router_gradient_forgotten, "d_x"},
    {"a token missing in wgrad", LayerFault::wgrad_row_dropped, "down"},
    {"d_up with the slope", LayerFault::derivative_of_gate_only, "gate-up"},
    {"expert output in e4m3", LayerFault::rounded_twice, "y"},
    {"combine in bf16", LayerFault::bf16_combine, "y"},
};

bool applies(const LayerKind& setup, const FaultCase& fault) {
  const bool plain_fp32 = setup.storage == DROPLESS_FP32 && setup.recipe == DROPLESS_RECIPE_PLAIN;
  switch (fault.fault) {
    case LayerFault::gate_and_up_exchanged:
    case LayerFault::derivative_of_gate_only:
      return setup.activation != DROPLESS_RELU2;
    case LayerFault::rounded_twice:
    case LayerFault::bf16_combine:
      return plain_fp32;  // below the roundings that a bf16 layer may make anyway
    case LayerFault::router_gradient_forgotten:
      return setup.recipe == DROPLESS_RECIPE_PLAIN;
    default:
      return true;
  }
}

TEST(LayerGate, LegalLayersPassAndBrokenOnesFail) {
  const LayerMode legal[] = {{true, false, LayerFault::none},
                             {true, true, LayerFault::none},
                             {false, false, LayerFault::none},
                             {false, true, LayerFault::none}};
  for (const LayerKind& setup : setups) {
    Gate gate(setup.name);
    for (const std::uint64_t seed : {1, 2, 3}) {
      const Judged layer(setup, seed);
      for (const LayerMode& mode : legal) {
        const auto got = models::fp32_layer(layer.data, layer.reference.trace, mode);
        layer.each(got, [&](const char* name, const Doubles& exact, const Approximate& bound,
                            const models::Floats& computed) {
          for (std::size_t i = 0; i < exact.size(); ++i) {
            gate.legal(name, DROPLESS_FP32, exact[i], bound.error[i], computed[i]);
          }
        });
      }
      for (const FaultCase& fault : faults) {
        if (!applies(setup, fault)) continue;
        const auto got =
            models::fp32_layer(layer.data, layer.reference.trace, {true, false, fault.fault});
        layer.each(got, [&](const std::string& name, const Doubles& exact, const Approximate& bound,
                            const models::Floats& computed) {
          if (name != fault.output) return;
          for (std::size_t i = 0; i < exact.size(); ++i) {
            gate.fault(fault.name, DROPLESS_FP32, exact[i], bound.error[i], computed[i]);
          }
        });
      }
    }
    EXPECT_TRUE(gate.passed()) << setup.name << ": " << gate.complaints();
    gate.print();
  }
}

TEST(LayerBound, ExpertsWithoutTokensHaveNoError) {
  LayerKind setup = setups[3];
  setup.shape.tokens = 1;  // 2 of 6 experts
  const Judged layer(setup, 5);
  const Index per_expert = setup.shape.hidden * setup.shape.intermediate;
  for (Index e = 0; e < setup.shape.num_experts; ++e) {
    const auto count = layer.reference.trace.counts[static_cast<std::size_t>(e)];
    const double error = layer.backward.down.error[static_cast<std::size_t>(e * per_expert)];
    EXPECT_EQ(error == 0, count == 0) << e;
  }
}

TEST(LayerBound, NoTokens) {
  LayerKind setup = setups[0];
  setup.shape.tokens = 0;
  const Judged layer(setup, 6);
  EXPECT_EQ(layer.forward.y.size(), 0u);
  for (const double error : layer.backward.gate_up.error) EXPECT_EQ(error, 0);
  for (const double error : layer.backward.router_weight.error) EXPECT_EQ(error, 0);
}

}  // namespace
}  // namespace dropless::tolerances
