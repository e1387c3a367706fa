// SPDX-License-Identifier: Apache-2.0
// Selection of experts: the compared values, the tie rule, groups and top-k (ROUTING-2 to 5, 7, 8).
#include "reference/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/checks.h"

namespace dropless::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// NaN above every number, then larger before smaller.
bool is_better(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return a > b;
}

// Position of each of `count` members among equals.
std::vector<Index> tie_positions(const dropless_profile& profile, Index count) {
  std::vector<Index> positions(at(count));
  for (Index i = 0; i < count; ++i) {
    switch (profile.tie_rule) {
      case DROPLESS_TIE_HIGHEST_INDEX:
        positions[at(i)] = count - 1 - i;
        break;
      case DROPLESS_TIE_DECLARED:
        positions[at(i)] = profile.tie_rank(count, i);
        break;
      default:
        positions[at(i)] = i;
    }
  }
  return positions;
}

}  // namespace

std::vector<Index> ranking(const dropless_profile& profile, Input values, Mask mask) {
  const std::vector<Index> ties = tie_positions(profile, static_cast<Index>(values.size()));
  const auto better = [&](Index a, Index b) {
    const bool masked_a = !mask.empty() && mask[at(a)] == 0;
    const bool masked_b = !mask.empty() && mask[at(b)] == 0;
    if (masked_a != masked_b) return masked_b;
    if (is_better(values[at(a)], values[at(b)])) return true;
    if (is_better(values[at(b)], values[at(a)])) return false;
    return ties[at(a)] < ties[at(b)];
  };
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), better);
  return order;
}

std::vector<std::uint8_t> expert_mask(Input logits) {
  std::vector<std::uint8_t> mask;
  for (const double logit : logits) mask.push_back(logit == kMinusInfinity ? 0 : 1);
  return mask;
}

Doubles selection_scores(const dropless_route_settings& settings, Input logits, Input scores,
                         Input bias) {
  if (settings.score_function == DROPLESS_SCORE_SOFTMAX &&
      settings.softmax_order == DROPLESS_SOFTMAX_AFTER_TOP_K) {
    return Doubles(logits.begin(), logits.end());
  }
  Doubles selection;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const double rounded = static_cast<double>(static_cast<float>(scores[e]));
    const double biased = bias.empty() ? rounded : rounded + bias[e];
    // ROUTING-7: whatever the bias.
    selection.push_back(logits[e] == kMinusInfinity ? kMinusInfinity : biased);
  }
  return selection;
}

Doubles group_scores(const dropless_route_settings& settings, const dropless_profile& profile,
                     Input selection) {
  const Index members = settings.num_experts / settings.num_groups;
  Index width = 1;  // DeepSeek-V2: the best member alone
  if (settings.group_score == DROPLESS_GROUP_SCORE_TOP_SUM) {
    width =
        profile.group_width == DROPLESS_GROUP_WIDTH_TWO ? 2 : settings.top_k / settings.kept_groups;
  }
  Doubles result;
  for (Index g = 0; g < settings.num_groups; ++g) {
    Doubles group(selection.begin() + g * members, selection.begin() + (g + 1) * members);
    std::sort(group.begin(), group.end(), is_better);
    const Index best = std::min(width, members);
    double sum = 0;
    for (Index i = 0; i < best; ++i) sum += group[at(i)];
    // A masked member counts as -Inf even beside a bias of +Inf.
    if (group[at(best - 1)] == kMinusInfinity && !std::isnan(group[0])) sum = kMinusInfinity;
    result.push_back(sum);
  }
  return result;
}

std::vector<Index> top_k(const dropless_profile& profile, Index k, Input selection, Mask experts,
                         Mask group_kept) {
  std::vector<Index> ids;
  for (const Index e : ranking(profile, selection, experts)) {
    if (static_cast<Index>(ids.size()) == k) break;
    const std::size_t members =
        group_kept.empty() ? selection.size() : selection.size() / group_kept.size();
    if (group_kept.empty() || group_kept[at(e) / members] != 0) ids.push_back(e);
  }
  return ids;
}

}  // namespace dropless::reference
