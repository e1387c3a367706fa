// SPDX-License-Identifier: Apache-2.0
// Sums, exponentials and scores in fp32, and the variants that are made of them.
#include "tests/honest/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "tests/accumulators/accumulators.h"
#include "tests/honest/products.h"

namespace dropless::honest {
namespace {

float tree(std::span<const float> terms) {
  if (terms.empty()) return 0;
  if (terms.size() == 1) return terms[0];
  return tree(terms.first(terms.size() / 2)) + tree(terms.subspan(terms.size() / 2));
}

void declare_any_order(Planted& variant) {
  variant.declare(
      [](dropless_profile& profile) { profile.unpermute_order = DROPLESS_UNPERMUTE_ANY_ORDER; });
}

void plant_fast(Planted& variant) {
  variant.declare(
      [](dropless_profile& profile) { profile.exponential = DROPLESS_EXPONENTIAL_FAST; });
  const Style style{.fast = true};
  route_in_fp32(variant, style);
  lose_in_fp32(variant, style);
}

void plant_everything(Planted& variant) {
  declare_any_order(variant);
  const Style style{.order = Order::pairwise};
  route_in_fp32(variant, style);
  activate_in_fp32(variant, true);
  lose_in_fp32(variant, style);
  step_in_fp32(variant);
  add_rows_in_fp32(variant, Order::pairwise);
  const accumulators::Dot dot = accumulators::fused;
  accumulate_with(variant, {dot, dot, dot});
}

}  // namespace

float sum_of(const Floats& terms, Order order) {
  if (order == Order::pairwise) return tree(terms);
  float sum = 0;
  for (std::size_t i = terms.size(); i-- > 0;) sum += terms[i];
  return sum;
}

float exponential(float x, const Style& style) {
  return style.fast ? std::exp2(x * static_cast<float>(std::numbers::log2e)) : std::exp(x);
}

Floats softmax(const Floats& logits, const Style& style) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  Floats p;
  for (const float l : logits) p.push_back(exponential(l - largest, style));
  const float sum = sum_of(p, style.order);
  for (float& x : p) x = style.reciprocal ? x * (1 / sum) : x / sum;
  return p;
}

float pointwise(int score_function, float logit, const Style& style) {
  if (score_function == DROPLESS_SCORE_SIGMOID) return 1 / (1 + exponential(-logit, style));
  // ln(1 + e^l), without overflow on either side.
  const float tail = std::log1p(exponential(-std::abs(logit), style));
  return std::sqrt(std::max(logit, 0.0f) + tail);
}

float pointwise_slope(int score_function, float logit, float score, const Style& style) {
  if (score_function == DROPLESS_SCORE_SIGMOID) return score * (1 - score);
  if (score == 0) return 0;
  return 1 / (1 + exponential(-logit, style)) / (2 * score);
}

bool is_undefined(int score_function, const Floats& logits) {
  bool any_finite = false;
  for (const float l : logits) {
    if (std::isnan(l)) return true;
    if (score_function == DROPLESS_SCORE_SOFTMAX && std::isinf(l) && l > 0) return true;
    any_finite = any_finite || std::isfinite(l);
  }
  return score_function == DROPLESS_SCORE_SOFTMAX && !any_finite;
}

bool all_finite(const Floats& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

Floats row_of(const TensorView& matrix, Index row) {
  Floats values;
  for (Index c = 0; c < matrix.shape(1); ++c) {
    values.push_back(static_cast<float>(matrix.load(row, c)));
  }
  return values;
}

void add_arithmetic(std::vector<Variant>& variants) {
  const auto add = [&](const char* name, const char* difference, void (*plant)(Planted&)) {
    variants.push_back({name, difference, plant});
  };
  add("router-fp32", "router and its gradient in fp32, sums from the end",
      [](Planted& v) { route_in_fp32(v, {}); });
  add("router-fp32-logits",
      "the same, softmax selected on logits, 1 / sum multiplied, sums as trees", [](Planted& v) {
        route_in_fp32(v, {.order = Order::pairwise, .selects_on_logits = true, .reciprocal = true});
      });
  add("router-fast", "router and losses in fp32 with a fast exponential (declared)", plant_fast);
  add("activation-fp32", "activation in fp32, silu as g / (1 + e^-g)",
      [](Planted& v) { activate_in_fp32(v, true); });
  add("activation-fp32-product", "activation in fp32, silu as g * sigmoid(g)",
      [](Planted& v) { activate_in_fp32(v, false); });
  add("losses-fp32", "losses and their gradients in fp32, sums from the end",
      [](Planted& v) { lose_in_fp32(v, {}); });
  add("losses-fp32-pairwise", "losses and their gradients in fp32, sums as trees",
      [](Planted& v) { lose_in_fp32(v, {.order = Order::pairwise, .reciprocal = true}); });
  add("adamw-fp32", "optimizer in fp32, another generator for stochastic rounding",
      [](Planted& v) { step_in_fp32(v); });
  add("rows-fp32", "unpermute and the row gradients in fp32, slots from the end (declared)",
      [](Planted& v) {
        declare_any_order(v);
        add_rows_in_fp32(v, Order::backwards);
      });
  add("everything-fp32", "all of these at once, sums as trees, fused GEMM", plant_everything);
}

}  // namespace dropless::honest
