// SPDX-License-Identifier: Apache-2.0
// The options of `dropless bench`, and its half for implementations in device memory.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "conformance/adapters/load.h"
#include "conformance/command_line/session.h"

namespace dropless::conformance {

struct BenchWishes {
  std::string implementation = "cpu", filter, json;
  std::optional<std::string> threads, repetitions, seconds, rest, peer;
};

// The numbers among them, checked.
struct BenchNumbers {
  std::optional<int> threads, repetitions;
  std::optional<double> seconds, rest;
};

// Times it on the device that load_implementation() provided; writes a record to `record` if that
// is open. Sets exit_code to 1 when an operation failed.
void bench_device(const BenchWishes& wishes, const BenchNumbers& numbers, Session& session,
                  const LoadedImplementation& loaded, std::ofstream& record);

}  // namespace dropless::conformance
