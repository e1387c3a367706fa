// SPDX-License-Identifier: Apache-2.0
// Whatever starts the rank processes of a group and carries lines to them: children of this
// process, mpirun, or agents on the machines of a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/ranks/link.h"
#include "conformance/runner/worker.h"

namespace dropless::conformance {

struct Heard {
  enum class Kind {
    line,   // see rank_process.h
    ended,  // the process of the rank; text: "SIGKILL", "exit(3)", or what is known
    printed
  };
  int rank = 0;
  Kind kind = Kind::line;
  std::string text;
};

class RankHosts {
 public:
  virtual ~RankHosts() = default;
  // Starts all rank processes, ending those of before. Throws UsageError or std::system_error.
  virtual void start() = 0;
  virtual void send(int rank, std::string_view line) = 0;
  // Waits until there is something to hear, also from `other`, at most for `milliseconds`.
  virtual std::vector<Heard> listen(Link& other, int milliseconds) = 0;
  // Ends all rank processes; what they would leave behind goes with them.
  virtual void stop() = 0;
};

// Children of this process and in its group.
std::unique_ptr<RankHosts> make_child_hosts(const WorkerOptions& options);
// One mpirun, whose processes connect back.
std::unique_ptr<RankHosts> make_mpi_hosts(const WorkerOptions& options);
// Rank 0 is a child, every other one belongs to an agent that the hub knows.
std::unique_ptr<RankHosts> make_agent_hosts(const WorkerOptions& options);

// Arguments of a rank process, argv[0] included.
std::vector<std::string> rank_arguments(const WorkerOptions& options, int rank);

// mpirun and the program that it starts, for --launcher mpi. Throw UsageError with the remedy.
std::string path_of_mpirun();
std::string path_of_mpi_rank();

}  // namespace dropless::conformance
