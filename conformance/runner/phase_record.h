// SPDX-License-Identifier: Apache-2.0
// Where a case is: the operation that was entered last, on every rank of a collective case, and
// which rank the others wait for.
//
// Announcements: "quantize" entered, "" left; of a rank: "@2/4 exchange_plan", "@2/4 ", and, once
// the rank has left the case, "@2/4 !fail reason". "~exchange_plan exchange_dispatch": its process
// may end inside these.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/verdict.h"

namespace dropless::conformance {

// Who holds the others up, as far as it can be told from outside.
struct Blame {
  std::vector<int> ranks;  // empty: nobody can be told from the others
  std::string operation;   // the call in which it happened
  std::string why;         // "behind: rank 2"
};

class PhaseRecord {
 public:
  void clear() { places_.clear(); }
  void hear(std::string_view announcement);
  // Whether a rank computes (or waits in a busy loop) while others may sleep.
  void note_busy(int rank, bool busy);

  // Of the rank that is to blame, where there are several; empty before the first operation.
  [[nodiscard]] std::string operation() const;
  [[nodiscard]] bool inside() const;  // any rank entered an operation and did not leave it
  // "inside exchange_plan" or, of ranks, "ranks 0, 1, 3 inside exchange_dispatch, rank 2 after
  // exchange_plan had returned; behind: rank 2"; with times "inside exchange_plan since 3.1 s".
  [[nodiscard]] std::string where(bool with_times = false) const;
  // The same without blame.
  [[nodiscard]] std::string places() const;
  // The same of all but one, with times and without blame.
  [[nodiscard]] std::string where_others_are(int rank) const;
  // The same of one rank: "inside exchange_plan".
  [[nodiscard]] std::string where_is(int rank) const;
  [[nodiscard]] Blame blame() const;
  // Whether the end of this rank's process, or of the process of all of them, is what the case asks
  // for.
  [[nodiscard]] bool may_end(int rank) const;
  [[nodiscard]] bool may_end() const;
  // The first rank that left the case with neither pass nor not_supported: whoever is still in it
  // waits in vain.
  struct Departure {
    int rank = 0;
    Status status = Status::internal_error;
    std::string reason;  // "rank 2: ..."
  };
  [[nodiscard]] std::optional<Departure> departure() const;

 private:
  struct Place {
    std::vector<std::string> calls;  // operations entered so far
    std::string end_inside;          // operations, each after a space
    bool inside = false;
    std::optional<Status> left;  // the case
    std::string reason;
    std::int64_t order = 0;  // of leaving
    std::optional<bool> busy;
    std::chrono::steady_clock::time_point since;
    [[nodiscard]] std::string operation() const { return calls.empty() ? "" : calls.back(); }
    [[nodiscard]] std::string text() const;
    [[nodiscard]] bool may_end() const;
    // Counts what was entered and left; a rank that has left the case is ahead of all others.
    [[nodiscard]] std::int64_t progress() const;
    [[nodiscard]] std::optional<std::string> call(std::size_t index) const;
  };
  [[nodiscard]] std::string in_words(std::optional<int> left_out, bool with_times) const;
  [[nodiscard]] const std::pair<const int, Place>* first_bad_departure() const;
  [[nodiscard]] Blame of_the_busy() const;
  [[nodiscard]] Blame of_the_deviating() const;
  [[nodiscard]] Blame of_the_slow() const;
  [[nodiscard]] std::int64_t least_progress() const;
  std::map<int, Place> places_;  // -1: no ranks
  std::int64_t departures_ = 0;
};

// "@2/4 exchange_plan": what a rank announces.
std::string announcement_of_rank(int rank, int ranks, std::string_view operation);
// "!fail reason": what it announces when it has left the case.
std::string departure_text(const Verdict& verdict);

std::string rank_list(const std::vector<int>& ranks);  // "rank 2", "ranks 0, 1"

}  // namespace dropless::conformance
