// SPDX-License-Identifier: Apache-2.0
// Places of ranks, and which of them the others wait for.
#include "conformance/runner/phase_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace dropless::conformance {
namespace {

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

std::string announcement_of_rank(int rank, int ranks, std::string_view operation) {
  return fmt::format("@{}/{} {}", rank, ranks, operation);
}

std::string PhaseRecord::Place::text() const {
  if (inside) return fmt::format("inside {}", operation);
  if (operation.empty()) return "before the first operation";
  return fmt::format("after {} had returned", operation);
}

void PhaseRecord::hear(std::string_view announcement) {
  int rank = -1;
  if (announcement.starts_with('@')) {
    const char* end = announcement.data() + announcement.size();
    const auto slash = std::from_chars(announcement.data() + 1, end, rank).ptr;
    int ranks = 0;
    const auto space = slash == end ? end : std::from_chars(slash + 1, end, ranks).ptr;
    if (places_.empty()) {
      for (int other = 0; other < ranks; ++other) places_[other];
    }
    announcement.remove_prefix(
        std::min(announcement.size(), static_cast<std::size_t>(space - announcement.data()) + 1));
  }
  Place& place = places_[rank];
  place.inside = !announcement.empty();
  if (!place.inside) return;
  place.operation = announcement;
  ++place.entered;
}

std::int64_t PhaseRecord::fewest() const {
  std::int64_t least = places_.begin()->second.entered;
  for (const auto& [rank, place] : places_) least = std::min(least, place.entered);
  return least;
}

std::string PhaseRecord::operation() const {
  if (places_.empty()) return "";
  const std::int64_t least = fewest();
  for (const auto& [rank, place] : places_) {
    if (place.entered == least) return place.operation;
  }
  return "";
}

bool PhaseRecord::inside() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& entry) { return entry.second.inside; });
}

std::string PhaseRecord::where() const {
  if (places_.empty()) return Place{}.text();
  if (places_.size() == 1) return places_.begin()->second.text();
  std::map<std::string, std::vector<int>> by_place;
  std::vector<int> behind;
  const std::int64_t least = fewest();
  for (const auto& [rank, place] : places_) {
    by_place[place.text()].push_back(rank);
    if (place.entered == least) behind.push_back(rank);
  }
  std::string text;
  for (const auto& [place, ranks] : by_place) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rank_list(ranks), place);
  }
  if (behind.size() < places_.size()) text += fmt::format("; behind: {}", rank_list(behind));
  return text;
}

}  // namespace dropless::conformance
