// SPDX-License-Identifier: Apache-2.0
// Reasons, in the words of docs/faults.md.
#include "tests/faults/kept_clauses.h"

namespace dropless::faults {

conformance::ClauseReasons kept_clauses() {
  const std::string relation =
      "a relation between two runs: one of them is wrong by the clause of its value; it does not "
      "need the reference, so it watches that as well";
  return {
      {"ROUTING-11a", relation},
      {"ROUTING-11b", relation},
      {"ROUTING-11c", relation},
      {"ROUTING-11d", relation},
      {"MXFP8-9c", relation},
      {"GENERAL-7",
       "on a host a call has finished when it returns; the faults that break this order "
       "need the queue of a device"},
  };
}

}  // namespace dropless::faults
