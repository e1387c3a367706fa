// SPDX-License-Identifier: Apache-2.0
// Runs cases in worker processes, so that a crash, an exit(), a hang or a leak costs one case and
// never the run. It does not load the implementation itself.
//
//     Supervisor supervisor({.worker = {.implementation = "./libmine.so"}, .jobs = 2});
//     const auto description = supervisor.probe();       // UsageError when it cannot be loaded
//     supervisor.run(cases, [&](const Outcome& outcome) { results.append(outcome); });
//
// A case that failed or crashed is run once more in a fresh worker; when it passes there it is
// flaky, and a flaky case fails the run. A worker is replaced after everything but a pass,
// not_supported and mistrusted, so that damaged memory cannot reach another case.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "conformance/runner/outcome.h"
#include "conformance/runner/worker.h"

namespace dropless::conformance {

struct SupervisorOptions {
  WorkerOptions worker;
  int jobs = 1;
  double timeout_seconds = 60;                  // per case
  std::string program = "/proc/self/exe";       // understands the sub-command "worker"
  const std::atomic<int>* interrupt = nullptr;  // set to a signal number: stop
  std::int64_t memory_limit_bytes = 0;          // of all workers together; 0: 90 % of the machine
};

// The run was stopped by a signal.
struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  int signal;
};

class Supervisor {
 public:
  using Observer = std::function<void(const Outcome&)>;

  explicit Supervisor(SupervisorOptions options);

  // Loads the implementation in a worker of its own. Throws UsageError: refused, crashed or stuck.
  nlohmann::ordered_json probe();

  // Every case ends in exactly one outcome, handed to `observer` as soon as it is known. Throws
  // Interrupted; outcomes that were handed out until then stand.
  void run(const std::vector<CaseId>& cases, const Observer& observer);

 private:
  SupervisorOptions options_;
  nlohmann::ordered_json description_;  // of the probe: workers must find the same thing
};

}  // namespace dropless::conformance
