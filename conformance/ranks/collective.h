// SPDX-License-Identifier: Apache-2.0
// One case in a group of rank processes: what has been heard from each, and the verdict it makes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/judge/verdict.h"
#include "conformance/ranks/link.h"
#include "conformance/ranks/rank_hosts.h"
#include "conformance/runner/phase_record.h"

namespace dropless::conformance {

class Collective {
 public:
  struct Voices {
    std::function<void(int rank, const std::string& line)> to_rank;
    std::function<void(const std::string& announcement)> to_supervisor;
  };
  Collective(int ranks, std::int64_t ticket, double timeout_seconds, Voices voices);

  void take(const Heard& heard);
  // True when nothing more is to be waited for: all ranks have ended the case, or the time is up.
  [[nodiscard]] bool over();
  [[nodiscard]] LinkClock::time_point next_look() const { return next_look_; }
  [[nodiscard]] Verdict verdict() const;

 private:
  struct Rank {
    std::optional<Verdict> verdict;
    bool terminated = false;             // by its launcher, because of another one
    double used = -1, used_before = -1;  // seconds of processor time
  };
  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void take_line(int rank, const std::string& line);
  void take_gathering(int rank, const std::string& text);
  void take_verdict(int rank, const std::string& text);
  void ended(int rank, const std::string& how);
  void end_as_wanted(int rank);
  void lose(int rank, const std::string& reason);
  void left(int rank);
  void break_gathering();
  void ask_for_use();
  void note_who_is_busy();
  [[nodiscard]] double seconds() const;

  std::vector<Rank> ranks_;
  std::int64_t ticket_;
  double timeout_;
  Voices voices_;
  LinkClock::time_point started_, deadline_, next_look_;
  LinkClock::time_point first_look_;
  bool asked_at_the_end_ = false;
  PhaseRecord record_;
  struct Part {
    std::int64_t round = 0;
    std::string bytes;  // hexadecimal
  };
  std::map<int, Part> gathering_;  // by rank
  bool somebody_left_ = false, grace_ = false;
  bool wanted_end_ = false;  // a rank has ended as the case wants it
};

}  // namespace dropless::conformance
