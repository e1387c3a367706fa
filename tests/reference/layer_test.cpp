// SPDX-License-Identifier: Apache-2.0
// The reference layer's forward pass against its definition token by token, and its corner cases.
#include "reference/layer.h"

#include <dropless/formats/dtype.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/activation.h"
#include "tests/reference/layer_fixture.h"

namespace dropless::reference {
namespace {

using test::LayerFixture;
using test::Shared;
constexpr int kPlacements[] = {DROPLESS_WEIGHTS_LATE, DROPLESS_WEIGHTS_EARLY,
                               DROPLESS_WEIGHTS_INPUT};

// down(act(gate_up(scale_in * x)) * scale_hidden) for one token and one set of matrices.
Doubles expert(const LayerFixture& f, const double* x, const double* gate_up, const double* b1,
               const double* down, const double* b2, Index intermediate, double scale_in,
               double scale_hidden) {
  const Index width = f.activation.kind == DROPLESS_RELU2 ? intermediate : 2 * intermediate;
  Doubles a(width, 0.0), y(f.hidden, 0.0);
  for (Index o = 0; o < width; ++o) {
    for (Index h = 0; h < f.hidden; ++h) a[o] += gate_up[o * f.hidden + h] * x[h] * scale_in;
    if (b1 != nullptr) a[o] += b1[o];
  }
  for (Index i = 0; i < intermediate; ++i) {
    const double gate = a[f.activation.gate_up_layout == 0 ? i : width == intermediate ? i : 2 * i];
    const double up = width == intermediate              ? 0
                      : f.activation.gate_up_layout == 0 ? a[intermediate + i]
                                                         : a[2 * i + 1];
    const double h = activate(f.activation, gate, up).h * scale_hidden;
    for (Index o = 0; o < f.hidden; ++o) y[o] += down[o * intermediate + i] * h;
  }
  for (Index o = 0; o < f.hidden && b2 != nullptr; ++o) y[o] += b2[o];
  return y;
}

Doubles by_definition(const LayerFixture& f, const Routing& routing) {
  const Index width = f.activation.kind == DROPLESS_RELU2 ? f.intermediate : 2 * f.intermediate;
  Doubles y(f.tokens * f.hidden, 0.0);
  for (Index t = 0; t < f.tokens; ++t) {
    const double* x = f.x.data() + t * f.hidden;
    for (Index j = 0; j < f.route.top_k; ++j) {
      const Index e = routing.ids[t * f.route.top_k + j];
      if (e < 0) continue;
      const double w = routing.weights[t * f.route.top_k + j];
      const int placement = f.settings.weight_placement;
      const Doubles out = expert(f, x, &f.gate_up[e * width * f.hidden],
                                 f.gate_up_bias.empty() ? nullptr : &f.gate_up_bias[e * width],
                                 &f.down[e * f.hidden * f.intermediate],
                                 f.down_bias.empty() ? nullptr : &f.down_bias[e * f.hidden],
                                 f.intermediate, placement == DROPLESS_WEIGHTS_INPUT ? w : 1,
                                 placement == DROPLESS_WEIGHTS_EARLY ? w : 1);
      for (Index h = 0; h < f.hidden; ++h) {
        y[t * f.hidden + h] += (placement == DROPLESS_WEIGHTS_LATE ? w : 1) * out[h];
      }
    }
    if (f.shared_intermediate == 0) continue;
    double gate = 1;
    if (!f.shared_gate.empty()) {
      double z = 0;
      for (Index h = 0; h < f.hidden; ++h) z += x[h] * f.shared_gate[h];
      gate = 1 / (1 + std::exp(-z));
    }
    const Doubles out = expert(f, x, f.shared_gate_up.data(), nullptr, f.shared_down.data(),
                               nullptr, f.shared_intermediate, 1, 1);
    for (Index h = 0; h < f.hidden; ++h) y[t * f.hidden + h] += gate * out[h];
  }
  return y;
}

void expect_near(const Doubles& got, const Doubles& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}

TEST(Layer, ForwardByDefinition) {
  for (const int placement : kPlacements) {
    for (const int kind :
         {DROPLESS_SWIGLU, DROPLESS_SWIGLU_CLAMPED, DROPLESS_GEGLU_TANH, DROPLESS_RELU2}) {
      for (const Shared shared : {Shared::none, Shared::plain, Shared::gated}) {
        for (const int layout : {0, 1}) {
          LayerFixture f(7, placement, kind, shared);
          f.activation.gate_up_layout = layout;
          const LayerOutput output = f.forward();
          expect_near(output.y, by_definition(f, output.trace.routing), 1e-13);
        }
      }
    }
  }
}

TEST(Layer, LogitsAndRoutingAreTheRoutersOwn) {
  LayerFixture f(8);
  const LayerOutput output = f.forward();
  for (Index t = 0; t < f.tokens; ++t) {
    for (Index e = 0; e < LayerFixture::kExperts; ++e) {
      double logit = f.router_bias[e];
      for (Index h = 0; h < f.hidden; ++h) {
        logit += f.x[t * f.hidden + h] * f.router_weight[e * f.hidden + h];
      }
      EXPECT_NEAR(output.trace.logits[t * LayerFixture::kExperts + e], logit, 1e-14);
    }
  }
  Index routed = 0;
  for (const Index count : output.trace.routing.tokens_per_expert) routed += count;
  EXPECT_EQ(routed, f.tokens * LayerFixture::kTopK);
  EXPECT_EQ(output.trace.counts, output.trace.routing.tokens_per_expert);
}

TEST(Layer, LateAndEarlyAgreeWithoutSecondBias) {
  LayerFixture late(9, DROPLESS_WEIGHTS_LATE), early(9, DROPLESS_WEIGHTS_EARLY);
  EXPECT_GT(std::abs(late.forward().y[0] - early.forward().y[0]), 1e-3);  // with the bias
  late.down_bias.clear();
  early.down_bias.clear();
  const LayerOutput a = late.forward(), b = early.forward();
  expect_near(a.y, b.y, 1e-13);
  const Doubles d_y = test::RandomData(1).uniforms(static_cast<Index>(a.y.size()), -1, 1);
  const LayerGradient ga = late.backward(a.trace, d_y), gb = early.backward(b.trace, d_y);
  expect_near(ga.d_x, gb.d_x, 1e-13);
  expect_near(ga.router_weight, gb.router_weight, 1e-13);
  expect_near(ga.gate_up, gb.gate_up, 1e-13);
  expect_near(ga.down, gb.down, 1e-13);
}

TEST(Layer, NothingRouted) {
  for (const int placement : kPlacements) {
    for (const int cause : {0, 1, 2}) {  // no tokens, all ids -1, all tokens masked
      LayerFixture f(10, placement, DROPLESS_SWIGLU, Shared::gated);
      if (cause == 0) {
        f.tokens = 0;
        f.x.clear();
      } else if (cause == 1) {
        f.given_ids.assign(f.tokens * LayerFixture::kTopK, -1);
        f.expert_bias.clear();
      } else {
        f.token_mask.assign(f.tokens, 0);
      }
      const LayerOutput output = f.forward();
      EXPECT_TRUE(output.trace.rows.empty());
      expect_near(output.y, by_definition(f, output.trace.routing), 1e-13);  // shared expert only
      const LayerGradient gradient = f.backward(output.trace, Doubles(output.y.size(), 1.0));
      EXPECT_EQ(gradient.d_x.size(), f.x.size());
      EXPECT_EQ(gradient.router_weight, Doubles(f.router_weight.size(), 0.0));
      EXPECT_EQ(gradient.router_bias, Doubles(f.router_bias.size(), 0.0));
      EXPECT_EQ(gradient.expert_scale, Doubles(f.expert_scale.size(), 0.0));
      EXPECT_EQ(gradient.gate_up, Doubles(f.gate_up.size(), 0.0));
      EXPECT_EQ(gradient.gate_up_bias, Doubles(f.gate_up_bias.size(), 0.0));
      EXPECT_EQ(gradient.down, Doubles(f.down.size(), 0.0));
      EXPECT_EQ(gradient.down_bias, Doubles(f.down_bias.size(), 0.0));
      EXPECT_EQ(gradient.shared_gate_up.size(), f.shared_gate_up.size());

      f.shared_intermediate = 0;
      f.shared_gate.clear();
      const LayerOutput bare = f.forward();
      EXPECT_EQ(bare.y, Doubles(f.x.size(), 0.0));
      EXPECT_EQ(f.backward(bare.trace, Doubles(f.x.size(), 1.0)).d_x, Doubles(f.x.size(), 0.0));
    }
  }
}

TEST(Layer, ExpertsWithoutTokensHaveZeroGradients) {
  LayerFixture f(11);
  f.expert_bias = {0, -10, 0, 0};  // expert 1 is never selected
  f.profile.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
  const LayerOutput output = f.forward();
  EXPECT_EQ(output.trace.counts[1], 0);
  EXPECT_EQ(output.trace.offsets[2] - output.trace.offsets[1], 16);
  const LayerGradient g = f.backward(output.trace, Doubles(output.y.size(), 1.0));
  const Index up = 2 * f.intermediate * f.hidden;
  for (Index i = 0; i < up; ++i) EXPECT_EQ(g.gate_up[up + i], 0);
  for (Index i = 0; i < f.hidden; ++i) EXPECT_EQ(g.down_bias[f.hidden + i], 0);
  EXPECT_EQ(g.expert_scale[1], 0);
}

TEST(Layer, ProfileOfThePermutationChangesNoResult) {
  LayerFixture f(12, DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU, Shared::plain);
  const LayerOutput aligned = f.forward();
  f.profile.alignment = 1;
  const LayerOutput tight = f.forward();
  EXPECT_EQ(aligned.y, tight.y);
  const Doubles d_y(aligned.y.size(), 0.5);
  EXPECT_NE(aligned.trace.rows.size(), tight.trace.rows.size());
  const LayerGradient tight_gradient = f.backward(tight.trace, d_y);
  f.profile.alignment = 16;
  const LayerGradient aligned_gradient = f.backward(aligned.trace, d_y);
  EXPECT_EQ(aligned_gradient.d_x, tight_gradient.d_x);
  EXPECT_EQ(aligned_gradient.gate_up, tight_gradient.gate_up);
}

TEST(Layer, NanOfOneTokenStaysThere) {
  LayerFixture f(13, DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU, Shared::gated);
  const Doubles clean = f.forward().y;
  f.x[2 * f.hidden] = std::numeric_limits<double>::quiet_NaN();
  const Doubles dirty = f.forward().y;
  for (Index i = 0; i < f.tokens * f.hidden; ++i) {
    if (i / f.hidden == 2) {
      EXPECT_TRUE(std::isnan(dirty[i]));
    } else {
      EXPECT_EQ(dirty[i], clean[i]);
    }
  }
}

void expect_bf16(const Doubles& values) {
  for (const double value : values) EXPECT_EQ(value, round_to(DROPLESS_BF16, value));
}

TEST(Layer, StorageRoundsIntermediates) {
  for (const int placement : kPlacements) {
    LayerFixture f(14, placement, DROPLESS_SWIGLU, Shared::gated);
    const LayerOutput exact = f.forward();
    f.arithmetic.storage = DROPLESS_BF16;
    f.settings.logits_dtype = DROPLESS_BF16;
    const LayerOutput output = f.forward();
    for (std::size_t i = 0; i < exact.trace.logits.size(); ++i) {
      EXPECT_EQ(output.trace.logits[i], round_to(DROPLESS_BF16, exact.trace.logits[i]));
    }
    if (placement == DROPLESS_WEIGHTS_INPUT) expect_bf16(output.trace.rows);
    expect_bf16(output.trace.gate_up);
    expect_bf16(output.trace.hidden);
    expect_bf16(output.trace.expert_out);
    expect_bf16(output.trace.shared_gate_up);
    expect_bf16(output.trace.shared_hidden);
    expect_bf16(output.trace.shared_out);
    EXPECT_NE(output.trace.gate_up, exact.trace.gate_up);
    expect_near(output.y, exact.y, 0.1);  // a few bf16 roundings of numbers around 1
    const Doubles d_y(output.y.size(), 1.0);
    expect_near(f.backward(output.trace, d_y).gate_up,
                LayerFixture(14, placement, DROPLESS_SWIGLU, Shared::gated)
                    .backward(exact.trace, d_y)
                    .gate_up,
                0.1);
  }
}

TEST(Layer, Refusals) {
  const auto refused = [](auto change) {
    LayerFixture f(15, DROPLESS_WEIGHTS_LATE, DROPLESS_SWIGLU, Shared::gated);
    change(f);
    try {
      static_cast<void>(f.forward());
      return false;
    } catch (const Refused&) {
      return true;
    }
  };
  EXPECT_FALSE(refused([](LayerFixture&) {}));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.settings.weight_placement = 3; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.settings.recipe = 2; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.settings.recipe = DROPLESS_RECIPE_MXFP8; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.settings.logits_dtype = DROPLESS_E4M3; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.x.pop_back(); }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.down.pop_back(); }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.gate_up_bias.pop_back(); }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.shared_gate.pop_back(); }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.shared_intermediate = 0; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.route.top_k = 5; }));
  EXPECT_TRUE(refused([](LayerFixture& f) { f.given_ids.assign(12, 1); }));
}

}  // namespace
}  // namespace dropless::reference
