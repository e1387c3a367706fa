// SPDX-License-Identifier: Apache-2.0
// Routing, forward, and the expert-bias update: ROUTING-1 to 11, 13 and 16.
#include "reference/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/checks.h"
#include "reference/routing_checks.h"
#include "reference/scores.h"
#include "reference/selection.h"

namespace dropless::reference {
namespace {

void check_input(const dropless_route_settings& settings, const RoutingInput& input) {
  if (input.tokens < 0) throw Refused("tokens is negative");
  check_size(input.logits.size(), input.tokens * settings.num_experts, "logits");
  if (!input.expert_bias.empty()) {
    check_size(input.expert_bias.size(), settings.num_experts, "expert_bias");
  }
  if (!input.expert_scale.empty()) {
    check_size(input.expert_scale.size(), settings.num_experts, "expert_scale");
  }
  if (!input.token_mask.empty()) check_size(input.token_mask.size(), input.tokens, "token_mask");
  if (!input.given_ids.empty()) {
    check_ids(input.tokens, settings.top_k, settings.num_experts, input.given_ids, "given_ids");
  }
}

// ROUTING-4: the groups in which this token's experts may lie.
std::vector<std::uint8_t> keep_groups(const dropless_route_settings& settings,
                                      const dropless_profile& profile, Input scores_of_groups) {
  std::vector<std::uint8_t> kept(scores_of_groups.size(), 0);
  const std::vector<Index> best = ranking(profile, scores_of_groups);
  for (Index i = 0; i < settings.kept_groups; ++i) kept[at(best[at(i)])] = 1;
  return kept;
}

// Scores of the chosen experts before renormalisation (ROUTING-6), 0 for id -1.
Doubles chosen_scores(const dropless_route_settings& settings, const dropless_profile& profile,
                      Input logits, Input scores, Input selection, Input bias,
                      const std::vector<Index>& ids) {
  Doubles chosen(ids.size(), 0.0);
  if (softmax_after_top_k(settings)) {
    Doubles selected;
    for (const Index id : ids) {
      if (id >= 0) selected.push_back(logits[at(id)]);
    }
    const Doubles probabilities = softmax(selected);
    std::size_t next = 0;
    for (std::size_t j = 0; j < ids.size(); ++j) {
      if (ids[j] >= 0) chosen[j] = probabilities[next++];
    }
  } else {
    // ROUTING-2: without a bias there is nothing to subtract.
    const bool subtract = profile.weight_source == DROPLESS_WEIGHT_SUBTRACT && !bias.empty();
    for (std::size_t j = 0; j < ids.size(); ++j) {
      if (ids[j] < 0) continue;
      const std::size_t e = at(ids[j]);
      chosen[j] = subtract ? selection[e] - bias[e] : scores[e];
    }
  }
  // ROUTING-7: masked picks weigh 0, except where the whole row is undefined (ROUTING-8).
  if (!is_undefined_row(settings.score_function, logits)) {
    const std::vector<std::uint8_t> mask = expert_mask(logits);
    for (std::size_t j = 0; j < ids.size(); ++j) {
      if (ids[j] >= 0 && mask[at(ids[j])] == 0) chosen[j] = 0;
    }
  }
  return chosen;
}

}  // namespace

Routing route(const dropless_route_settings& settings, const dropless_profile& profile,
              const RoutingInput& input) {
  check_route_selection(settings, profile, !input.expert_bias.empty());
  check_input(settings, input);
  const Index num_experts = settings.num_experts;
  const Index k = settings.top_k;
  const bool given = !input.given_ids.empty();
  const bool grouped = has_groups(settings) && !given;  // ROUTING-13

  Routing result;
  result.ids.assign(at(input.tokens * k), -1);
  result.weights.assign(at(input.tokens * k), 0.0);
  result.weight_sum.assign(at(input.tokens), 0.0);
  result.tokens_per_expert.assign(at(num_experts), 0);
  if (grouped) {
    result.group_scores.assign(at(input.tokens * settings.num_groups), 0.0);
    result.group_kept.assign(at(input.tokens * settings.num_groups), 0);
  }

  for (Index t = 0; t < input.tokens; ++t) {
    const Input logits = input.logits.subspan(at(t * num_experts), at(num_experts));
    const Doubles row_scores = scores(settings.score_function, logits);
    const Input bias = given ? Input{} : input.expert_bias;
    const Doubles selection = selection_scores(settings, logits, row_scores, bias);
    result.scores.insert(result.scores.end(), row_scores.begin(), row_scores.end());
    result.selection.insert(result.selection.end(), selection.begin(), selection.end());
    if (!input.token_mask.empty() && input.token_mask[at(t)] == 0) continue;  // ROUTING-9

    std::vector<Index> ids;
    if (given) {
      const Indices row = input.given_ids.subspan(at(t * k), at(k));
      ids.assign(row.begin(), row.end());
    } else {
      std::vector<std::uint8_t> kept;
      if (grouped) {
        const Doubles of_groups = group_scores(settings, profile, selection);
        kept = keep_groups(settings, profile, of_groups);
        std::copy(of_groups.begin(), of_groups.end(),
                  result.group_scores.begin() + t * settings.num_groups);
        std::copy(kept.begin(), kept.end(), result.group_kept.begin() + t * settings.num_groups);
      }
      ids = top_k(profile, k, selection, expert_mask(logits), kept);
      if (profile.selection_order == DROPLESS_ORDER_ASCENDING_ID) {
        std::sort(ids.begin(), ids.end());
      }
    }

    const Doubles chosen =
        chosen_scores(settings, profile, logits, row_scores, selection, bias, ids);
    double sum = 0;
    for (const double score : chosen) sum += score;
    result.weight_sum[at(t)] = sum;
    const double divisor = weight_divisor(settings, sum);
    for (Index j = 0; j < k; ++j) {
      const Index id = ids[at(j)];
      result.ids[at(t * k + j)] = id;
      if (id < 0) continue;
      ++result.tokens_per_expert[at(id)];
      double weight = chosen[at(j)];
      // A masked pick weighs 0 also where the divisor is 0 (all picks masked, eps 0).
      if (weight != 0) weight /= divisor;
      weight *= settings.scaling_factor;
      if (!input.expert_scale.empty()) weight *= input.expert_scale[at(id)];
      result.weights[at(t * k + j)] = weight;
    }
  }
  return result;
}

std::vector<float> bias_update(double rate, Index num_experts, Indices counts,
                               std::span<const float> expert_bias) {
  if (num_experts < 1) throw Refused("num_experts is below 1");
  if (!std::isfinite(rate)) throw Refused("rate is not finite");
  check_size(expert_bias.size(), num_experts, "expert_bias");
  if (counts.size() % at(num_experts) != 0) {
    throw Refused("counts has " + std::to_string(counts.size()) +
                  " elements, no multiple of num_experts = " + std::to_string(num_experts));
  }
  std::vector<Index> load(at(num_experts), 0);
  Index total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) throw Refused("counts[" + std::to_string(i) + "] is negative");
    if (counts[i] > std::numeric_limits<Index>::max() - total) {
      throw Refused("the sum of counts is beyond 2^63 - 1");
    }
    total += counts[i];
    load[i % at(num_experts)] += counts[i];
  }
  std::vector<float> updated;
  for (std::size_t e = 0; e < at(num_experts); ++e) {
    // sign(sum(n) - E * n_e), compared by division so that the product cannot overflow.
    const Index mean = total / num_experts, rest = total % num_experts;
    double sign = load[e] < mean ? 1 : load[e] > mean ? -1 : rest > 0 ? 1 : 0;
    updated.push_back(static_cast<float>(static_cast<double>(expert_bias[e]) + rate * sign));
  }
  return updated;
}

}  // namespace dropless::reference
