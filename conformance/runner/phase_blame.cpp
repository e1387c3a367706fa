// SPDX-License-Identifier: Apache-2.0
// Which rank the others wait for.
//
// All that is known is what a rank has entered and left, and whether it is busy. A rank that has
// left the case badly is to blame. So is the only one that computes where others sleep. So is the
// one that makes another call than most do: it has skipped one. Else somebody is behind, or has
// gone ahead where most of the others still wait for its part: the fewer are to blame.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "conformance/runner/phase_record.h"

namespace dropless::conformance {

std::int64_t PhaseRecord::Place::progress() const {
  if (left) return std::numeric_limits<std::int64_t>::max();
  return 2 * static_cast<std::int64_t>(calls.size()) - (inside ? 1 : 0);
}

// The index-th call of a rank; empty where it has ended the case instead.
std::optional<std::string> PhaseRecord::Place::call(std::size_t index) const {
  if (index < calls.size()) return calls[index];
  if (left) return "";
  return std::nullopt;
}

const std::pair<const int, PhaseRecord::Place>* PhaseRecord::first_bad_departure() const {
  const std::pair<const int, Place>* first = nullptr;
  for (const auto& entry : places_) {
    if (!entry.second.left || acceptable(*entry.second.left)) continue;
    if (first == nullptr || entry.second.order < first->second.order) first = &entry;
  }
  return first;
}

std::int64_t PhaseRecord::least_progress() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [rank, place] : places_) least = std::min(least, place.progress());
  return least;
}

Blame PhaseRecord::of_the_busy() const {
  Blame blame;
  bool somebody_sleeps = false;
  for (const auto& [rank, place] : places_) {
    if (place.left || !place.busy) continue;
    if (!*place.busy) {
      somebody_sleeps = true;
    } else if (place.progress() > least_progress()) {
      return {};  // it works on something that others have not reached
    } else {
      blame.ranks.push_back(rank);
      blame.operation = place.operation();
    }
  }
  if (!somebody_sleeps || blame.ranks.empty()) return {};
  blame.why = fmt::format("busy while the others wait: {}", rank_list(blame.ranks));
  return blame;
}

Blame PhaseRecord::of_the_deviating() const {
  for (std::size_t index = 0;; ++index) {
    std::map<std::string, std::vector<int>> by_call;
    for (const auto& [rank, place] : places_) {
      if (const auto call = place.call(index)) by_call[*call].push_back(rank);
    }
    if (by_call.empty() || (by_call.size() == 1 && by_call.begin()->first.empty())) return {};
    if (by_call.size() == 1) continue;
    const auto most = std::max_element(
        by_call.begin(), by_call.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    Blame blame;
    blame.operation = most->first;
    for (const auto& [call, ranks] : by_call) {
      if (call == most->first && ranks.size() > 1) continue;
      blame.ranks.insert(blame.ranks.end(), ranks.begin(), ranks.end());
      blame.why +=
          fmt::format("{}{} {}", blame.why.empty() ? "out of step: " : ", ", rank_list(ranks),
                      call.empty() ? "ended the case" : "called " + call);
    }
    if (most->second.size() > 1) {
      blame.why += fmt::format(" where {} {}", rank_list(most->second),
                               most->first.empty() ? "ended the case" : "called " + most->first);
    }
    return blame;
  }
}

Blame PhaseRecord::of_the_slow() const {
  const std::int64_t least = least_progress();
  Blame behind, ahead;
  bool inside = false;
  for (const auto& [rank, place] : places_) {
    if (place.progress() != least) {
      ahead.ranks.push_back(rank);
      continue;
    }
    behind.ranks.push_back(rank);
    behind.operation = place.operation();
    inside = place.inside;
  }
  if (ahead.ranks.empty() || behind.ranks.empty()) return {};
  ahead.operation = behind.operation;
  behind.why = fmt::format("behind: {}", rank_list(behind.ranks));
  ahead.why =
      fmt::format("left {} without the others: {}", ahead.operation, rank_list(ahead.ranks));
  if (!inside || behind.ranks.size() < ahead.ranks.size()) return behind;
  if (behind.ranks.size() > ahead.ranks.size()) return ahead;
  behind.why += fmt::format(", or {}", ahead.why);
  behind.ranks.insert(behind.ranks.end(), ahead.ranks.begin(), ahead.ranks.end());
  return behind;
}

Blame PhaseRecord::blame() const {
  if (places_.size() < 2) return {};
  if (const auto* first = first_bad_departure()) {
    return {{first->first},
            first->second.operation(),
            fmt::format("first to leave: {}", rank_list({first->first}))};
  }
  for (const Blame& found : {of_the_busy(), of_the_deviating(), of_the_slow()}) {
    if (!found.ranks.empty()) return found;
  }
  return {};
}

}  // namespace dropless::conformance
