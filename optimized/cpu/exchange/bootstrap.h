// SPDX-License-Identifier: Apache-2.0
// The opening of a handle: ranks find out through the all-gather who they are, whether they mean
// the same exchange, and which transport serves them all.
#pragma once

#include <memory>

#include "optimized/cpu/exchange/group.h"
#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

struct Connected {
  std::unique_ptr<Transport> transport;  // null: one rank needs none
  std::uint64_t handle = 0;              // the same on all ranks
  int ranks_here = 1;                    // ranks on this machine, for sharing its processors
};

// Threads when all ranks are in this process; else MPI where it is offered, initialised and counts
// the same ranks; else sockets. DROPLESS_TRANSPORT = threads, sockets or mpi forces one. Throws the
// same refusal on every rank as far as they can tell each other: a rank that differs in its
// settings, a transport that cannot serve, a missing peer.
[[nodiscard]] Connected connect_ranks(const Group& group);

}  // namespace dropless::cpu::exchange
