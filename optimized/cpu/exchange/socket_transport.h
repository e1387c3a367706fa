// SPDX-License-Identifier: Apache-2.0
// Processes without MPI: frames over a mesh of sockets. A thread of its own moves the bytes, so
// that a rank that computes still sends what it offered and takes what comes for a later round.
#pragma once

#include <memory>
#include <vector>

#include "optimized/cpu/exchange/socket_address.h"
#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

// own.source: this rank. connections [R], non-blocking, from connect_mesh.
[[nodiscard]] std::unique_ptr<Transport> make_socket_transport(const Tag& own,
                                                               std::vector<Descriptor> connections);

}  // namespace dropless::cpu::exchange
