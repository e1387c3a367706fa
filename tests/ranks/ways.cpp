// SPDX-License-Identifier: Apache-2.0
// Starting the tool once, or once per rank.
#include "tests/ranks/ways.h"

#include <unistd.h>

#include <cstdlib>

#include "conformance/ranks/tcp.h"

namespace dropless::runner_tests {
namespace {

bool joined(Way way) {
  return way == Way::joined_by_address || way == Way::joined_by_file;
}

}  // namespace

std::string name(Way way) {
  constexpr const char* names[] = {"threads",           "processes",      "mpi",
                                   "joined_by_address", "joined_by_file", "under_mpirun"};
  return names[static_cast<std::size_t>(way)];
}

std::ostream& operator<<(std::ostream& stream, Way way) {
  return stream << name(way);
}

std::vector<Way> all_ways() {
  std::vector<Way> ways{Way::threads, Way::processes, Way::joined_by_address, Way::joined_by_file};
#ifdef DROPLESS_TEST_MPI
  ways.insert(ways.end(), {Way::mpi, Way::under_mpirun});
#endif
  return ways;
}

int free_port() {
  return conformance::Listener(0).port();
}

Drill::Drill(Way way, int ranks) : way_(way), ranks_(ranks) {
  for (int rank = 0; rank < (joined(way) ? ranks : 1); ++rank) tools_.emplace_back();
  for (Tool& tool : tools_) tool.set("DROPLESS_RANK_DRILL", "1");
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
    set(variable, "1");
  }
  if (way == Way::under_mpirun) {
    tools_[0].start_by({"mpirun", "--oversubscribe", "-np", std::to_string(ranks)});
  }
  if (!joined(way)) return;
  for (int rank = 0; rank < ranks; ++rank) {
    set_for(rank, "RANK", std::to_string(rank));
    set_for(rank, "WORLD_SIZE", std::to_string(ranks));
  }
  if (way == Way::joined_by_file) {
    set("DROPLESS_RENDEZVOUS", path("rendezvous"));
  } else {
    set("MASTER_ADDR", "localhost");
    set("MASTER_PORT", std::to_string(free_port()));
  }
}

void Drill::set(const std::string& variable, const std::string& value) {
  for (Tool& tool : tools_) tool.set(variable, value);
}

void Drill::set_for(int rank, const std::string& variable, const std::string& value) {
  tools_[static_cast<std::size_t>(rank)].set(variable, value);
}

Ran Drill::run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), {"-i", plugin("rank_trouble")});
  const std::string ranks = std::to_string(ranks_);
  if (way_ == Way::threads) {
    arguments.insert(arguments.end(), {"--ranks", ranks, "--launcher", "threads"});
  } else if (way_ == Way::processes) {
    arguments.insert(arguments.end(), {"--ranks", ranks});
  } else if (way_ == Way::mpi) {
    arguments.insert(arguments.end(), {"--ranks", ranks, "--launcher", "mpi"});
  }
  std::vector<pid_t> started(tools_.size(), -1);
  for (std::size_t i = 0; i < tools_.size(); ++i) {
    if (static_cast<int>(i) != left_out_) started[i] = tools_[i].start(arguments);
  }
  others_.clear();
  Ran leader;
  for (std::size_t i = 0; i < tools_.size(); ++i) {
    if (started[i] < 0) continue;
    Ran ran = tools_[i].finish(started[i]);
    if (i == 0) {
      leader = std::move(ran);
    } else {
      others_.push_back(std::move(ran));
    }
  }
  return leader;
}

}  // namespace dropless::runner_tests
