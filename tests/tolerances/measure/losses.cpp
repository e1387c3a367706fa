// SPDX-License-Identifier: Apache-2.0
// The bounds of the losses: fp32 losses in any order pass, broken ones fail.
#include <dropless/formats.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/proof.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

struct Shape {
  int tokens, width;
  double spread, shift;  // logits = shift + spread * normal
};
const Shape shapes[] = {{1, 1, 1, 0},    {3, 8, 1, 0},     {40, 64, 3, 0},
                        {64, 256, 1, 0}, {16, 256, 30, 0}, {8, 16, 2, 1e4}};

Rows make_rows(const Shape& shape, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Rows rows(static_cast<std::size_t>(shape.tokens));
  for (Row& row : rows) {
    for (int v = 0; v < shape.width; ++v) {
      row.push_back(round_to(DROPLESS_FP32, shape.shift + shape.spread * normal(random)));
    }
  }
  return rows;
}

float bf16(float x) {
  return Bf16::from_float(x).to_float();
}

// ln sum e^l in the arithmetic of Real: the largest logit and the logarithm of the rest.
template <class Real>
struct Lse {
  Real largest = 0, log_sum = 0;
};
enum class Broken { no, bf16_sum, log2, no_shift_back };

template <class Real>
Lse<Real> log_sum_exp(const Row& row, bool backwards, Broken broken = Broken::no) {
  Lse<Real> lse;
  lse.largest = static_cast<Real>(*std::max_element(row.begin(), row.end()));
  Real sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double l = backwards ? row[row.size() - 1 - i] : row[i];
    sum += std::exp(static_cast<Real>(l) - lse.largest);
    if (broken == Broken::bf16_sum) sum = bf16(static_cast<float>(sum));
  }
  lse.log_sum = broken == Broken::log2 ? std::log2(sum) : std::log(sum);
  return lse;
}

template <class Real>
Real cross_entropy_of(const Rows& rows, bool backwards, Broken broken = Broken::no) {
  Real total = 0;
  for (const Row& row : rows) {
    const auto lse = log_sum_exp<Real>(row, backwards, broken);
    const auto target = static_cast<Real>(row[0]);
    total += (lse.largest + lse.log_sum) - target;
  }
  return total / static_cast<Real>(rows.size());
}

double exact_cross_entropy(const Rows& rows, double* gauge) {
  double total = 0;
  *gauge = 0;
  for (const Row& row : rows) {
    const auto lse = log_sum_exp<double>(row, false);
    total += (lse.largest - row[0]) + lse.log_sum;
    *gauge += std::abs(lse.largest) + std::abs(lse.log_sum) + std::abs(row[0]);
  }
  *gauge /= static_cast<double>(rows.size());
  return total / static_cast<double>(rows.size());
}

Gate cross_entropy_gate(double factor) {
  Gate gate("cross-entropy", factor);
  std::mt19937_64 random(21);
  for (const Shape& shape : shapes) {
    for (int i = 0; i < 40; ++i) {
      const Rows rows = make_rows(shape, random);
      double gauge = 0;
      const double y = exact_cross_entropy(rows, &gauge);
      const double e = cross_entropy({}, shape.tokens, shape.width, gauge);
      gate.legal("fp32", DROPLESS_FP32, y, e, cross_entropy_of<float>(rows, false));
      gate.legal("fp32 reversed", DROPLESS_FP32, y, e, cross_entropy_of<float>(rows, true));
      if (shape.shift != 0 || shape.width < 64) continue;
      gate.fault("sum in bf16", DROPLESS_FP32, y, e,
                 cross_entropy_of<float>(rows, false, Broken::bf16_sum));
      gate.fault("base 2", DROPLESS_FP32, y, e, cross_entropy_of<float>(rows, false, Broken::log2));
      gate.fault("one token forgotten", DROPLESS_FP32, y, e,
                 y - (log_sum_exp<double>(rows[0], false).log_sum) / shape.tokens);
      gate.fault("result in bf16", DROPLESS_FP32, y, e, Bf16::from_double(y).to_double());
    }
  }
  return gate;
}

// factor (p - [v = 0]) * `times` in Real, where p = softmax.
template <class Real>
std::vector<Real> softmax_of(const Row& row, bool backwards, bool stored_in_bf16) {
  const auto lse = log_sum_exp<Real>(row, backwards);
  Real sum = 0;
  std::vector<Real> p;
  for (const double l : row) p.push_back(std::exp(static_cast<Real>(l) - lse.largest));
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[backwards ? p.size() - 1 - i : i];
  for (Real& x : p) {
    x /= sum;
    if (stored_in_bf16) x = bf16(static_cast<float>(x));
  }
  return p;
}

struct GradientGates {
  Gate cross_entropy, z_loss;
};

GradientGates gradient_gates(double wrong) {
  Gate of_cross_entropy("cross-entropy gradient", wrong), of_z("z-loss gradient", wrong);
  std::mt19937_64 random(22);
  const double d_loss = 0.75;
  for (const Shape& shape : shapes) {
    for (const Row& row : make_rows(shape, random)) {
      const double factor = d_loss / shape.tokens, z_factor = 2 * 0.5 * factor;
      const auto exact = softmax_of<double>(row, false, false);
      const auto lse = log_sum_exp<double>(row, false);
      const double largest = lse.largest, value = lse.largest + lse.log_sum;
      const double z_size = std::abs(lse.largest) + std::abs(lse.log_sum);
      for (const bool backwards : {false, true}) {
        for (const bool stored : {false, true}) {
          const auto p = softmax_of<float>(row, backwards, stored);
          const auto fp32_lse = log_sum_exp<float>(row, backwards);
          const float fp32_value = fp32_lse.largest + fp32_lse.log_sum;
          for (std::size_t v = 0; v < row.size(); ++v) {
            const double target = v == 0 ? 1 : 0, spread = largest - row[v];
            const auto f = static_cast<float>(factor), z = static_cast<float>(z_factor);
            const double e = cross_entropy_gradient({}, shape.width, factor * (exact[v] + target),
                                                    spread, factor);
            const double e_z =
                z_loss_gradient({}, shape.width, z_factor * z_size * exact[v], spread, z_factor);
            const double y = factor * (exact[v] - target), y_z = z_factor * value * exact[v];
            const float got = f * (p[v] - static_cast<float>(target));
            const float got_z = z * fp32_value * p[v];
            if (stored) {
              of_cross_entropy.fault("softmax in bf16", DROPLESS_FP32, y, e, got);
              of_z.fault("softmax in bf16", DROPLESS_FP32, y_z, e_z, got_z);
            } else {
              of_cross_entropy.legal("fp32", DROPLESS_FP32, y, e, got);
              of_z.legal("fp32", DROPLESS_FP32, y_z, e_z, got_z);
            }
          }
        }
      }
    }
  }
  return {of_cross_entropy, of_z};
}

Gate z_loss_gate(double factor) {
  Gate gate("z-loss", factor);
  std::mt19937_64 random(23);
  const double coeff = 1e-3;
  const auto fp32 = [&](const Rows& rows, bool backwards, Broken broken) {
    float total = 0;
    for (const Row& row : rows) {
      const auto lse = log_sum_exp<float>(row, backwards, broken);
      const float value = broken == Broken::no_shift_back ? lse.log_sum : lse.largest + lse.log_sum;
      total += value * value;
    }
    return total / static_cast<float>(rows.size()) * static_cast<float>(coeff);
  };
  for (const Shape& shape : shapes) {
    for (int i = 0; i < 40; ++i) {
      const Rows rows = make_rows(shape, random);
      double y = 0, gauge = 0, largest = 0;
      for (const Row& row : rows) {
        const auto lse = log_sum_exp<double>(row, false);
        const double value = lse.largest + lse.log_sum;
        const double size = std::abs(lse.largest) + std::abs(lse.log_sum);
        y += coeff * value * value / shape.tokens;
        gauge += coeff * size * size / shape.tokens;
        largest = std::max(largest, std::abs(value));
      }
      const double e = z_loss({}, shape.tokens, shape.width, coeff, gauge, largest);
      gate.legal("fp32", DROPLESS_FP32, y, e, fp32(rows, false, Broken::no));
      gate.legal("fp32 reversed", DROPLESS_FP32, y, e, fp32(rows, true, Broken::no));
      if (shape.width < 64) continue;
      gate.fault("sum in bf16", DROPLESS_FP32, y, e, fp32(rows, false, Broken::bf16_sum));
      gate.fault("base 2", DROPLESS_FP32, y, e, fp32(rows, false, Broken::log2));
      gate.fault("without the largest", DROPLESS_FP32, y, e,
                 fp32(rows, false, Broken::no_shift_back));
    }
  }
  return gate;
}

// coeff E/K sum_e f_e P_e for softmax or sigmoid scores, with f given.
template <class Real>
struct Balance {
  Real loss = 0;
  std::vector<Real> d_logits;  // of the first token
};

template <class Real>
Balance<Real> balance(const Rows& rows, const Row& f, bool is_softmax, double coeff, bool bf16_p,
                      std::vector<Real>* gauge) {
  const std::size_t width = f.size();
  const auto scale = static_cast<Real>(coeff) * static_cast<Real>(width) / 2;
  Balance<Real> result;
  std::vector<Real> mean(width, 0), first, first_scores;
  Real first_sum = 1;
  for (const Row& row : rows) {
    std::vector<Real> p;
    std::vector<Real> scores;
    Real sum = 0;
    if (is_softmax) {
      p = softmax_of<Real>(row, false, bf16_p);
    } else {
      for (const double l : row) {
        scores.push_back(1 / (1 + std::exp(-static_cast<Real>(l))));
        sum += scores.back();
      }
      for (const Real s : scores) p.push_back(bf16_p ? bf16(static_cast<float>(s / sum)) : s / sum);
    }
    for (std::size_t e = 0; e < width; ++e) mean[e] += p[e];
    if (first.empty()) {
      first = p;
      first_scores = scores;
      first_sum = sum;
    }
  }
  const auto tokens = static_cast<Real>(rows.size());
  Real dot = 0;
  for (std::size_t e = 0; e < width; ++e) {
    result.loss += static_cast<Real>(f[e]) * (mean[e] / tokens);
    dot += scale / tokens * static_cast<Real>(f[e]) * first[e];
  }
  result.loss *= scale;
  for (std::size_t e = 0; e < width; ++e) {
    const Real d = scale / tokens * static_cast<Real>(f[e]);
    const Real slope = is_softmax ? first[e] : first_scores[e] * (1 - first_scores[e]) / first_sum;
    result.d_logits.push_back(slope * (d - dot));
    if (gauge != nullptr) gauge->push_back(slope * (d + dot));
  }
  return result;
}

struct BalanceGates {
  Gate loss, gradient;
};

BalanceGates balance_gates(bool is_softmax, double factor) {
  std::mt19937_64 random(24);
  Gate of_loss(is_softmax ? "balance loss, softmax" : "balance loss, sigmoid", factor);
  Gate of_gradient(is_softmax ? "balance gradient, softmax" : "balance gradient, sigmoid", factor);
  dropless_route_settings settings{};
  settings.top_k = 2;
  settings.score_function = is_softmax ? DROPLESS_SCORE_SOFTMAX : DROPLESS_SCORE_SIGMOID;
  for (const Shape& shape : {Shape{3, 8, 1, 0}, Shape{40, 64, 3, 0}, Shape{64, 256, 1, 0}}) {
    settings.num_experts = shape.width;
    for (int i = 0; i < 20; ++i) {
      const Rows rows = make_rows(shape, random);
      Row f;
      for (int e = 0; e < shape.width; ++e) {
        f.push_back(static_cast<double>(random() % 5) / shape.tokens);
      }
      std::vector<double> gauge;
      const auto exact = balance<double>(rows, f, is_softmax, 0.01, false, &gauge);
      const auto got = balance<float>(rows, f, is_softmax, 0.01, false, nullptr);
      const auto bad = balance<float>(rows, f, is_softmax, 0.01, true, nullptr);
      double largest = 0;
      for (const Row& row : rows) {
        const double top = *std::max_element(row.begin(), row.end());
        for (const double l : row) largest = std::max(largest, is_softmax ? top - l : std::abs(l));
      }
      const double e = balance_loss(settings, {}, shape.tokens, exact.loss, largest);
      of_loss.legal("fp32", DROPLESS_FP32, exact.loss, e, got.loss);
      of_loss.fault("p in bf16", DROPLESS_FP32, exact.loss, e, bad.loss);
      for (std::size_t v = 0; v < gauge.size(); ++v) {
        const double e_v = balance_loss_gradient(settings, {}, gauge[v], largest, rows[0][v]);
        of_gradient.legal("fp32", DROPLESS_FP32, exact.d_logits[v], e_v, got.d_logits[v]);
        if (is_softmax) {
          of_gradient.fault("p in bf16", DROPLESS_FP32, exact.d_logits[v], e_v, bad.d_logits[v]);
        }
        of_gradient.fault("sum of p taken as constant", DROPLESS_FP32, exact.d_logits[v], e_v,
                          0.5 * (exact.d_logits[v] + gauge[v]));
      }
    }
  }
  return {of_loss, of_gradient};
}

}  // namespace

void add_losses(std::vector<Proof>& proofs) {
  const auto add = [&](const char* bound, const char* fault, double too_tight, double too_loose,
                       std::function<Gate(double)> measure) {
    proofs.push_back({bound, "Losses", fault, std::move(measure), too_tight, too_loose});
  };
  add("cross-entropy", "sum in bf16", 1.0 / 64, 4096, cross_entropy_gate);
  add("cross-entropy gradient", "softmax in bf16", 1.0 / 64, 8192,
      [](double factor) { return gradient_gates(factor).cross_entropy; });
  add("z-loss", "sum in bf16", 1.0 / 64, 8192, z_loss_gate);
  add("z-loss gradient", "softmax in bf16", 1.0 / 64, 8192,
      [](double factor) { return gradient_gates(factor).z_loss; });
  for (const bool is_softmax : {true, false}) {
    add(is_softmax ? "balance loss, softmax" : "balance loss, sigmoid", "p in bf16", 1.0 / 64, 4096,
        [=](double factor) { return balance_gates(is_softmax, factor).loss; });
    add(is_softmax ? "balance gradient, softmax" : "balance gradient, sigmoid",
        is_softmax ? "p in bf16" : "sum of p taken as constant", 1.0 / 64,
        is_softmax ? 4096 : 1 << 20,
        [=](double factor) { return balance_gates(is_softmax, factor).gradient; });
  }
}

}  // namespace dropless::tolerances
