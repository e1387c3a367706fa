// SPDX-License-Identifier: Apache-2.0
// The place where the MPI transport enters: the library is built without MPI, a program that has it
// links optimized/cpu/exchange/mpi and offers it once.
#pragma once

#include <memory>

#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

// What a process says of MPI.
struct MpiState {
  std::int32_t usable = 0;  // initialised, not finalised, and this thread may call it
  std::int32_t rank = -1, ranks = 0;
};

struct MpiHook {
  MpiState (*state)() = nullptr;
  // Collective over MPI_COMM_WORLD. Throws Refusal.
  std::unique_ptr<Transport> (*open)(const Tag& own, double timeout_seconds) = nullptr;
};

void set_mpi_hook(const MpiHook& hook);
[[nodiscard]] const MpiHook& mpi_hook();

}  // namespace dropless::cpu::exchange
