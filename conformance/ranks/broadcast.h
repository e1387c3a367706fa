// SPDX-License-Identifier: Apache-2.0
// One line from rank 0 to all others over MPI, by a small program beside the tool: the tool itself
// needs no MPI.
#pragma once

#include <string>

namespace dropless::conformance {

// Rank 0 gives the text, the others give nothing and get it. Collective over the job that mpirun
// has started. Throws UsageError: the program is not there, or did not succeed.
std::string broadcast(const std::string& text);

// The program: it lies beside the running one. Empty: this build has none.
std::string mpi_program();

}  // namespace dropless::conformance
