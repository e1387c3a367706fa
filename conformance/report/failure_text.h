// SPDX-License-Identifier: Apache-2.0
// What a person reads about a case that did not pass.
#pragma once

#include <string>

#include "conformance/runner/outcome.h"

namespace dropless::conformance {

// How to run the same thing again.
struct Reproduction {
  std::string implementation, models;
  int threads = 0;  // 0: as the tool chooses
  int ranks = 0;    // 0: as a case of one process
  std::string launcher = {};
};
std::string reproducing_command(const CaseId& id, const Reproduction& how);

// Status and id; reason; every kept failure with clause, element, expected, got, bound, margin; end
// of the output; command.
std::string failure_text(const Outcome& outcome, const Reproduction& how);

}  // namespace dropless::conformance
