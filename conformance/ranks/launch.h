// SPDX-License-Identifier: Apache-2.0
// What a launcher has told this process by environment variables: its rank, how many there are, and
// where they meet.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace dropless::conformance {

using Environment = std::function<std::optional<std::string>(const std::string& variable)>;
Environment environment_of_process();

struct Launch {
  int rank = 0, ranks = 1, local_rank = 0;
  std::string launcher;   // "RANK and WORLD_SIZE", "Open MPI", "PMI", "Slurm"
  bool one_host = false;  // known to be
  std::string job;        // a name that all ranks know and no other job has; empty: none
};

// RANK and WORLD_SIZE (torchrun and many others), Open MPI, PMI, a Slurm step; none where nothing
// is set or the launcher started one process only. Throws UsageError: half of a pair is missing, a
// number is none, or two launchers contradict each other.
std::optional<Launch> launch_from(const Environment& environment);

// Where the ranks meet.
struct MeetingPoint {
  enum class Kind {
    address,   // rank 0 listens at `port` of `host`
    file,      // rank 0 writes its address into `file`
    broadcast  // rank 0 tells its address over MPI
  };
  Kind kind = Kind::address;
  std::string host;
  int port = 0;
  std::string file;
};

// DROPLESS_RENDEZVOUS=file; MASTER_ADDR and MASTER_PORT; for Slurm the first node of the step and a
// port made of its number; for Open MPI on one machine a file of the job, else a broadcast. Throws
// UsageError: nothing of that, or only half of it.
MeetingPoint meeting_point(const Launch& launch, const Environment& environment);

}  // namespace dropless::conformance
