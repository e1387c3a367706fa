// SPDX-License-Identifier: Apache-2.0
// The reference activations against hand-computed values, their literal formulas, finite
// differences, and the rules about extremes, NaN and the clamp's limits.
#include "reference/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/random_data.h"

namespace dropless::reference {
namespace {

constexpr int kKinds[] = {DROPLESS_SWIGLU, DROPLESS_SWIGLU_CLAMPED, DROPLESS_GEGLU_TANH,
                          DROPLESS_RELU2};
constexpr int kLayouts[] = {DROPLESS_GATE_UP_CONCATENATED, DROPLESS_GATE_UP_INTERLEAVED};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

dropless_activation_settings settings_with(int kind, int layout = DROPLESS_GATE_UP_CONCATENATED,
                                           double limit = 7, double alpha = 1.702,
                                           double offset = 1) {
  dropless_activation_settings settings{};
  settings.struct_size = sizeof settings;
  settings.struct_version = DROPLESS_STRUCT_VERSION;
  settings.kind = kind;
  settings.gate_up_layout = layout;
  settings.limit = limit;
  settings.alpha = alpha;
  settings.offset = offset;
  return settings;
}

TEST(Activation, ByHand) {
  const auto swiglu = settings_with(DROPLESS_SWIGLU);
  EXPECT_NEAR(activate(swiglu, 1, 2).h, 2 * 0.7310585786300049, 1e-15);
  EXPECT_NEAR(activate(swiglu, -2, 3).h, 3 * -0.2384058440442351, 1e-15);
  EXPECT_NEAR(activate(swiglu, 0, 3).d_gate, 1.5, 1e-15);
  EXPECT_EQ(activate(swiglu, 0, 3).h, 0);

  const auto gpt_oss = settings_with(DROPLESS_SWIGLU_CLAMPED);
  const double held = 7 / (1 + std::exp(-1.702 * 7));
  EXPECT_NEAR(activate(gpt_oss, 10, -9).h, held * (-7 + 1), 1e-13);
  EXPECT_NEAR(activate(gpt_oss, 7.5, 8).h, held * (7 + 1), 1e-13);
  EXPECT_NEAR(activate(gpt_oss, -20, 0.5).h, -20 / (1 + std::exp(34.04)) * 1.5, 1e-20);
  EXPECT_EQ(activate(gpt_oss, 10, 0.5).d_gate, 0);
  EXPECT_NE(activate(gpt_oss, 10, 0.5).d_up, 0);
  EXPECT_EQ(activate(gpt_oss, 1, 7.5).d_up, 0);
  EXPECT_EQ(activate(gpt_oss, 1, -7.5).d_up, 0);
  EXPECT_NE(activate(gpt_oss, 1, -7.5).d_gate, 0);
  const auto deepseek = settings_with(DROPLESS_SWIGLU_CLAMPED, 0, 10, 1, 0);
  EXPECT_EQ(activate(deepseek, 3, 4).h, activate(swiglu, 3, 4).h);

  const auto geglu = settings_with(DROPLESS_GEGLU_TANH);
  EXPECT_NEAR(activate(geglu, 1, 1).h, 0.8411919906082768, 1e-15);
  EXPECT_NEAR(activate(geglu, -1, 2).h, 2 * -0.15880800939172324, 1e-15);

  const auto relu2 = settings_with(DROPLESS_RELU2);
  EXPECT_EQ(activate(relu2, 3, kNan).h, 9);
  EXPECT_EQ(activate(relu2, 3, 0).d_gate, 6);
  EXPECT_EQ(activate(relu2, -3, 0).h, 0);
  EXPECT_EQ(activate(relu2, 0, 0).d_gate, 0);
}

// The formulas as the clause prints them, in long double.
long double literal(const dropless_activation_settings& s, long double g, long double u) {
  const auto sigmoid = [](long double x) { return 1 / (1 + std::exp(-x)); };
  switch (s.kind) {
    case DROPLESS_SWIGLU:
      return g / (1 + std::exp(-g)) * u;
    case DROPLESS_SWIGLU_CLAMPED: {
      const long double limit = s.limit;
      g = std::min(g, limit);
      u = std::min(std::max(u, -limit), limit);
      return g * sigmoid(static_cast<long double>(s.alpha) * g) * (u + s.offset);
    }
    case DROPLESS_GEGLU_TANH: {
      const long double c = std::sqrt(2 / 3.14159265358979323846264338327950288L);
      return 0.5L * g * (1 + std::tanh(c * (g + 0.044715L * g * g * g))) * u;
    }
    default:
      return g > 0 ? g * g : 0;
  }
}

TEST(Activation, LiteralFormulas) {
  test::RandomData random(1);
  for (const int kind : kKinds) {
    const auto settings = settings_with(kind, 0, 2.5);
    for (int i = 0; i < 2000; ++i) {
      const double g = random.uniform(-5, 5), u = random.uniform(-5, 5);
      const auto expected = static_cast<double>(literal(settings, g, u));
      EXPECT_NEAR(activate(settings, g, u).h, expected, 1e-14 * std::abs(expected) + 1e-17)
          << kind << " " << g << " " << u;
    }
  }
}

TEST(Activation, ColumnsOfBothLayouts) {
  const auto concatenated = settings_with(DROPLESS_SWIGLU);
  const auto interleaved = settings_with(DROPLESS_SWIGLU, DROPLESS_GATE_UP_INTERLEAVED);
  const Doubles x = {1, 2, 3, 10, 20, 30};
  const Doubles h = activation(concatenated, 1, 3, x);
  const Doubles h_interleaved = activation(interleaved, 1, 3, Doubles{1, 10, 2, 20, 3, 30});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(h[i], activate(concatenated, x[i], x[3 + i]).h);
    EXPECT_EQ(h_interleaved[i], h[i]);
  }
  EXPECT_EQ(activation(settings_with(DROPLESS_RELU2), 2, 3, x), (Doubles{1, 4, 9, 100, 400, 900}));
  EXPECT_EQ(gate_up_columns(settings_with(DROPLESS_RELU2), 3, 2).up, -1);
}

TEST(Activation, BackwardIsTheDerivative) {
  test::RandomData random(2);
  constexpr Index kRows = 6, kWidth = 5;
  for (const int kind : kKinds) {
    for (const int layout : kLayouts) {
      for (const bool weighted : {false, true}) {
        const auto settings = settings_with(kind, layout, 1.25, 1.702, 0.75);
        const Index columns = kind == DROPLESS_RELU2 ? kWidth : 2 * kWidth;
        Doubles x = random.uniforms(kRows * columns, -3, 3);
        Doubles weights = weighted ? random.uniforms(kRows, -1, 1) : Doubles();
        const Doubles dh = random.uniforms(kRows * kWidth, -1, 1);
        const auto loss = [&] {
          return test::inner_product(activation(settings, kRows, kWidth, x, weights), dh);
        };
        const auto gradient = activation_backward(settings, kRows, kWidth, x, dh, weights);
        const std::string name = "kind " + std::to_string(kind);
        test::expect_gradient(loss, x, gradient.d_x, name + " d_x");
        test::expect_gradient(loss, weights, gradient.d_row_weights.value, name + " d_w");
      }
    }
  }
}

TEST(Activation, EarlyWeightGradientIsOfTheUnweightedValue) {
  const auto settings = settings_with(DROPLESS_RELU2);
  const auto gradient =
      activation_backward(settings, 1, 2, Doubles{2, 3}, Doubles{1, -1}, Doubles{0.5});
  EXPECT_EQ(gradient.d_row_weights.value, Doubles{4 - 9});
  EXPECT_EQ(gradient.d_row_weights.gauge, Doubles{4 + 9});
  EXPECT_EQ(gradient.d_x, (Doubles{2, -3}));
  EXPECT_EQ(activation(settings, 1, 2, Doubles{2, 3}, Doubles{0.5}), (Doubles{2, 4.5}));
}

TEST(Activation, FiniteInputsNeverGiveNan) {
  const double values[] = {0.0,
                           -0.0,
                           0x1p-149,
                           -0x1p-149,
                           1,
                           -1,
                           30,
                           -30,
                           88.8,
                           -88.8,
                           104,
                           -104,
                           745,
                           -745,
                           1e5,
                           -1e5,
                           1e19,
                           -1e19,
                           1e38,
                           -1e38,
                           0x1.fffffep127,
                           -0x1.fffffep127};
  for (const int kind : kKinds) {
    const auto settings = settings_with(kind);
    for (const double g : values) {
      for (const double u : values) {
        const ActivationPoint point = activate(settings, g, u);
        EXPECT_TRUE(std::isfinite(point.h)) << kind << " " << g << " " << u;
        EXPECT_TRUE(std::isfinite(point.d_gate)) << kind << " " << g << " " << u;
        EXPECT_TRUE(std::isfinite(point.d_up)) << kind << " " << g << " " << u;
      }
    }
  }
  EXPECT_EQ(activate(settings_with(DROPLESS_SWIGLU), -0x1.fffffep127, 5).h, 0);
  EXPECT_EQ(activate(settings_with(DROPLESS_SWIGLU), 1e38, 3).h, 3e38);
}

TEST(Activation, NanPassesThroughTheClamp) {
  for (const int kind : kKinds) {
    const auto settings = settings_with(kind);
    for (const double other : {-9.0, 1.0, 9.0}) {
      EXPECT_TRUE(std::isnan(activate(settings, kNan, other).h)) << kind;
      EXPECT_TRUE(std::isnan(activate(settings, kNan, other).d_gate)) << kind;
      if (kind == DROPLESS_RELU2) continue;
      EXPECT_TRUE(std::isnan(activate(settings, other, kNan).h)) << kind;
    }
    const Index columns = kind == DROPLESS_RELU2 ? 2 : 4;
    Doubles x(2 * columns, 1.0);
    x[0] = kNan;
    const Doubles h = activation(settings, 2, 2, x);
    EXPECT_TRUE(std::isnan(h[0]));
    EXPECT_TRUE(std::isfinite(h[1]) && std::isfinite(h[2]) && std::isfinite(h[3]));
  }
}

TEST(Activation, SlopeAtTheLimitIsOneOfTheSides) {
  const auto settings = settings_with(DROPLESS_SWIGLU_CLAMPED);
  const double limit = settings.limit;
  const ActivationPoint at = activate(settings, limit, limit);
  const ActivationPoint inside = activate(settings, limit - 1e-9, limit - 1e-9);
  EXPECT_NEAR(at.d_gate, inside.d_gate, 1e-6);
  EXPECT_NEAR(at.d_up, inside.d_up, 1e-6);
  EXPECT_EQ(activate(settings, limit + 1e-9, limit + 1e-9).d_gate, 0);
  EXPECT_EQ(activate(settings, limit + 1e-9, limit + 1e-9).d_up, 0);
}

TEST(Activation, SizesAndRefusals) {
  EXPECT_TRUE(activation(settings_with(DROPLESS_SWIGLU), 0, 4, {}).empty());
  EXPECT_THROW(activation(settings_with(DROPLESS_SWIGLU), 1, 4, Doubles(4)), Refused);
  EXPECT_THROW(activation(settings_with(DROPLESS_SWIGLU), 1, 2, Doubles(4), Doubles(2)), Refused);
  EXPECT_THROW(activation(settings_with(9), 1, 2, Doubles(4)), Refused);
  EXPECT_THROW(activation(settings_with(DROPLESS_SWIGLU, 7), 1, 2, Doubles(4)), Refused);
  EXPECT_THROW(activation_backward(settings_with(DROPLESS_SWIGLU), 1, 2, Doubles(4), Doubles(3)),
               Refused);
}

}  // namespace
}  // namespace dropless::reference
