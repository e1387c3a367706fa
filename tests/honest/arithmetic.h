// SPDX-License-Identifier: Apache-2.0
// Values in fp32, as kernels compute them: what the variants of the arithmetic are made of. Sums
// run from the end; the reference runs from the front, in double.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/honest/variant.h"

namespace dropless::honest {

using Floats = std::vector<float>;

enum class Order { backwards, pairwise };
float sum_of(const Floats& terms, Order order);

// How a router or a loss is evaluated.
struct Style {
  Order order = Order::backwards;
  bool selects_on_logits = false;  // softmax without bias (ROUTING-2)
  bool reciprocal = false;         // multiplies by 1 / sum instead of dividing
  bool fast = false;               // e^x = 2^(x log2 e), the product rounded
};
float exponential(float x, const Style& style);
Floats softmax(const Floats& logits, const Style& style);
// sigmoid or sqrt(softplus), and their derivatives from the score.
float pointwise(int score_function, float logit, const Style& style);
float pointwise_slope(int score_function, float logit, float score, const Style& style);
// ROUTING-8: NaN; for softmax +Inf, or no finite logit as well.
bool is_undefined(int score_function, const Floats& logits);
bool all_finite(const Floats& values);

Floats row_of(const TensorView& matrix, Index row);

// A setting of any declared length; missing fields are zero.
template <class Settings>
Settings completed(const Settings* declared) {
  Settings copy{};
  std::memcpy(&copy, declared, std::min<std::size_t>(declared->struct_size, sizeof copy));
  return copy;
}

// Replace operations by their fp32 form.
void route_in_fp32(Planted& variant, Style style);
void activate_in_fp32(Planted& variant, bool quotient);
void lose_in_fp32(Planted& variant, Style style);
void step_in_fp32(Planted& variant);
void add_rows_in_fp32(Planted& variant, Order order);

}  // namespace dropless::honest
