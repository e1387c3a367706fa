// SPDX-License-Identifier: Apache-2.0
// The process of a rank other than 0 in a job that a launcher has started. It starts and ends its
// rank process as rank 0 says, carries lines, and leaves with the exit code of rank 0. It never
// loads the implementation itself, so it survives whatever that does.
#pragma once

#include <atomic>
#include <string>

#include "conformance/ranks/launch.h"

namespace dropless::conformance {

struct Orders {
  int code = 0;
  std::string message;  // to be printed, if any
};

// Returns when rank 0 says so, or is gone, or after `interrupt` (code 128 + signal). Throws
// UsageError: rank 0 is not found in time, or somebody else answers in its place.
Orders follow(const Launch& launch, const MeetingPoint& point, double join_seconds,
              const std::atomic<int>& interrupt);

}  // namespace dropless::conformance
