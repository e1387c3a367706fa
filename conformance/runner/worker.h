// SPDX-License-Identifier: Apache-2.0
// The process that loads the implementation and runs cases: one at a time, as the supervisor asks.
//
// Protocol, one line each. Requests:  {"ticket": 7, "id": "...", "blocked": ["quantize"]}
// Replies:  h {description of the implementation}      after it has been loaded
//           u message                                  it was refused: the user's mistake
//           p operation                                entered ("p" alone: left again)
//           v {"ticket": 7, "verdict": {...}}          the case is over
#pragma once

#include <string>

namespace dropless::conformance {

struct WorkerOptions {
  std::string implementation;
  std::string models;  // file that replaces the built-in models; empty: built-in
  int threads = 1;     // dropless_call::threads
  // Where `ranks` is not 0 the worker is a conductor of that many rank processes, see
  // ranks/conductor.h; `serve` itself takes no notice of the rest.
  int ranks = 0;
  std::string launcher = {};  // processes, mpi or agents
  std::string hub = {};       // agents: "port key" of the hub of this run
  double timeout_seconds = 60;
};

// Serves until the requests end. Returns the exit code; the caller leaves with _exit, so that
// destructors of the implementation don't run.
int serve(const WorkerOptions& options);

}  // namespace dropless::conformance
