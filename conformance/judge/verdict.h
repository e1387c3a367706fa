// SPDX-License-Identifier: Apache-2.0
// Verdicts: the closed set of statuses and what a failure says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

enum class Status {
  pass,
  fail,           // the implementation broke a clause
  mistrusted,     // the case could not have failed: fails the run
  not_supported,  // the operation is not offered, or says so
  skipped_by_tier,
  blocked,  // something it depends on failed
  waived,
  flaky,    // failed and passed on the same input
  timeout,  // the watchdog ended it
  crash,    // the worker died
  device_lost,
  resource,       // out of memory
  internal_error  // the suite's own fault
};

std::string_view name(Status status);
std::optional<Status> status_from(std::string_view name);

// May this status stand in a run whose exit code is 0?
bool acceptable(Status status);

struct Failure {
  std::string clause;   // "MXFP8-2"
  std::string what;     // "row scales"
  std::string element;  // "[3,17]" or "" for a whole-case check
  std::string expected;
  std::string got;
  std::string bound;   // "exact", "+-1.2e-5 (129 * 2^-24 * 155.2)"
  std::string margin;  // how far outside, in units of the bound
};

struct Verdict {
  Status status = Status::internal_error;
  std::string reason;             // never empty unless the status is pass
  std::vector<Failure> failures;  // the first few of each check
  std::int64_t checks = 0;        // elements and conditions compared
  std::int64_t failed_checks = 0;
  std::vector<std::string> paths;  // code paths that the implementation reported
  double seconds = 0;
};

}  // namespace dropless::conformance
