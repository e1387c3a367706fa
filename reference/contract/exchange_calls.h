// SPDX-License-Identifier: Apache-2.0
// What the calls on an open exchange share.
#pragma once

#include <string>

#include "reference/contract/call.h"
#include "reference/contract/exchange_board.h"

namespace dropless::reference::contract {

// What `check` returns. When it refuses this rank's arguments the other ranks are told, so that
// none of them waits for this call.
template <typename Check>
auto or_refuse(const ExchangeSeat& seat, const Check& check) {
  try {
    return check();
  } catch (const Refused& refused) {
    seat.board->refuse(seat.rank, refused.what());
    throw;
  }
}

}  // namespace dropless::reference::contract
