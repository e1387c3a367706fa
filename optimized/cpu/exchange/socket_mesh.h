// SPDX-License-Identifier: Apache-2.0
// One connection between every two ranks.
#pragma once

#include <vector>

#include "optimized/cpu/exchange/socket_address.h"

namespace dropless::cpu::exchange {

// Every rank connects to the lower ones and accepts the higher ones, which prove with the key of
// this rank's address that they belong to the group; strangers are turned away. Result [R], the own
// place invalid. Throws Refusal TIMEOUT or PEER_LOST that names a missing rank.
[[nodiscard]] std::vector<Descriptor> connect_mesh(const Listener& own, int rank,
                                                   const std::vector<SocketAddress>& addresses,
                                                   double timeout_seconds);

}  // namespace dropless::cpu::exchange
