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
      {"MXFP8-1b",
       "a block that crosses from one group into the next has another scale too (MXFP8-6b), and "
       "its "
       "E5M2 codes are named by MXFP8-3c; it is the name of wrong E4M3 codes"},
      {"GENERAL-7",
       "on a host a call has finished when it returns; the faults that break this order "
       "need the queue of a device"},
      {"GROUPED_GEMM-9a", relation},
      {"GROUPED_GEMM-9b", relation},
      {"OPTIMIZER-1a",
       "the step is made of the first moment: what is wrong in it is seen in the weight as well"},
      {"LAYER-4a",
       "on exact data faults show bit by bit (EXCHANGE-13), and the reference, which rounds "
       "once per rank, is judged by LAYER-4d; it stays for those that round once"},
      {"EXCHANGE-10b",
       "the reference offers no policy trap, which would end all its ranks: nothing to plant into"},
  };
}

}  // namespace dropless::faults
