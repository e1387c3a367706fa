// SPDX-License-Identifier: Apache-2.0
// Top-k by insertion into a short sorted list.
#include "optimized/cpu/selection.h"

#include <cmath>
#include <limits>

namespace dropless::cpu {
namespace {

constexpr double lowest = -std::numeric_limits<double>::infinity();

// How many of a group's values its score adds up (ROUTING-4, declared width K / kept groups).
Index group_width(const RouteSettings& s) {
  if (s.group_score == DROPLESS_GROUP_SCORE_MAX) return 1;
  return std::min(s.top_k / s.kept_groups, s.group_size());
}

}  // namespace

void Largest::insert(double value, Index index) {
  if (entries_.size() == count_) entries_.pop_back();
  std::size_t place = entries_.size();
  entries_.push_back({value, index});
  for (; place > 0 && value > entries_[place - 1].value; --place) {
    entries_[place] = entries_[place - 1];
  }
  entries_[place] = {value, index};
}

Selector::Selector(const RouteSettings& settings)
    : settings_(settings),
      compared_(static_cast<std::size_t>(settings.experts)),
      grouped_(static_cast<std::size_t>(settings.groups > 1 ? settings.experts : 0)),
      experts_(settings.top_k),
      groups_(settings.kept_groups),
      members_(settings.groups > 1 ? group_width(settings) : 0) {}

// fl32(score) + bias, -Inf where the logit is -Inf whatever the bias (ROUTING-2, 7). Softmax
// without a bias is ordered by its logits, which no underflow can make equal.
void Selector::compare(const float* logits, const double* scores, const std::vector<float>& bias) {
  const bool by_logits = settings_.score_function == DROPLESS_SCORE_SOFTMAX && bias.empty();
  for (std::size_t e = 0; e < compared_.size(); ++e) {
    double value = static_cast<double>(static_cast<float>(scores[e]));
    if (!bias.empty()) value += static_cast<double>(bias[e]);
    if (std::isnan(value) || logits[e] == -std::numeric_limits<float>::infinity()) value = lowest;
    compared_[e] = by_logits ? static_cast<double>(logits[e]) : value;
    if (!grouped_.empty()) grouped_[e] = value;
  }
}

double Selector::group_score(Index group) {
  members_.clear();
  const Index size = settings_.group_size();
  for (Index e = group * size; e < (group + 1) * size; ++e) {
    members_.offer(grouped_[static_cast<std::size_t>(e)], e);
  }
  double sum = 0;
  for (const auto& member : members_.entries()) sum += member.value;
  return std::isnan(sum) ? lowest : sum;
}

void Selector::select(const float* logits, const double* scores, const std::vector<float>& bias,
                      std::vector<Index>& ids) {
  compare(logits, scores, bias);
  experts_.clear();
  if (settings_.groups == 1) {
    for (Index e = 0; e < settings_.experts; ++e) {
      experts_.offer(compared_[static_cast<std::size_t>(e)], e);
    }
  } else {
    groups_.clear();
    for (Index g = 0; g < settings_.groups; ++g) groups_.offer(group_score(g), g);
    // Ties go to the lowest expert index, so that kept groups are visited in ascending order.
    std::vector<Index> kept;
    for (const auto& group : groups_.entries()) kept.push_back(group.index);
    std::sort(kept.begin(), kept.end());
    for (const Index g : kept) {
      for (Index e = g * settings_.group_size(); e < (g + 1) * settings_.group_size(); ++e) {
        experts_.offer(compared_[static_cast<std::size_t>(e)], e);
      }
    }
  }
  for (std::size_t j = 0; j < ids.size(); ++j) ids[j] = experts_.entries()[j].index;
}

}  // namespace dropless::cpu
