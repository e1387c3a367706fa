// SPDX-License-Identifier: Apache-2.0
// The MXFP8 recipe of the reference layer (LAYER-2) against its composition, spelled out: blocks
// found by hand, plain loops for every product, router and combine in full precision.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "reference/activation.h"
#include "reference/mxfp8.h"
#include "tests/reference/layer_fixture.h"

namespace dropless::reference {
namespace {

using test::LayerFixture;
using test::Shared;

// Rows of one expert: a matrix [rows, columns].
struct Matrix {
  Index rows, columns;
  Doubles values;
  double& operator()(Index r, Index c) { return values[r * columns + c]; }
  double operator()(Index r, Index c) const { return values[r * columns + c]; }
};

Matrix zeros(Index rows, Index columns) {
  return {rows, columns, Doubles(static_cast<std::size_t>(rows * columns), 0.0)};
}
Matrix slice(const Doubles& values, Index begin, Index rows, Index columns) {
  const auto first = values.begin() + begin;
  return {rows, columns, Doubles(first, first + rows * columns)};
}
Matrix transposed(const Matrix& a) {
  Matrix t = zeros(a.columns, a.rows);
  for (Index r = 0; r < a.rows; ++r) {
    for (Index c = 0; c < a.columns; ++c) t(c, r) = a(r, c);
  }
  return t;
}
// a b^T
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix y = zeros(a.rows, b.rows);
  for (Index r = 0; r < a.rows; ++r) {
    for (Index o = 0; o < b.rows; ++o) {
      for (Index k = 0; k < a.columns; ++k) y(r, o) += a(r, k) * b(o, k);
    }
  }
  return y;
}
// Blocks of 32 along the columns, the contraction axis of product().
Matrix quantised(Matrix a, dropless_dtype format) {
  for (Index r = 0; r < a.rows; ++r) {
    for (Index begin = 0; begin < a.columns; begin += kBlock) {
      const Index end = std::min(begin + kBlock, a.columns);
      double amax = 0;
      for (Index c = begin; c < end; ++c) amax = std::max(amax, std::abs(a(r, c)));
      const std::uint8_t byte = scale_byte(amax, format, DROPLESS_SCALE_RCEIL);
      for (Index c = begin; c < end; ++c)
        a(r, c) = decode(encode(a(r, c), byte, format), byte, format);
    }
  }
  return a;
}
Matrix add_row(Matrix a, const double* bias) {
  for (Index r = 0; r < a.rows && bias != nullptr; ++r) {
    for (Index c = 0; c < a.columns; ++c) a(r, c) += bias[c];
  }
  return a;
}

struct Expected {
  Matrix y;                  // [rows,H]
  Matrix d_x, d_up, d_down;  // from d_out
  Doubles d_weights;         // of early placement
};

// One expert on the rows that it got, forward and backward.
Expected expert(const LayerFixture& f, const Matrix& x, const Matrix& w1, const double* b1,
                const Matrix& w2, const double* b2, const Doubles& early, const Matrix& d_out) {
  const dropless_dtype e4m3 = DROPLESS_E4M3;
  const dropless_dtype gradient = f.settings.gradient_format;
  const Matrix a = add_row(product(quantised(x, e4m3), quantised(w1, e4m3)), b1);
  const Matrix h{a.rows, w2.columns, activation(f.activation, a.rows, w2.columns, a.values, early)};
  Expected result{add_row(product(quantised(h, e4m3), quantised(w2, e4m3)), b2), {}, {}, {}, {}};
  // dgrad contracts over the output columns, wgrad over the rows of the expert.
  const Matrix d_h = product(quantised(d_out, gradient), quantised(transposed(w2), e4m3));
  result.d_down = product(quantised(transposed(d_out), gradient), quantised(transposed(h), e4m3));
  const ActivationGradient act =
      activation_backward(f.activation, a.rows, w2.columns, a.values, d_h.values, early);
  const Matrix d_a{a.rows, a.columns, act.d_x};
  result.d_x = product(quantised(d_a, gradient), quantised(transposed(w1), e4m3));
  result.d_up = product(quantised(transposed(d_a), gradient), quantised(transposed(x), e4m3));
  result.d_weights = act.d_row_weights.value;
  return result;
}

void expect_slice(const Doubles& got, Index begin, const Matrix& expected, const char* name) {
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_NEAR(got[begin + i], expected.values[i], 1e-12) << name << " " << i;
  }
}

// Magnitudes over many binades: blocks that share elements in different directions or with other
// experts get different scales, so that a block in the wrong place shows.
void spread(test::RandomData& random, Doubles& values) {
  for (double& value : values) {
    value = std::ldexp(value, static_cast<int>(random.integer(-14, 0)));
  }
}

LayerFixture mxfp8_layer(int placement, dropless_dtype gradient_format, Shared shared) {
  // 40 columns: a whole and a partial block; 33 in the middle.
  LayerFixture f(41, placement, DROPLESS_SWIGLU, shared, 40, 33);
  f.settings.recipe = DROPLESS_RECIPE_MXFP8;
  f.settings.gradient_format = gradient_format;
  test::RandomData random(42);
  for (Doubles* values : {&f.x, &f.gate_up, &f.down, &f.shared_gate_up, &f.shared_down}) {
    spread(random, *values);
  }
  return f;
}

class Mxfp8Layer : public testing::TestWithParam<std::tuple<int, dropless_dtype>> {};

TEST_P(Mxfp8Layer, IsTheComposition) {
  const auto [placement, gradient_format] = GetParam();
  LayerFixture f = mxfp8_layer(placement, gradient_format, Shared::plain);
  const Index hidden = f.hidden, inner = f.intermediate, width = 2 * inner;
  const LayerOutput output = f.forward();
  const LayerTrace& trace = output.trace;
  test::RandomData random(2);
  Doubles d_y = random.uniforms(f.tokens * hidden, -1, 1);
  spread(random, d_y);
  const LayerGradient got = f.backward(trace, d_y);

  Doubles y(output.y.size(), 0.0), d_x(output.y.size(), 0.0);
  Doubles d_weights(trace.routing.weights.size(), 0.0);
  const auto add_to = [&](Doubles& to, Index token, const Matrix& rows, Index r, double factor) {
    for (Index h = 0; h < hidden; ++h) to[token * hidden + h] += factor * rows(r, h);
  };
  for (Index e = 0; e < LayerFixture::kExperts; ++e) {
    std::vector<Index> pairs;
    for (std::size_t p = 0; p < trace.routing.ids.size(); ++p) {
      if (trace.routing.ids[p] == e) pairs.push_back(static_cast<Index>(p));
    }
    const Index rows = static_cast<Index>(pairs.size());
    Matrix x = zeros(rows, hidden), d_out = zeros(rows, hidden);
    Doubles early;
    const auto weight = [&](Index r) { return trace.routing.weights[pairs[r]]; };
    for (Index r = 0; r < rows; ++r) {
      const Index token = pairs[r] / f.route.top_k;
      for (Index h = 0; h < hidden; ++h) {
        x(r, h) = f.x[token * hidden + h] * (placement == DROPLESS_WEIGHTS_INPUT ? weight(r) : 1);
        d_out(r, h) =
            d_y[token * hidden + h] * (placement == DROPLESS_WEIGHTS_LATE ? weight(r) : 1);
      }
      if (placement == DROPLESS_WEIGHTS_EARLY) early.push_back(weight(r));
    }
    const Matrix w1 = slice(f.gate_up, e * width * hidden, width, hidden);
    const Matrix w2 = slice(f.down, e * hidden * inner, hidden, inner);
    const Expected expected =
        expert(f, x, w1, &f.gate_up_bias[e * width], w2, &f.down_bias[e * hidden], early, d_out);
    expect_slice(got.gate_up, e * width * hidden, expected.d_up, "gate_up");
    expect_slice(got.down, e * hidden * inner, expected.d_down, "down");
    Matrix d_bias = zeros(1, hidden);  // not quantised
    for (Index r = 0; r < rows; ++r) {
      for (Index h = 0; h < hidden; ++h) d_bias(0, h) += d_out(r, h);
    }
    expect_slice(got.down_bias, e * hidden, d_bias, "down_bias");
    for (Index r = 0; r < rows; ++r) {
      const Index token = pairs[r] / f.route.top_k;
      add_to(y, token, expected.y, r, placement == DROPLESS_WEIGHTS_LATE ? weight(r) : 1);
      add_to(d_x, token, expected.d_x, r, placement == DROPLESS_WEIGHTS_INPUT ? weight(r) : 1);
      double& d_weight = d_weights[pairs[r]];
      if (placement == DROPLESS_WEIGHTS_EARLY) d_weight = expected.d_weights[r];
      for (Index h = 0; h < hidden; ++h) {
        const Index i = token * hidden + h;
        if (placement == DROPLESS_WEIGHTS_LATE) d_weight += d_y[i] * expected.y(r, h);
        if (placement == DROPLESS_WEIGHTS_INPUT) d_weight += f.x[i] * expected.d_x(r, h);
      }
    }
  }
  // The shared expert is an expert too: its operands are quantised, all tokens are one group.
  const Matrix x = slice(f.x, 0, f.tokens, hidden);
  const Matrix shared_up = slice(f.shared_gate_up, 0, 2 * f.shared_intermediate, hidden);
  const Matrix shared_down = slice(f.shared_down, 0, hidden, f.shared_intermediate);
  const Expected shared =
      expert(f, x, shared_up, nullptr, shared_down, nullptr, {}, slice(d_y, 0, f.tokens, hidden));
  expect_slice(got.shared_gate_up, 0, shared.d_up, "shared_gate_up");
  expect_slice(got.shared_down, 0, shared.d_down, "shared_down");
  // The router is not quantised.
  const RoutingGradient router = route_backward(
      f.route, {f.tokens, trace.logits, {}, f.expert_scale, trace.routing.ids, d_weights});
  const Matrix d_logits{f.tokens, LayerFixture::kExperts, router.d_logits.value};
  const Matrix w_router{LayerFixture::kExperts, hidden, f.router_weight};
  const Matrix router_d_x = product(d_logits, transposed(w_router));
  for (Index t = 0; t < f.tokens; ++t) {
    add_to(y, t, shared.y, t, 1);
    add_to(d_x, t, shared.d_x, t, 1);
    add_to(d_x, t, router_d_x, t, 1);
  }
  expect_slice(output.y, 0, slice(y, 0, f.tokens, hidden), "y");
  expect_slice(got.d_x, 0, slice(d_x, 0, f.tokens, hidden), "d_x");
  expect_slice(got.router_weight, 0, product(transposed(d_logits), transposed(x)), "router_weight");
}

INSTANTIATE_TEST_SUITE_P(Models, Mxfp8Layer,
                         testing::Combine(testing::Values(DROPLESS_WEIGHTS_LATE,
                                                          DROPLESS_WEIGHTS_EARLY,
                                                          DROPLESS_WEIGHTS_INPUT),
                                          testing::Values(DROPLESS_E4M3, DROPLESS_E5M2)));

TEST(Mxfp8Recipe, DiffersFromThePlainOneAndByGradientFormat) {
  LayerFixture f = mxfp8_layer(DROPLESS_WEIGHTS_LATE, DROPLESS_E4M3, Shared::none);
  const LayerOutput quantised_output = f.forward();
  const Doubles d_y = test::RandomData(3).uniforms(f.tokens * f.hidden, -1, 1);
  const LayerGradient e4m3 = f.backward(quantised_output.trace, d_y);
  f.settings.gradient_format = DROPLESS_E5M2;
  const LayerGradient e5m2 = f.backward(quantised_output.trace, d_y);
  EXPECT_NE(e4m3.gate_up, e5m2.gate_up);
  EXPECT_NE(e4m3.down, e5m2.down);
  EXPECT_NE(e4m3.d_x, e5m2.d_x);
  EXPECT_EQ(e4m3.down_bias, e5m2.down_bias);
  f.settings.recipe = DROPLESS_RECIPE_PLAIN;
  const LayerOutput plain_output = f.forward();
  EXPECT_EQ(plain_output.trace.logits, quantised_output.trace.logits);
  double distance = 0, size = 0;
  for (std::size_t i = 0; i < plain_output.y.size(); ++i) {
    distance += std::abs(plain_output.y[i] - quantised_output.y[i]);
    size += std::abs(plain_output.y[i]);
  }
  EXPECT_GT(distance, 1e-4 * size);
  EXPECT_LT(distance, 0.2 * size);
}

TEST(Mxfp8Recipe, ScaleRuleOfTheProfileIsUsed) {
  LayerFixture f = mxfp8_layer(DROPLESS_WEIGHTS_LATE, DROPLESS_E4M3, Shared::none);
  const Doubles rceil = f.forward().y;
  f.profile.scale_rule = DROPLESS_SCALE_FLOOR;
  EXPECT_NE(f.forward().y, rceil);
}

}  // namespace
}  // namespace dropless::reference
