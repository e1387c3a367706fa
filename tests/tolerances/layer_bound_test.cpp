// SPDX-License-Identifier: Apache-2.0
// The bound of a layer: its values are those of the reference, and nothing has no error.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tolerances/measure/judged_layer.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

TEST(LayerBound, ItsValuesAreThoseOfTheReference) {
  for (const LayerKind& setup : layer_kinds()) {
    const JudgedLayer layer(setup, 3);
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

TEST(LayerBound, ExpertsWithoutTokensHaveNoError) {
  LayerKind setup = layer_kinds()[3];
  setup.shape.tokens = 1;  // 2 of 6 experts
  const JudgedLayer layer(setup, 5);
  const Index per_expert = setup.shape.hidden * setup.shape.intermediate;
  for (Index e = 0; e < setup.shape.num_experts; ++e) {
    const auto count = layer.reference.trace.counts[static_cast<std::size_t>(e)];
    const double error = layer.backward.down.error[static_cast<std::size_t>(e * per_expert)];
    EXPECT_EQ(error == 0, count == 0) << e;
  }
}

TEST(LayerBound, NoTokens) {
  LayerKind setup = layer_kinds()[0];
  setup.shape.tokens = 0;
  const JudgedLayer layer(setup, 6);
  EXPECT_EQ(layer.forward.y.size(), 0u);
  for (const double error : layer.backward.gate_up.error) EXPECT_EQ(error, 0);
  for (const double error : layer.backward.router_weight.error) EXPECT_EQ(error, 0);
}

// ---- over ranks ("Over ranks" in derivations.md)

LayerForward forward_over_ranks(const LayerKind& setup, const JudgedLayer& layer,
                                const dropless_profile& profile, bool over_ranks) {
  const auto& trace = layer.reference.trace;
  const LayerCall call{
      layer.data.settings, profile,
      layer.data.model(),  {trace.routing.ids, trace.offsets, trace.counts, trace.source},
      layer.data.tokens,   layer.data.x,
      setup.storage,       setup.storage == DROPLESS_FP32 ? Operands::fp32 : Operands::bf16,
      over_ranks};
  return layer_forward(call);
}

TEST(LayerBound, RanksAloneAddNothing) {
  const LayerKind& setup = layer_kinds()[3];
  const JudgedLayer layer(setup, 3);
  dropless_profile profile = layer.data.profile;
  profile.dispatch_layout = DROPLESS_DISPATCH_FLAT;
  EXPECT_EQ(forward_over_ranks(setup, layer, profile, true).y.error,
            forward_over_ranks(setup, layer, profile, false).y.error);
  profile.combine_rounding = DROPLESS_COMBINE_ROUNDS_PER_RANK;
  EXPECT_EQ(forward_over_ranks(setup, layer, profile, false).y.error, layer.forward.y.error);
}

// Experts below E / 2 are on one rank, the others on the other; the shared expert is left out.
TEST(LayerBound, DeclaredRoundingsOfRanksAddLittleMoreThanTheyDo) {
  LayerKind setup = layer_kinds()[3];
  setup.shape.shared_intermediate = 0;
  const JudgedLayer layer(setup, 4);
  const auto& trace = layer.reference.trace;
  dropless_profile profile = layer.data.profile;
  profile.dispatch_layout = DROPLESS_DISPATCH_FLAT;
  const auto plain = forward_over_ranks(setup, layer, profile, true);
  profile.combine_rounding = DROPLESS_COMBINE_ROUNDS_PER_RANK;
  const auto declared = forward_over_ranks(setup, layer, profile, true);
  const Index hidden = setup.shape.hidden, half = setup.shape.num_experts / 2;
  Doubles sums[2] = {Doubles(layer.reference.y.size(), 0.0),
                     Doubles(layer.reference.y.size(), 0.0)};
  for (std::size_t r = 0; r < trace.source.size(); ++r) {
    const Index pair = trace.source[r];
    if (pair < 0) continue;
    const auto p = static_cast<std::size_t>(pair);
    for (Index h = 0; h < hidden; ++h) {
      const auto to = static_cast<std::size_t>(pair / layer.data.route.top_k * hidden + h);
      sums[trace.routing.ids[p] < half ? 0 : 1][to] +=
          trace.routing.weights[p] *
          trace.expert_out[r * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(h)];
    }
  }
  double done = 0, added = 0;
  for (std::size_t i = 0; i < layer.reference.y.size(); ++i) {
    const double y = round_to(DROPLESS_BF16, sums[0][i]) + round_to(DROPLESS_BF16, sums[1][i]);
    EXPECT_LE(std::abs(y - layer.reference.y[i]), declared.y.error[i]) << i;
    EXPECT_GT(declared.y.error[i], plain.y.error[i]) << i;
    added += declared.y.error[i] - plain.y.error[i];
    for (const Doubles& sum : sums) done += 0.5 * ulp(DROPLESS_BF16, sum[i]);
  }
  EXPECT_LT(added, 2.5 * done) << "of the worst that one rounding does";
  EXPECT_GT(added, done);
}

}  // namespace
}  // namespace dropless::tolerances
