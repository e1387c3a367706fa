// SPDX-License-Identifier: Apache-2.0
// The ways of running the same collective cases: over threads, processes, mpirun started by the
// tool, joined ranks by address or by file, and the tool under mpirun.
#pragma once

#include <deque>
#include <ostream>
#include <string>
#include <vector>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {

enum class Way { threads, processes, mpi, joined_by_address, joined_by_file, under_mpirun };
std::string name(Way way);
std::ostream& operator<<(std::ostream& stream, Way way);
// Those that this build and this machine have.
std::vector<Way> all_ways();

// A port that was free a moment ago.
int free_port();

// A run of the drill over `ranks` ranks with the library that misbehaves.
class Drill {
 public:
  Drill(Way way, int ranks);
  // All ranks; the environment holds for each of them.
  void set(const std::string& variable, const std::string& value);
  // Replaces what one rank is told; joined ways only.
  void set_for(int rank, const std::string& variable, const std::string& value);
  void leave_out(int rank) { left_out_ = rank; }

  // By the rank that prints: 0, or the only process. `others` get theirs.
  Ran run(std::vector<std::string> arguments);
  [[nodiscard]] const std::vector<Ran>& others() const { return others_; }
  [[nodiscard]] std::string path(const std::string& file) const { return tools_[0].path(file); }

 private:
  Way way_;
  int ranks_, left_out_ = -1;
  std::deque<Tool> tools_;
  std::vector<Ran> others_;
};

}  // namespace dropless::runner_tests
