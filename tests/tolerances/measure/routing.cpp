// SPDX-License-Identifier: Apache-2.0
// The bounds of routing: scores, weights, selection distance, subtract, gradient.
#include <dropless/formats.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/tolerances/measure/gate.h"
#include "tests/tolerances/measure/proof.h"
#include "tests/tolerances/measure/routing_models.h"
#include "tolerances/bounds.h"
#include "tolerances/interval.h"

namespace dropless::tolerances {
namespace {

using models::Fp32Mode;
using models::Token;
using models::Weights;

struct Setting {
  const char* name;
  int score_function, softmax_order, renormalize;
};

const Setting settings_list[] = {
    {"softmax", DROPLESS_SCORE_SOFTMAX, DROPLESS_SOFTMAX_BEFORE_TOP_K, 0},
    {"softmax renormalised", DROPLESS_SCORE_SOFTMAX, DROPLESS_SOFTMAX_BEFORE_TOP_K, 1},
    {"softmax of selected", DROPLESS_SCORE_SOFTMAX, DROPLESS_SOFTMAX_AFTER_TOP_K, 0},
    {"sigmoid", DROPLESS_SCORE_SIGMOID, DROPLESS_SOFTMAX_BEFORE_TOP_K, 0},
    {"sigmoid renormalised", DROPLESS_SCORE_SIGMOID, DROPLESS_SOFTMAX_BEFORE_TOP_K, 1},
    {"sqrtsoftplus", DROPLESS_SCORE_SQRT_SOFTPLUS, DROPLESS_SOFTMAX_BEFORE_TOP_K, 0},
    {"sqrtsoftplus renormalised", DROPLESS_SCORE_SQRT_SOFTPLUS, DROPLESS_SOFTMAX_BEFORE_TOP_K, 1},
};

dropless_route_settings route_settings(const Setting& setting, Index num_experts, Index top_k) {
  dropless_route_settings s{};
  s.num_experts = num_experts;
  s.top_k = top_k;
  s.score_function = setting.score_function;
  s.softmax_order = setting.softmax_order;
  s.renormalize = s.renormalize_single = setting.renormalize;
  s.renormalize_eps = 1e-20;
  s.scaling_factor = 2.5;
  return s;
}

Token make_token(Index num_experts, Index top_k, double width, bool biased,
                 std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, width);
  Token token;
  for (Index e = 0; e < num_experts; ++e) {
    token.logits.push_back(round_to(DROPLESS_FP32, normal(random)));
    if (biased) token.bias.push_back(round_to(DROPLESS_FP32, 8 * normal(random)));
  }
  std::vector<std::size_t> all(token.logits.size());
  std::iota(all.begin(), all.end(), 0);
  std::sort(all.begin(), all.end(),
            [&](std::size_t a, std::size_t b) { return token.logits[a] > token.logits[b]; });
  token.ids.assign(all.begin(), all.begin() + top_k);
  for (Index j = 0; j < top_k; ++j) {
    token.d_weights.push_back(round_to(DROPLESS_FP32, std::normal_distribution<double>()(random)));
  }
  return token;
}

std::vector<Fp32Mode> legal_modes() {
  std::vector<Fp32Mode> modes(4, models::accurate());
  modes[1].reciprocal = true;
  modes[2].backwards = true;
  modes[3].complement_from_score = false;
  return modes;
}

struct Shape {
  Index num_experts, top_k;
  double width;
};
const Shape shapes[] = {{8, 2, 1}, {64, 6, 3}, {256, 8, 1}, {256, 8, 20}, {16, 1, 2}, {512, 10, 5}};

Gate weight_gate(const Setting& setting, double factor) {
  Gate gate(std::string("weight, ") + setting.name, factor);
  std::mt19937_64 random(11);
  for (const Shape& shape : shapes) {
    const auto settings = route_settings(setting, shape.num_experts, shape.top_k);
    for (int i = 0; i < 60; ++i) {
      const Token token = make_token(shape.num_experts, shape.top_k, shape.width, false, random);
      const Weights exact = models::exact_weights(settings, token);
      const auto judge = [&](auto record, const Fp32Mode& mode, const dropless_profile& profile) {
        const auto errors =
            routing_weights(settings, profile, models::selected_experts(settings, token, exact));
        const Weights got = models::fp32_weights(settings, profile, token, mode);
        for (std::size_t j = 0; j < errors.size(); ++j) {
          record(exact.weights[j], errors[j], got.weights[j]);
        }
      };
      const auto legal = [&](const char* name) {
        return [&gate, name](double y, double e, double got) {
          gate.legal(name, DROPLESS_FP32, y, e, got);
        };
      };
      const auto fault = [&](const char* name) {
        return [&gate, name](double y, double e, double got) {
          gate.fault(name, DROPLESS_FP32, y, e, got);
        };
      };
      for (const Fp32Mode& mode : legal_modes()) judge(legal("fp32"), mode, {});
      dropless_profile fast{};
      fast.exponential = DROPLESS_EXPONENTIAL_FAST;
      judge(legal("fast exponential"), models::fast(), fast);
      if (shape.top_k == 1 || shape.width > 3) continue;
      judge(fault("scores stored in bf16"), models::bf16_scores(), {});
      if (setting.renormalize != 0) {
        Fp32Mode over_all = models::accurate();
        over_all.renormalizes_over_all = true;
        judge(fault("sum over all experts"), over_all, {});
      }
    }
  }
  return gate;
}

Gate subtract_gate(double factor) {
  Gate gate("weight, subtract", factor);
  std::mt19937_64 random(12);
  for (const int function : {DROPLESS_SCORE_SIGMOID, DROPLESS_SCORE_SQRT_SOFTPLUS}) {
    for (const int renormalize : {0, 1}) {
      auto settings = route_settings({"", function, 0, renormalize}, 32, 4);
      dropless_profile profile{};
      profile.weight_source = DROPLESS_WEIGHT_SUBTRACT;
      for (int i = 0; i < 300; ++i) {
        const Token token = make_token(32, 4, 2, true, random);
        const Weights exact = models::exact_weights(settings, token);
        const auto errors =
            routing_weights(settings, profile, models::selected_experts(settings, token, exact));
        const Weights got = models::fp32_weights(settings, profile, token, models::accurate());
        const Weights bad = models::fp32_weights(settings, profile, token, models::bf16_scores());
        Token doubled = token;  // subtracts the bias of a neighbour
        std::rotate(doubled.bias.begin(), doubled.bias.begin() + 1, doubled.bias.end());
        for (std::size_t j = 0; j < errors.size(); ++j) {
          gate.legal("fp32", DROPLESS_FP32, exact.weights[j], errors[j], got.weights[j]);
          gate.fault("scores stored in bf16", DROPLESS_FP32, exact.weights[j], errors[j],
                     bad.weights[j]);
          const std::size_t e = token.ids[j];
          gate.fault("bias of the next expert", DROPLESS_FP32, exact.weights[j], errors[j],
                     got.weights[j] + token.bias[e] - doubled.bias[e]);
        }
      }
    }
  }
  return gate;
}

Gate selection_gate(double factor) {
  Gate gate("selection distance", factor);
  std::mt19937_64 random(13);
  for (const Setting& setting : settings_list) {
    if (setting.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K) continue;
    const auto settings = route_settings(setting, 64, 6);
    for (int i = 0; i < 100; ++i) {
      for (const bool biased : {false, true}) {
        const Token token = make_token(64, 6, 2, biased, random);
        const Weights exact = models::exact_weights(settings, token);
        const Weights got = models::fp32_weights(settings, {}, token, models::accurate());
        const Weights bad = models::fp32_weights(settings, {}, token, models::bf16_scores());
        for (std::size_t e = 0; e < token.logits.size(); ++e) {
          const double b = biased ? token.bias[e] : 0;
          const double y = round_to(DROPLESS_FP32, exact.scores[e]) + b;
          const double d = selection_distance(settings, {}, exact.scores[e], y,
                                              models::spread_of(settings, token, e), biased);
          const auto value = [b](double score) {
            return static_cast<double>(static_cast<float>(score) + static_cast<float>(b));
          };
          // The common factor of an unbiased softmax is not part of d: take it out.
          double common = 1;
          if (settings.score_function == DROPLESS_SCORE_SOFTMAX && !biased) {
            common = got.scores[token.ids[0]] / exact.scores[token.ids[0]];
          }
          gate.legal("fp32", DROPLESS_FP32, y * common, d, value(got.scores[e]));
          gate.fault("scores stored in bf16", DROPLESS_FP32, y, d, value(bad.scores[e]));
          gate.fault("bias forgotten", DROPLESS_FP32, y, d, biased ? exact.scores[e] : y);
          gate.fault("sum in bf16", DROPLESS_FP32, y, d, Bf16::from_double(y).to_double());
        }
      }
    }
  }
  return gate;
}

Gate gradient_gate(const Setting& setting, double factor) {
  Gate gate(std::string("d_logits, ") + setting.name, factor);
  std::mt19937_64 random(14);
  for (const Shape& shape : shapes) {
    const auto settings = route_settings(setting, shape.num_experts, shape.top_k);
    for (int i = 0; i < 25; ++i) {
      const Token token = make_token(shape.num_experts, shape.top_k, shape.width, false, random);
      const models::Gradient exact = models::exact_gradient(settings, token);
      double largest = 0;
      for (const std::size_t e : token.ids) {
        largest = std::max(largest, models::spread_of(settings, token, e));
      }
      const auto judge = [&](auto record, const Fp32Mode& mode) {
        const std::vector<double> got = models::fp32_gradient(settings, token, mode);
        for (std::size_t e = 0; e < got.size(); ++e) {
          const double spread = std::max(largest, models::spread_of(settings, token, e));
          record(exact.value[e],
                 routing_gradient(settings, {}, exact.gauge[e], spread, token.logits[e]), got[e]);
        }
      };
      const auto fault = [&](const char* name) {
        return [&gate, name](double y, double e, double got) {
          gate.fault(name, DROPLESS_FP32, y, e, got);
        };
      };
      for (const Fp32Mode& mode : legal_modes()) {
        judge([&](double y, double e, double got) { gate.legal("fp32", DROPLESS_FP32, y, e, got); },
              mode);
      }
      if (shape.top_k == 1 || shape.width > 3) continue;
      judge(fault("scores stored in bf16"), models::bf16_scores());
      if (setting.renormalize != 0) {
        Fp32Mode constant = models::accurate();
        constant.forgets_the_sum = true;
        judge(fault("sum taken as constant"), constant);
      }
    }
  }
  return gate;
}

// Group scores: sums of the best members, in fp32.
Gate group_gate(double factor) {
  Gate gate("group distance", factor);
  std::mt19937_64 random(15);
  auto settings = route_settings(settings_list[3], 64, 8);
  settings.group_score = DROPLESS_GROUP_SCORE_TOP_SUM;
  for (int i = 0; i < 300; ++i) {
    const Token token = make_token(64, 8, 2, i % 2 == 1, random);
    const Weights exact = models::exact_weights(settings, token);
    const Weights got = models::fp32_weights(settings, {}, token, models::accurate());
    const Weights bad = models::fp32_weights(settings, {}, token, models::bf16_scores());
    for (const std::size_t width : {std::size_t{2}, std::size_t{4}}) {
      std::vector<double> distances, selections;
      double y = 0, one_less = 0;
      float fp32 = 0, of_bf16 = 0;
      for (std::size_t e = 0; e < width; ++e) {
        const double b = token.bias.empty() ? 0 : token.bias[e];
        const double selection = round_to(DROPLESS_FP32, exact.scores[e]) + b;
        distances.push_back(selection_distance(settings, {}, exact.scores[e], selection,
                                               models::spread_of(settings, token, e), b != 0));
        selections.push_back(selection);
        one_less = y;
        y += selection;
        fp32 += static_cast<float>(got.scores[e]) + static_cast<float>(b);
        of_bf16 += static_cast<float>(bad.scores[e]) + static_cast<float>(b);
      }
      const double d = group_distance(settings, distances, selections);
      gate.legal("fp32", DROPLESS_FP32, y, d, fp32);
      gate.fault("scores stored in bf16", DROPLESS_FP32, y, d, of_bf16);
      gate.fault("one member forgotten", DROPLESS_FP32, y, d, one_less);
    }
  }
  return gate;
}

// d_expert_scale: a sum over tokens of weights times cotangents.
Gate scale_gradient_gate(double factor) {
  Gate gate("d_expert_scale", factor);
  std::mt19937_64 random(16);
  for (const Setting& setting : settings_list) {
    const auto settings = route_settings(setting, 64, 6);
    for (const int tokens : {1, 5, 60}) {
      for (int i = 0; i < 20; ++i) {
        double y = 0, gauge = 0, largest = 0, last = 0;
        float fp32 = 0, of_bf16 = 0;
        for (int t = 0; t < tokens; ++t) {
          const Token token = make_token(64, 6, 1, false, random);
          const Weights exact = models::exact_weights(settings, token);
          const Weights got = models::fp32_weights(settings, {}, token, models::accurate());
          const Weights bad = models::fp32_weights(settings, {}, token, models::bf16_scores());
          for (const std::size_t e : token.ids) {
            largest = std::max(largest, models::spread_of(settings, token, e));
          }
          last = token.d_weights[0] * exact.weights[0];
          y += last;
          gauge += std::abs(last);
          const auto d = static_cast<float>(token.d_weights[0]);
          fp32 += d * static_cast<float>(got.weights[0]);
          of_bf16 += d * static_cast<float>(bad.weights[0]);
        }
        const double e = expert_scale_gradient(settings, {}, tokens, gauge, largest);
        gate.legal("fp32", DROPLESS_FP32, y, e, fp32);
        gate.fault("scores stored in bf16", DROPLESS_FP32, y, e, of_bf16);
        gate.fault("one token forgotten", DROPLESS_FP32, y, e, y - last);
      }
    }
  }
  return gate;
}

}  // namespace

void add_routing(std::vector<Proof>& proofs) {
  const char* stored = "scores stored in bf16";
  for (const Setting& setting : settings_list) {
    proofs.push_back({std::string("weight, ") + setting.name, "Scores and weights", stored,
                      [setting](double factor) { return weight_gate(setting, factor); }, 1.0 / 32,
                      16384});
  }
  proofs.push_back({"weight, subtract", "Scores and weights", stored, subtract_gate, 0.25, 16384});
  proofs.push_back({"selection distance", "Selection", stored, selection_gate, 1.0 / 16, 16384});
  proofs.push_back({"group distance", "Selection", stored, group_gate, 0.125, 32768});
  for (const Setting& setting : settings_list) {
    proofs.push_back({std::string("d_logits, ") + setting.name, "Router gradient", stored,
                      [setting](double factor) { return gradient_gate(setting, factor); },
                      1.0 / 256, 16384});
  }
  proofs.push_back(
      {"d_expert_scale", "Router gradient", stored, scale_gradient_gate, 1.0 / 64, 32768});
}

}  // namespace dropless::tolerances
