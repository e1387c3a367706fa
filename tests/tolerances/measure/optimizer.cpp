// SPDX-License-Identifier: Apache-2.0
// The bounds of AdamW: fp32 steps with coefficients made in double pass, known mistakes
// fail.
#include <dropless/formats.h>

#include <cmath>
#include <random>

#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/proof.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

struct State {
  double gradient, m, v, p;
};
struct Step {
  double m, v, p;
};

constexpr double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.1;
constexpr int t = 3;

Step exact_step(const State& s, double* update, double* update_gauge, double* m_gauge) {
  Step y{};
  y.m = beta1 * s.m + (1 - beta1) * s.gradient;
  y.v = beta2 * s.v + (1 - beta2) * s.gradient * s.gradient;
  const double root = std::sqrt(y.v / (1 - std::pow(beta2, t))) + eps;
  *m_gauge = std::abs(beta1 * s.m) + std::abs((1 - beta1) * s.gradient);
  *update = rate * (y.m / (1 - std::pow(beta1, t)) / root + decay * s.p);
  *update_gauge = rate * (*m_gauge / (1 - std::pow(beta1, t)) / root + decay * std::abs(s.p));
  y.p = s.p - *update;
  return y;
}

struct Mistake {
  bool eps_inside = false, no_correction = false, coupled = false, bf16_moment = false,
       one_minus_beta_in_fp32 = false, wrong_sign_of_decay = false;
};

Step fp32_step(const State& s, const Mistake& mistake) {
  const auto lr = static_cast<float>(rate), b1 = static_cast<float>(beta1),
             b2 = static_cast<float>(beta2), e = static_cast<float>(eps),
             wd = static_cast<float>(mistake.wrong_sign_of_decay ? -decay : decay);
  const float a1 = mistake.one_minus_beta_in_fp32 ? 1 - b1 : static_cast<float>(1 - beta1);
  const float a2 = mistake.one_minus_beta_in_fp32 ? 1 - b2 : static_cast<float>(1 - beta2);
  const auto c1 = static_cast<float>(mistake.no_correction ? 1 : 1 - std::pow(beta1, t));
  const auto c2 = static_cast<float>(mistake.no_correction ? 1 : 1 - std::pow(beta2, t));
  auto g = static_cast<float>(s.gradient);
  const auto p = static_cast<float>(s.p);
  if (mistake.coupled) g += wd * p;
  float m = b1 * static_cast<float>(s.m) + a1 * g;
  const float v = b2 * static_cast<float>(s.v) + a2 * g * g;
  if (mistake.bf16_moment) m = Bf16::from_float(m).to_float();
  const float root = mistake.eps_inside ? std::sqrt(v / c2 + e) : std::sqrt(v / c2) + e;
  const float u = m / c1 / root;
  const float update = lr * (mistake.coupled ? u : u + wd * p);
  return {m, v, p - update};
}

State make_state(double weight_size, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  State s{};
  s.gradient = round_to(DROPLESS_FP32, 1e-3 * normal(random));
  s.m = round_to(DROPLESS_FP32, 1e-3 * normal(random));
  s.v = round_to(DROPLESS_FP32, 1e-6 * std::abs(normal(random)) + 1e-8);
  s.p = round_to(DROPLESS_FP32, weight_size * normal(random));
  return s;
}

struct Gates {
  Gate weight, first, second;
};

Gates adamw_gates(double factor) {
  Gate of_weight("adamw weight", factor), of_m("adamw first moment", factor),
      of_v("adamw second moment", factor);
  std::mt19937_64 random(31);
  for (int i = 0; i < 20000; ++i) {
    // Small weights show the update, large ones the ulp of p.
    State s = make_state(i % 2 == 0 ? 1e-3 : 1, random);
    if (i % 5 == 0) s.m = s.v = 0;  // a first step, where only the new terms count
    double update = 0, update_gauge = 0, m_gauge = 0;
    const Step y = exact_step(s, &update, &update_gauge, &m_gauge);
    const double e_p = adamw_weight(y.p, update, update_gauge), e_m = adamw_moment(y.m, m_gauge),
                 e_v = adamw_moment(y.v);
    const Step got = fp32_step(s, {});
    of_weight.legal("fp32", DROPLESS_FP32, y.p, e_p, got.p);
    of_m.legal("fp32", DROPLESS_FP32, y.m, e_m, got.m);
    of_v.legal("fp32", DROPLESS_FP32, y.v, e_v, got.v);
    if (i >= 200) continue;
    const auto weight_fault = [&](const char* name, const Mistake& mistake) {
      of_weight.fault(name, DROPLESS_FP32, y.p, e_p, fp32_step(s, mistake).p);
    };
    weight_fault("eps inside the root", {.eps_inside = true});
    weight_fault("no bias correction", {.no_correction = true});
    weight_fault("coupled decay", {.coupled = true});
    weight_fault("rounded moment in the update", {.bf16_moment = true});
    weight_fault("decay with the wrong sign", {.wrong_sign_of_decay = true});
    of_m.fault("moment in bf16", DROPLESS_FP32, y.m, e_m, fp32_step(s, {.bf16_moment = true}).m);
    of_m.fault("decay in the gradient", DROPLESS_FP32, y.m, e_m, fp32_step(s, {.coupled = true}).m);
    of_v.fault("decay in the gradient", DROPLESS_FP32, y.v, e_v, fp32_step(s, {.coupled = true}).v);
    of_v.fault("1 - beta2 in fp32", DROPLESS_FP32, y.v, e_v,
               fp32_step(s, {.one_minus_beta_in_fp32 = true}).v);
  }
  return {of_weight, of_m, of_v};
}

}  // namespace

void add_optimizer(std::vector<Proof>& proofs) {
  proofs.push_back({"adamw weight", "Optimizer", "rounded moment in the update",
                    [](double factor) { return adamw_gates(factor).weight; }, 0.25, 1 << 20});
  proofs.push_back({"adamw first moment", "Optimizer", "moment in bf16",
                    [](double factor) { return adamw_gates(factor).first; }, 0.25, 1 << 20});
  proofs.push_back({"adamw second moment", "Optimizer", "1 - beta2 in fp32",
                    [](double factor) { return adamw_gates(factor).second; }, 0.25, 256});
}

}  // namespace dropless::tolerances
