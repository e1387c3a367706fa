// SPDX-License-Identifier: Apache-2.0
// Places of ranks in words.
#include "conformance/runner/phase_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace dropless::conformance {
namespace {

// Threads share a pipe: what is shorter than its unit is written in one piece.
constexpr std::size_t longest_departure = 1000;

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string announcement_of_rank(int rank, int ranks, std::string_view operation) {
  return fmt::format("@{}/{} {}", rank, ranks, operation);
}

std::string departure_text(const Verdict& verdict) {
  std::string text = fmt::format("!{} {}", name(verdict.status), verdict.reason);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.substr(0, longest_departure);
}

std::string PhaseRecord::Place::text() const {
  if (left) {
    return acceptable(*left) || reason.empty() ? fmt::format("done ({})", name(*left))
                                               : fmt::format("gone ({})", reason);
  }
  if (inside) return fmt::format("inside {}", operation());
  if (calls.empty()) return "before the first operation";
  return fmt::format("after {} had returned", operation());
}

void PhaseRecord::hear(std::string_view announcement) {
  int rank = -1;
  if (announcement.starts_with('@')) {
    const char* end = announcement.data() + announcement.size();
    const auto slash = std::from_chars(announcement.data() + 1, end, rank).ptr;
    int ranks = 0;
    const auto space = slash == end ? end : std::from_chars(slash + 1, end, ranks).ptr;
    const auto now = std::chrono::steady_clock::now();
    if (places_.empty()) {
      for (int other = 0; other < ranks; ++other) places_[other].since = now;
    }
    announcement.remove_prefix(
        std::min(announcement.size(), static_cast<std::size_t>(space - announcement.data()) + 1));
  }
  Place& place = places_[rank];
  place.since = std::chrono::steady_clock::now();
  if (announcement.starts_with('!')) {
    const std::size_t space = std::min(announcement.find(' '), announcement.size());
    place.left = status_from(announcement.substr(1, space - 1)).value_or(Status::internal_error);
    place.reason = announcement.substr(std::min(space + 1, announcement.size()));
    place.order = ++departures_;
    return;
  }
  if (announcement.starts_with('~')) {
    place.end_inside = fmt::format(" {} ", announcement.substr(1));
    return;
  }
  place.inside = !announcement.empty();
  if (place.inside) place.calls.emplace_back(announcement);
}

void PhaseRecord::note_busy(int rank, bool busy) {
  if (const auto found = places_.find(rank); found != places_.end()) found->second.busy = busy;
}

std::string PhaseRecord::operation() const {
  if (places_.empty()) return "";
  if (const Blame found = blame(); !found.ranks.empty()) return found.operation;
  return places_.begin()->second.operation();
}

bool PhaseRecord::inside() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& entry) { return entry.second.inside; });
}

std::string PhaseRecord::in_words(std::optional<int> left_out, bool with_times) const {
  struct Group {
    std::vector<int> ranks;
    double seconds = 0;  // of the one that has been there longest
  };
  std::map<std::string, Group> groups;
  for (const auto& [rank, place] : places_) {
    if (rank == left_out) continue;
    Group& group = groups[place.text()];
    group.ranks.push_back(rank);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - place.since;
    if (!place.left) group.seconds = std::max(group.seconds, time.count());
  }
  std::string text;
  for (const auto& [place, group] : groups) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rank_list(group.ranks), place);
    if (with_times && group.seconds > 0) text += fmt::format(" since {:.1f} s", group.seconds);
  }
  return text;
}

std::string PhaseRecord::where(bool with_times) const {
  if (places_.empty()) return Place{}.text();
  if (places_.size() == 1) return places_.begin()->second.text();
  std::string text = in_words(std::nullopt, with_times);
  if (const Blame found = blame(); !found.ranks.empty()) text += "; " + found.why;
  return text;
}

std::string PhaseRecord::places() const {
  return places_.size() < 2 ? where() : in_words(std::nullopt, false);
}

std::string PhaseRecord::where_others_are(int rank) const {
  return in_words(rank, true);
}

std::string PhaseRecord::where_is(int rank) const {
  const auto found = places_.find(rank);
  return found == places_.end() ? Place{}.text() : found->second.text();
}

bool PhaseRecord::Place::may_end() const {
  return inside && !left && end_inside.find(" " + operation() + " ") != std::string::npos;
}

bool PhaseRecord::may_end(int rank) const {
  const auto found = places_.find(rank);
  return found != places_.end() && found->second.may_end();
}

bool PhaseRecord::may_end() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& entry) { return entry.second.may_end(); });
}

std::optional<PhaseRecord::Departure> PhaseRecord::departure() const {
  const auto* first = first_bad_departure();
  if (first == nullptr) return std::nullopt;
  return Departure{first->first, *first->second.left,
                   fmt::format("{}: {}", rank_list({first->first}), first->second.reason)};
}

}  // namespace dropless::conformance
