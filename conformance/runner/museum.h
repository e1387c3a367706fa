// SPDX-License-Identifier: Apache-2.0
// What common checks would have said of the planted faults. The checks and the page live above the
// suite (tests/museum); this is all that the command line knows about them.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace dropless::conformance {

struct MuseumPlan {
  std::vector<std::string> stages;  // of the faults; empty: all
  int jobs = 1;
  double timeout_seconds = 300;  // for one fault
  // A file for the results, or empty. It is written after every fault; faults that it already holds
  // are not run again, so that an interrupted run goes on.
  std::string json;
  const std::atomic<int>* interrupt = nullptr;
  std::function<void(std::size_t done, std::size_t of)> progress = {};
};

// The page as Markdown. Every fault runs in a process of its own. Throws UsageError (no fault of
// that stage, a file that cannot be written) and Interrupted.
std::string museum_page(const MuseumPlan& plan);

}  // namespace dropless::conformance
