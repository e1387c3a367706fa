// SPDX-License-Identifier: Apache-2.0
// What `run` and `gate` have in common: from options to judged cases and files.
#pragma once

#include <string>
#include <vector>

#include "conformance/command_line/session.h"
#include "conformance/report/failure_text.h"
#include "conformance/report/summary.h"

namespace dropless::conformance {

// The ranks of this run, see group.h.
struct Group {
  int ranks = 0;         // 0: a run of all cases, collective ones over threads
  std::string launcher;  // threads, processes, mpi, or agents: joined to a launcher
  std::string hub;       // of agents
};

struct Request {
  std::string command;  // "gate" or "run": the one is not resumed by the other
  ImplementationOptions implementation;
  SelectionOptions selection;
  ResultOptions results;
  Tier default_tier = Tier::standard;
  Group group;
};

struct Judged {
  nlohmann::ordered_json header;
  std::vector<Outcome> outcomes;  // in the order of the selection
  Summary summary;
  Reproduction how;
  std::string results_path;  // empty: none was written
  double seconds = 0;        // wall clock of this call
  int jobs = 1;
};

// Runs (or continues) what is asked for, writes the results file and JUnit. Every selected case has
// an outcome in what comes back. Throws UsageError and Interrupted.
Judged execute(Session& session, const Request& request);

// Suite, implementation and size of the run, in two lines.
std::string opening_text(const Judged& judged);
// The failures in full (the first ones where a file holds the rest), and where the files are.
std::string failures_text(const Judged& judged);

}  // namespace dropless::conformance
