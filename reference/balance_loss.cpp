// SPDX-License-Identifier: Apache-2.0
// Balance loss: coeff * c * E/K * sum_e f_e P_e over the tokens of a scope (ROUTING-14).
#include <algorithm>
#include <cmath>

#include "reference/checks.h"
#include "reference/losses.h"
#include "reference/routing_checks.h"
#include "reference/scores.h"
#include "reference/selection.h"

namespace dropless::reference {
namespace {

constexpr double kSmallestRowSum = 0x1p-126;

bool is_masked(const BalanceInput& input, Index t) {
  return !input.token_mask.empty() && input.token_mask[at(t)] == 0;
}

Input row_of(const dropless_route_settings& settings, const BalanceInput& input, Index t) {
  return input.logits.subspan(at(t * settings.num_experts), at(settings.num_experts));
}

void check_boundaries(Indices boundaries, Index tokens) {
  if (boundaries.empty()) throw Refused("sequence_boundaries is missing");
  for (std::size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] < boundaries[i - 1]) {
      throw Refused("sequence_boundaries[" + std::to_string(i) +
                    "] = " + std::to_string(boundaries[i]) + " falls");
    }
  }
  if (boundaries.front() != 0 || boundaries.back() != tokens) {
    throw Refused("sequence_boundaries runs from " + std::to_string(boundaries.front()) + " to " +
                  std::to_string(boundaries.back()) + ", not from 0 to " + std::to_string(tokens));
  }
}

void check_accumulated(Index num_experts, const BalanceInput& input) {
  check_size(input.accumulated_counts.size(), num_experts, "accumulated_counts");
  for (std::size_t e = 0; e < input.accumulated_counts.size(); ++e) {
    if (input.accumulated_counts[e] < 0) {
      throw Refused("accumulated_counts[" + std::to_string(e) + "] is negative");
    }
  }
  if (input.accumulated_tokens < 0) throw Refused("accumulated_tokens is negative");
}

void check_input(const dropless_route_settings& settings, const dropless_profile& profile,
                 int scope, const BalanceInput& input) {
  check_route_selection(settings, profile, false);
  if (input.tokens < 0) throw Refused("tokens is negative");
  check_size(input.logits.size(), input.tokens * settings.num_experts, "logits");
  check_ids(input.tokens, settings.top_k, settings.num_experts, input.ids, "ids");
  if (!input.token_mask.empty()) check_size(input.token_mask.size(), input.tokens, "token_mask");
  if (scope < DROPLESS_SCOPE_MICRO_BATCH || scope > DROPLESS_SCOPE_GLOBAL) {
    throw Refused("scope = " + std::to_string(scope) + " is outside 0 .. 2");
  }
  if (scope == DROPLESS_SCOPE_SEQUENCE) check_boundaries(input.sequence_boundaries, input.tokens);
  if (scope == DROPLESS_SCOPE_GLOBAL) check_accumulated(settings.num_experts, input);
}

// n_e over the unmasked tokens begin .. end-1.
std::vector<Index> count(const dropless_route_settings& settings, const dropless_profile& profile,
                         const BalanceInput& input, Index begin, Index end) {
  std::vector<Index> counts(at(settings.num_experts), 0);
  for (Index t = begin; t < end; ++t) {
    if (is_masked(input, t)) continue;
    if (profile.balance_counts == DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K) {
      const Input logits = row_of(settings, input, t);
      const Doubles row_scores = scores(settings.score_function, logits);
      const Doubles selection = selection_scores(settings, logits, row_scores, {});
      for (const Index id : top_k(profile, settings.top_k, selection, expert_mask(logits), {})) {
        ++counts[at(id)];
      }
    } else {
      for (const Index id : input.ids.subspan(at(t * settings.top_k), at(settings.top_k))) {
        if (id >= 0) ++counts[at(id)];
      }
    }
  }
  return counts;
}

// A run of tokens over which f and P are taken. Only runs with an unmasked token are listed.
struct Run {
  Index begin, end;
  Index tokens;  // unmasked ones
  Doubles f;     // [E]
};

std::vector<Run> runs(const dropless_route_settings& settings, const dropless_profile& profile,
                      int scope, const BalanceInput& input) {
  std::vector<Index> whole{0, input.tokens};
  const Indices boundaries =
      scope == DROPLESS_SCOPE_SEQUENCE ? input.sequence_boundaries : Indices(whole);
  std::vector<Run> result;
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    Run run{boundaries[s], boundaries[s + 1], 0, {}};
    for (Index t = run.begin; t < run.end; ++t) run.tokens += is_masked(input, t) ? 0 : 1;
    if (run.tokens == 0) continue;
    std::vector<Index> n = count(settings, profile, input, run.begin, run.end);
    Index tokens = run.tokens;
    if (scope == DROPLESS_SCOPE_GLOBAL) {
      for (std::size_t e = 0; e < n.size(); ++e) n[e] += input.accumulated_counts[e];
      tokens += input.accumulated_tokens;
    }
    for (const Index n_e : n) {
      run.f.push_back(static_cast<double>(n_e) / static_cast<double>(tokens));
    }
    result.push_back(std::move(run));
  }
  return result;
}

// p_te: softmax over E, or score / max(row sum, 2^-126).
Doubles balance_probabilities(const dropless_route_settings& settings, Input logits) {
  Doubles p = scores(settings.score_function, logits);
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) return p;
  double sum = 0;
  for (const double score : p) sum += score;
  const double divisor = sum < kSmallestRowSum ? kSmallestRowSum : sum;
  for (double& score : p) score /= divisor;
  return p;
}

double loss_factor(const dropless_route_settings& settings, const dropless_profile& profile,
                   double coeff) {
  const double k = static_cast<double>(settings.top_k);
  const double c = profile.balance_factor == DROPLESS_BALANCE_FACTOR_TOP_K ? k : 1;
  return coeff * c * static_cast<double>(settings.num_experts) / k;
}

// Gradient of one row's logits from d_p [E].
Gauged row_backward(const dropless_route_settings& settings, Input logits, const Gauged& d_p) {
  const Doubles p = balance_probabilities(settings, logits);
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX) return softmax_backward(p, d_p);
  double sum = 0, dot = 0, dot_gauge = 0;
  for (const double score : scores(settings.score_function, logits)) sum += score;
  // p = s / D. With D = sum s: d_s = (d_p - sum d_p p) / D; with the constant D: d_s = d_p / D.
  const bool follows_sum = !(sum < kSmallestRowSum);
  const double divisor = follows_sum ? sum : kSmallestRowSum;
  for (std::size_t e = 0; follows_sum && e < p.size(); ++e) {
    dot += d_p.value[e] * p[e];
    dot_gauge += d_p.gauge[e] * p[e];
  }
  Gauged d_logits;
  for (std::size_t e = 0; e < p.size(); ++e) {
    const double slope = pointwise_slope(settings.score_function, logits[e]);
    d_logits.value.push_back(slope * (d_p.value[e] - dot) / divisor);
    d_logits.gauge.push_back(slope * (d_p.gauge[e] + dot_gauge) / divisor);
  }
  return d_logits;
}

}  // namespace

std::vector<Index> balance_counts(const dropless_route_settings& settings,
                                  const dropless_profile& profile, const BalanceInput& input) {
  check_input(settings, profile, DROPLESS_SCOPE_MICRO_BATCH, input);
  return count(settings, profile, input, 0, input.tokens);
}

Loss balance_loss(const dropless_route_settings& settings, const dropless_profile& profile,
                  double coeff, int scope, const BalanceInput& input) {
  check_input(settings, profile, scope, input);
  const std::vector<Run> all = runs(settings, profile, scope, input);
  Loss loss;
  if (all.empty()) return loss;  // GENERAL-4
  for (const Run& run : all) {
    for (Index t = run.begin; t < run.end; ++t) {
      if (is_masked(input, t)) continue;
      const Doubles p = balance_probabilities(settings, row_of(settings, input, t));
      for (std::size_t e = 0; e < p.size(); ++e) {
        loss.value += run.f[e] * p[e] / static_cast<double>(run.tokens);
      }
    }
  }
  loss.value *= loss_factor(settings, profile, coeff) / static_cast<double>(all.size());
  loss.gauge = std::abs(loss.value);  // no term is negative
  return loss;
}

Gauged balance_loss_backward(const dropless_route_settings& settings,
                             const dropless_profile& profile, double coeff, int scope,
                             const BalanceInput& input, double d_loss) {
  check_input(settings, profile, scope, input);
  const std::vector<Run> all = runs(settings, profile, scope, input);
  Gauged d_logits{Doubles(input.logits.size(), 0.0), Doubles(input.logits.size(), 0.0)};
  for (const Run& run : all) {
    const double factor = d_loss * loss_factor(settings, profile, coeff) /
                          static_cast<double>(all.size()) / static_cast<double>(run.tokens);
    Gauged d_p;
    for (const double f : run.f) {
      d_p.value.push_back(factor * f);
      d_p.gauge.push_back(std::abs(factor * f));
    }
    for (Index t = run.begin; t < run.end; ++t) {
      if (is_masked(input, t)) continue;
      const Gauged row = row_backward(settings, row_of(settings, input, t), d_p);
      const Index first = t * settings.num_experts;
      std::copy(row.value.begin(), row.value.end(), d_logits.value.begin() + first);
      std::copy(row.gauge.begin(), row.gauge.end(), d_logits.gauge.begin() + first);
    }
  }
  return d_logits;
}

}  // namespace dropless::reference
