// SPDX-License-Identifier: Apache-2.0
// An overflow that ends the process: EXCHANGE-10b. The verdict is given by who watches the process.
#include "conformance/cases/ending.h"
#include "conformance/cases/exchange/overflow.h"

namespace dropless::conformance {

void run_trap(World& world, RankHandle& handle, const Routing& routing) {
  Judge& judge = world.run.judge();
  world.meet();  // nobody is still busy with anything else when a process ends
  if (!announce_end("exchange_plan exchange_dispatch")) {
    throw NotSupported{"a trap would end this process: only a worker's may end"};
  }
  const auto is_loss = [](dropless_status status) {
    return status == DROPLESS_TIMEOUT || status == DROPLESS_PEER_LOST;
  };
  PlanBuffers plan{};
  dropless_status status = handle.try_plan(routing, plan);
  if (status == DROPLESS_OK) {
    DispatchBuffers got;
    const Payload& payload = tagged_payload(world, routing, step_form(world), 0);
    status = handle.try_dispatch(routing, payload.sent[at(world.rank)], got);
  }
  // Still here. That may be where there is room, once the rank that has none is gone.
  const bool has_room = world.rank != 0;
  judge.holds("EXCHANGE-10b", "what an overflow comes to", has_room && is_loss(status),
              has_room ? "the end of the process, TIMEOUT or PEER_LOST" : "the end of the process",
              "status " + std::to_string(status));
  handle.abandon();
}

}  // namespace dropless::conformance
