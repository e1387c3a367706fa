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
};

// Serves until the requests end. Returns the exit code; the caller leaves with _exit, so that
// destructors of the implementation don't run.
int serve(const WorkerOptions& options);

}  // namespace dropless::conformance
