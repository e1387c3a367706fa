// SPDX-License-Identifier: Apache-2.0
// The bound of a layer: its values are those of the reference, and nothing has no error.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tolerances/measure/judged_layer.h"

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

}  // namespace
}  // namespace dropless::tolerances
