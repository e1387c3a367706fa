// SPDX-License-Identifier: Apache-2.0
// Activation: formulas in long double, extremes, layouts, padding.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

using Values = std::vector<double>;
constexpr double largest = std::numeric_limits<float>::max();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

dropless_activation_settings settings_of(int kind) {
  auto s = make_args<dropless_activation_settings>();
  s.kind = kind;
  s.limit = 7, s.alpha = 1.702, s.offset = 1;
  return s;
}

long double formula(int kind, long double g, long double u) {
  const auto sigmoid = [](long double x) { return 1 / (1 + std::exp(-x)); };
  switch (kind) {
    case DROPLESS_SWIGLU:
      return g * sigmoid(g) * u;
    case DROPLESS_SWIGLU_CLAMPED: {
      const long double gate = std::min(g, 7.0L), up = std::min(std::max(u, -7.0L), 7.0L);
      return gate * sigmoid(1.702L * gate) * (up + 1);
    }
    case DROPLESS_GEGLU_TANH:
      return 0.5L * g *
             (1 + std::tanh(std::sqrt(2 / std::acos(-1.0L)) * (g + 0.044715L * g * g * g))) * u;
    default:
      return g > 0 ? g * g : 0;
  }
}

Values forward(const dropless_activation_settings& settings, const Array& x, Index width) {
  const Array h(DROPLESS_FP32, {x.get()->shape[0], width});
  auto args = make_args<dropless_activation_args>();
  args.settings = &settings, args.x = x.get(), args.h = h.get();
  const Outcome outcome = perform(implementation().activation_forward, args);
  EXPECT_EQ(outcome.status, DROPLESS_OK) << outcome.message;
  return h.values();
}

TEST(Activation, FormulasAndDerivatives) {
  for (int kind = DROPLESS_SWIGLU; kind <= DROPLESS_RELU2; ++kind) {
    const auto settings = settings_of(kind);
    const Index rows = 3, width = 300, factor = kind == DROPLESS_RELU2 ? 1 : 2;
    const Array x = Array(DROPLESS_FP32, {rows, factor * width}).random(1, 4);
    const Array dh = Array(DROPLESS_FP32, {rows, width}).random(2);
    const Array d_x(DROPLESS_FP32, {rows, factor * width});
    const Values h = forward(settings, x, width);
    auto args = make_args<dropless_activation_backward_args>();
    args.settings = &settings, args.x = x.get(), args.dh = dh.get(), args.d_x = d_x.get();
    ASSERT_EQ(perform(implementation().activation_backward, args).status, DROPLESS_OK);
    for (Index i = 0; i < rows * width; ++i) {
      const Index row = i / width, column = i % width;
      const double g = x.view().load(row, column);
      const double u = factor == 2 ? x.view().load(row, width + column) : 0;
      const auto expected = static_cast<double>(formula(kind, g, u));
      // tanh near -1 loses digits even in long double: the formula of the test does, not ours.
      const double slack = 1e-7 * std::abs(expected) + 1e-18 * std::abs(g * u);
      EXPECT_NEAR(h[static_cast<std::size_t>(i)], expected, slack);
      constexpr long double step = 1e-6L;
      if (kind == DROPLESS_SWIGLU_CLAMPED && (std::abs(g - 7) < 1e-4 || std::abs(u) > 7 - 1e-4)) {
        continue;  // at the limit any of both slopes is right
      }
      const long double slope =
          (formula(kind, g + step, u) - formula(kind, g - step, u)) / (2 * step);
      EXPECT_NEAR(d_x.view().load(row, column), dh.at(i) * static_cast<double>(slope),
                  1e-5 * (1 + std::abs(g) + std::abs(u)));
    }
  }
}

TEST(Activation, ExtremesStayFinite) {
  for (int kind = DROPLESS_SWIGLU; kind <= DROPLESS_GEGLU_TANH; ++kind) {
    const Array x =
        Array(DROPLESS_FP32, {4, 2}).set({-largest, 1, 0, largest, -1e4, largest, 1e4, 1e30});
    const Values h = forward(settings_of(kind), x, 1);
    const Array dh = Array(DROPLESS_FP32, {4, 1}).fill(1e-30), d_x(DROPLESS_FP32, {4, 2});
    const auto settings = settings_of(kind);
    auto args = make_args<dropless_activation_backward_args>();
    args.settings = &settings, args.x = x.get(), args.dh = dh.get(), args.d_x = d_x.get();
    ASSERT_EQ(perform(implementation().activation_backward, args).status, DROPLESS_OK);
    for (const double value : h) EXPECT_TRUE(std::isfinite(value)) << kind;
    for (const double value : d_x.values()) EXPECT_TRUE(std::isfinite(value)) << kind;
  }
}

TEST(Activation, NanPassesTheClamp) {
  const Array x = Array(DROPLESS_FP32, {2, 2}).set({nan, 1, 1, nan});
  for (const double value : forward(settings_of(DROPLESS_SWIGLU_CLAMPED), x, 1)) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Activation, InterleavedIsTheSameInOtherColumns) {
  const Array x = Array(DROPLESS_FP32, {2, 6}).random(3);
  Array mixed(DROPLESS_FP32, {2, 6});
  for (Index row = 0; row < 2; ++row) {
    for (Index i = 0; i < 3; ++i) {
      mixed.view().store(x.view().load(row, i), row, 2 * i);
      mixed.view().store(x.view().load(row, 3 + i), row, 2 * i + 1);
    }
  }
  auto interleaved = settings_of(DROPLESS_SWIGLU);
  interleaved.gate_up_layout = DROPLESS_GATE_UP_INTERLEAVED;
  EXPECT_EQ(forward(interleaved, mixed, 3), forward(settings_of(DROPLESS_SWIGLU), x, 3));
}

TEST(Activation, EarlyWeightsPaddingAndTail) {
  const Array x = Array(DROPLESS_FP32, {3, 1}).set({2, nan, 5});
  const Array weights = Array(DROPLESS_FP32, {3}).set({0.5, nan, 1});
  const Array offsets = Array(DROPLESS_I64, {2}).set({0, 2});
  const Array counts = Array(DROPLESS_I64, {1}).set({1});
  const Array h = Array(DROPLESS_BF16, {3, 1}).fill(9), d_x = Array(DROPLESS_BF16, {3, 1}).fill(9);
  const Array dh = Array(DROPLESS_FP32, {3, 1}).set({3, nan, 1});
  const Array d_weights = Array(DROPLESS_FP32, {3}).fill(9);
  const auto settings = settings_of(DROPLESS_RELU2);
  auto forward_args = make_args<dropless_activation_args>();
  forward_args.settings = &settings, forward_args.x = x.get(), forward_args.h = h.get();
  forward_args.row_weights = weights.get(), forward_args.offsets = offsets.get();
  forward_args.counts = counts.get();
  ASSERT_EQ(perform(implementation().activation_forward, forward_args).status, DROPLESS_OK);
  EXPECT_EQ(h.values(), (Values{2, 0, 9}));
  auto args = make_args<dropless_activation_backward_args>();
  args.settings = &settings, args.x = x.get(), args.dh = dh.get(), args.d_x = d_x.get();
  args.row_weights = weights.get(), args.d_row_weights = d_weights.get();
  args.offsets = offsets.get(), args.counts = counts.get();
  ASSERT_EQ(perform(implementation().activation_backward, args).status, DROPLESS_OK);
  EXPECT_EQ(d_x.values(), (Values{3 * 0.5 * 4, 0, 9}));
  EXPECT_EQ(d_weights.values(), (Values{12, 0, 9}));
}

}  // namespace
}  // namespace dropless::cpu::testing
