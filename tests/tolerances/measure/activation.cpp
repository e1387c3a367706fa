// SPDX-License-Identifier: Apache-2.0
// The bounds of the activation: fp32 formulas as implementations write them pass for every
// bf16 gate, cheaper ones fail.
#include <dropless/formats.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/proof.h"
#include "tolerances/bounds.h"

namespace dropless::tolerances {
namespace {

struct Point {
  double h, d_gate, d_up;
};
using Formula = std::function<Point(float gate, float up)>;  // fp32, weight and dh left out

dropless_activation_settings settings_of(int kind) {
  dropless_activation_settings settings{};
  settings.kind = kind;
  settings.limit = 7;
  settings.alpha = 1.702;
  settings.offset = 1;
  return settings;
}

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// The exact formulas, in double.
Point exact(int kind, double g, double u) {
  if (kind == DROPLESS_SWIGLU) {
    const double s = sigmoid(g);
    return {g * s * u, u * s * (1 + g * sigmoid(-g)), g * s};
  }
  if (kind == DROPLESS_SWIGLU_CLAMPED) {
    const double q = std::min(g, 7.0), v = std::clamp(u, -7.0, 7.0) + 1, s = sigmoid(1.702 * q);
    return {q * s * v, g > 7 ? 0 : v * s * (1 + 1.702 * q * sigmoid(-1.702 * q)),
            std::abs(u) > 7 ? 0 : q * s};
  }
  if (kind == DROPLESS_GEGLU_TANH) {
    const double c = std::sqrt(2 / std::numbers::pi), z = c * (g + 0.044715 * g * g * g);
    const double dz = c * (1 + 3 * 0.044715 * g * g), s = sigmoid(2 * z);
    return {g * s * u, u * (s + 2 * g * dz * s * sigmoid(-2 * z)), g * s};
  }
  const double positive = std::max(g, 0.0);
  return {positive * positive, 2 * positive, 0};
}

Point quotient_form(float g, float u) {  // g / (1 + e^-g)
  const float s = sigmoid(g);
  const float silu = g / (1 + std::exp(-g));
  return {silu * u, u * (s * (1 + g * (1 - s))), silu};
}

Point product_form(float g, float u) {
  const float s = sigmoid(g), silu = g * s;
  return {silu * u, (s + silu * (1 - s)) * u, silu};
}

float bf16(float x) {
  return Bf16::from_float(x).to_float();
}

Point bf16_sigmoid(float g, float u) {
  const float s = bf16(sigmoid(g));
  return {g * s * u, u * (s * (1 + g * (1 - s))), g * s};
}

Point eleven_bit_sigmoid(float g, float u) {  // an approximation to 2^-11, as tanh.approx brings
  const float s = sigmoid(g) * (1 + 0x1p-12f);
  return {g * s * u, u * (s * (1 + g * (1 - s))), g * s};
}

Point bf16_silu(float g, float u) {  // two roundings: silu stored before the product
  const Point point = product_form(g, u);
  return {bf16(static_cast<float>(point.d_up)) * u, point.d_gate,
          bf16(static_cast<float>(point.d_up))};
}

Point without_slope(float g, float u) {
  const Point point = product_form(g, u);
  return {point.h, u * sigmoid(g), point.d_up};
}

Point fast_form(float g, float u) {
  const float argument = -g * static_cast<float>(std::numbers::log2e);
  const float s = (1 / (1 + std::exp2(argument) * (1 + 0x1p-22f))) * (1 + 0x1p-23f);
  return {g * s * u, u * (s * (1 + g * (1 - s))), g * s};
}

Point clamped(float g, float u, float alpha, float limit) {
  const float q = std::min(g, limit), v = std::max(std::min(u, limit), -limit) + 1;
  const float s = sigmoid(alpha * q), h = q * s;
  return {h * v, g > limit ? 0 : v * (s * (1 + alpha * q * (1 - s))), std::abs(u) > limit ? 0 : h};
}

Point clamped_form(float g, float u) {
  return clamped(g, u, 1.702f, 7);
}
Point clamped_alpha(float g, float u) {
  return clamped(g, u, 1.7f, 7);
}
Point clamped_limit(float g, float u) {
  return clamped(g, u, 1.702f, 1e30f);
}
Point clamped_bf16(float g, float u) {
  const float q = std::min(g, 7.0f), v = std::max(std::min(u, 7.0f), -7.0f) + 1;
  const float s = bf16(sigmoid(1.702f * q));
  return {q * s * v, g > 7 ? 0 : v * (s * (1 + 1.702f * q * (1 - s))), std::abs(u) > 7 ? 0 : q * s};
}

Point tanh_form(float g, float u) {
  const auto c = static_cast<float>(std::sqrt(2 / std::numbers::pi));
  const float t = std::tanh(c * (g + 0.044715f * g * g * g));
  const float slope = 0.5f * (1 + t) + 0.5f * g * (1 - t * t) * (c * (1 + 3 * 0.044715f * g * g));
  return {0.5f * g * (1 + t) * u, slope * u, 0.5f * g * (1 + t)};
}

Point sigmoid_form(float g, float u) {  // 0.5 (1 + tanh z) = sigmoid(2z)
  const auto c = static_cast<float>(2 * std::sqrt(2 / std::numbers::pi));
  const float s = sigmoid(c * (g + 0.044715f * g * g * g));
  const float slope = s + g * (c * (1 + 3 * 0.044715f * g * g)) * (s * (1 - s));
  return {g * s * u, slope * u, g * s};
}

Point erf_form(float g, float u) {  // the other gelu
  const float phi = 0.5f * (1 + std::erf(g * static_cast<float>(std::numbers::sqrt2 / 2)));
  const float density =
      std::exp(-0.5f * g * g) / static_cast<float>(std::sqrt(2 * std::numbers::pi));
  return {g * phi * u, (phi + g * density) * u, g * phi};
}

Point bf16_tanh(float g, float u) {
  const auto c = static_cast<float>(std::sqrt(2 / std::numbers::pi));
  const float t = bf16(std::tanh(c * (g + 0.044715f * g * g * g)));
  return {0.5f * g * (1 + t) * u, tanh_form(g, u).d_gate, 0.5f * g * (1 + t)};
}

Point relu2_form(float g, float) {
  const float positive = std::max(g, 0.0f);
  return {positive * positive, 2 * positive, 0};
}

Point relu2_bf16(float g, float) {
  const float positive = std::max(g, 0.0f);
  return {bf16(positive * positive), bf16(2 * positive * 1.01f), 0};
}

struct Named {
  const char* name;
  Formula formula;
  bool forward = true, backward = true;  // where the fault shows
};

struct Kind {
  const char* name;
  int kind;
  int exponential;
  std::vector<Named> legal, faulty;
};

std::vector<Kind> kinds() {
  return {
      {"swiglu",
       DROPLESS_SWIGLU,
       DROPLESS_EXPONENTIAL_ACCURATE,
       {{"quotient form", quotient_form}, {"product form", product_form}},
       {{"sigmoid in bf16", bf16_sigmoid},
        {"sigmoid to 2^-12", eleven_bit_sigmoid},
        {"silu stored in bf16", bf16_silu, true, false},
        {"slope of silu forgotten", without_slope, false, true}}},
      {"swiglu, fast",
       DROPLESS_SWIGLU,
       DROPLESS_EXPONENTIAL_FAST,
       {{"quotient form", quotient_form}, {"product form", product_form}, {"fast form", fast_form}},
       {{"sigmoid in bf16", bf16_sigmoid},
        {"sigmoid to 2^-12", eleven_bit_sigmoid},
        {"slope of silu forgotten", without_slope, false, true}}},
      {"swiglu clamped",
       DROPLESS_SWIGLU_CLAMPED,
       DROPLESS_EXPONENTIAL_ACCURATE,
       {{"product form", clamped_form}},
       {{"alpha 1.7", clamped_alpha},
        {"no clamp", clamped_limit},
        {"sigmoid in bf16", clamped_bf16}}},
      {"geglu tanh",
       DROPLESS_GEGLU_TANH,
       DROPLESS_EXPONENTIAL_ACCURATE,
       {{"tanh form", tanh_form}, {"sigmoid form", sigmoid_form}},
       {{"erf form", erf_form}, {"tanh in bf16", bf16_tanh, true, false}}},
      {"relu2",
       DROPLESS_RELU2,
       DROPLESS_EXPONENTIAL_ACCURATE,
       {{"fp32", relu2_form}},
       {{"stored in bf16", relu2_bf16}}},
  };
}

// Every finite bf16 gate with |g| <= 100: most of the 65536.
std::vector<float> gates() {
  std::vector<float> all;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float g = Bf16::from_bits(bits).to_float();
    if (std::isfinite(g) && std::abs(g) <= 100) all.push_back(g);
  }
  return all;
}

struct Gates {
  Gate forward, backward;
};

Gates activation_gates(const Kind& kind, double factor) {
  Gates result{Gate(std::string(kind.name) + ", forward", factor),
               Gate(std::string(kind.name) + ", backward", factor)};
  const auto settings = settings_of(kind.kind);
  dropless_profile profile{};
  profile.exponential = kind.exponential;
  const bool gated = kind.kind != DROPLESS_RELU2;
  const float dh = 0.7f, weight = 0.3f;
  for (const float g : gates()) {
    for (const float u : {1.0f, -3.7f, 30.0f}) {
      const Point y = exact(kind.kind, g, u);
      const double d = static_cast<double>(dh) * weight;
      const double e_h = activation_forward(profile, settings, g, u, weight);
      const double e_value = activation_value(profile, settings, g, u);
      const auto e = activation_backward(profile, settings, g, u, dh, weight);
      for (const Named& legal : kind.legal) {
        const Point got = legal.formula(g, u);
        result.forward.legal(legal.name, DROPLESS_FP32, y.h, e_value, got.h);
        result.forward.legal(legal.name, DROPLESS_FP32, y.h * weight, e_h,
                             static_cast<float>(got.h) * weight);
        result.backward.legal(legal.name, DROPLESS_FP32, y.d_gate * d, e.d_gate,
                              static_cast<float>(got.d_gate) * dh * weight);
        if (!gated) continue;
        result.backward.legal(legal.name, DROPLESS_FP32, y.d_up * d, e.d_up,
                              static_cast<float>(got.d_up) * dh * weight);
      }
      for (const Named& faulty : kind.faulty) {
        const Point got = faulty.formula(g, u);
        if (faulty.forward) {
          result.forward.fault(faulty.name, DROPLESS_FP32, y.h * weight, e_h,
                               static_cast<float>(got.h) * weight);
        }
        if (faulty.backward) {
          result.backward.fault(faulty.name, DROPLESS_FP32, y.d_gate * d, e.d_gate,
                                static_cast<float>(got.d_gate) * dh * weight);
        }
      }
    }
  }
  return result;
}

}  // namespace

void add_activation(std::vector<Proof>& proofs) {
  for (const Kind& kind : kinds()) {
    // relu2 has no rounding but the last ones, which the rounded interval grants to everyone.
    const bool rounds = kind.kind != DROPLESS_RELU2;
    const char* why = rounds ? "" : "its only roundings are those that everybody may make";
    const char* fault = kind.faulty.front().name;
    proofs.push_back({std::string(kind.name) + ", forward", "Activation", fault,
                      [kind](double factor) { return activation_gates(kind, factor).forward; },
                      rounds ? 1.0 / 16 : 0, 1 << 17, why});
    proofs.push_back({std::string(kind.name) + ", backward", "Activation", fault,
                      [kind](double factor) { return activation_gates(kind, factor).backward; },
                      rounds ? 1.0 / 16 : 0, 1 << 18, why});
  }
}

}  // namespace dropless::tolerances
