// SPDX-License-Identifier: Apache-2.0
// One line on a terminal that says how far a run is; nothing at all in a pipe.
#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <string>

#include "conformance/runner/outcome.h"

namespace dropless::conformance {

class Progress {
 public:
  Progress(std::ostream& err, bool shown, std::size_t cases, std::size_t done_before);
  ~Progress();  // removes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void note(const Outcome& outcome);

 private:
  std::ostream& err_;
  bool shown_;
  std::size_t cases_, done_, bad_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace dropless::conformance
