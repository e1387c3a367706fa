// SPDX-License-Identifier: Apache-2.0
// AdamW in fp32: OPTIMIZER-1 as a fused kernel writes it. Stochastic rounding adds sixteen random
// bits below those that bf16 keeps, and cuts.
#include <dropless/formats.h>

#include <bit>
#include <cmath>

#include "tests/honest/arithmetic.h"

namespace dropless::honest {
namespace {

using faults::view;

// Two rounds of a multiply-and-fold hash over the counter (Lehmer-type, 128-bit product).
std::uint32_t random_bits(std::uint64_t seed, std::uint64_t step, std::uint64_t element) {
  std::uint64_t x = seed * 0xD1342543DE82EF95u + step * 0xAF251AF3B0F025B5u + element + 1;
  for (int round = 0; round < 3; ++round) {
    x ^= x >> 29;
    x *= 0xDA942042E4DD58B5u;
    x ^= x >> 32;
  }
  return static_cast<std::uint32_t>(x >> 24) & 0xFFFF;
}

float rounded_stochastically(float p, std::uint32_t random) {
  if (!std::isfinite(p)) return p;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(p) + random) & 0xFFFF0000u);
}

struct State {
  std::vector<double> m, v, p;
  explicit State(const dropless_adamw_args& a)
      : m(faults::values_of(a.first_moment)),
        v(faults::values_of(a.second_moment)),
        p(faults::values_of(a.master != nullptr ? a.master : a.weight)) {}
};

void step(const dropless_adamw_args& a, const State& old) {
  const double given =
      a.gradient_scale_tensor != nullptr ? view(a.gradient_scale_tensor).load(0) : a.gradient_scale;
  const auto scale = static_cast<float>(given), lr = static_cast<float>(a.learning_rate);
  const auto b1 = static_cast<float>(a.beta1), b2 = static_cast<float>(a.beta2);
  const auto a1 = static_cast<float>(1 - a.beta1), a2 = static_cast<float>(1 - a.beta2);
  const auto c1 = static_cast<float>(1 - std::pow(a.beta1, a.step));
  const auto c2 = static_cast<float>(1 - std::pow(a.beta2, a.step));
  const auto eps = static_cast<float>(a.eps), decay = static_cast<float>(a.weight_decay);
  const TensorView gradient = view(a.gradient), weight = view(a.weight);
  for (Index i = 0; i < gradient.size(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const float g = scale * static_cast<float>(gradient.load(i));
    const float m = b1 * static_cast<float>(old.m[k]) + a1 * g;
    const float v = b2 * static_cast<float>(old.v[k]) + a2 * (g * g);
    const auto before = static_cast<float>(old.p[k]);
    const float update = (m / c1) / (std::sqrt(v / c2) + eps) + decay * before;
    float p = before - lr * update;
    view(a.first_moment).store(m, i);
    view(a.second_moment).store(v, i);
    if (a.master != nullptr) view(a.master).store(p, i);
    if (weight.dtype() == DROPLESS_BF16 && a.weight_rounding == DROPLESS_ROUND_STOCHASTIC) {
      p = rounded_stochastically(p, random_bits(a.seed, static_cast<std::uint64_t>(a.step),
                                                static_cast<std::uint64_t>(i)));
    }
    weight.store(p, i);
  }
}

}  // namespace

void step_in_fp32(Planted& variant) {
  variant.around<&Table::adamw>([](const auto& next, auto& a) -> dropless_status {
    const State old(a);
    const dropless_status status = next(a);
    if (status == DROPLESS_OK) step(a, old);
    return status;
  });
}

}  // namespace dropless::honest
