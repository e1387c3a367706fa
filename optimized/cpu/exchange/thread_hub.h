// SPDX-License-Identifier: Apache-2.0
// The meeting place of ranks that are threads of one process. A parcel is offered as pointers into
// the sender's memory and read from there; it is copied only when its receiver is late.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "optimized/cpu/exchange/bytes.h"
#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

// A parcel under way, guarded by the mutex of its hub except while its state says who uses it.
struct HubParcel {
  enum class State { offered, staging, open, done };
  Parcel parcel;
  State state = State::offered;
  bool staged = false;  // the rows are in `copy`, the sender's memory is free
  Bytes copy;
};

// Numbers of all ranks. There are two in turn: nobody comes to the next but one before everybody
// has come to the next one, and so is done with this one.
struct HubGathering {
  std::vector<std::vector<std::int64_t>> values;  // [R]
  Gathered result;
  int arrived = 0;
  std::uint64_t finished = 0;  // number of the last gathering here that all came to
};

// One per handle; every rank holds it.
struct Hub {
  explicit Hub(int ranks_of_group);

  const int ranks;
  std::mutex mutex;
  std::vector<std::condition_variable> changed;  // [R]: something happened that this rank may want
  // [source * R + destination], in the order of the offers.
  std::vector<std::vector<std::shared_ptr<HubParcel>>> queues;
  std::vector<char> closed;  // [R]
  HubGathering gatherings[2];
  std::vector<std::uint64_t> gathered;  // [R] gatherings that the rank has come to
  std::vector<Tag> now;                 // [R] the round that the rank was last seen in
  std::condition_variable all_gathered;
  std::uint64_t gathering_call = 0;  // of the latest round that began with a gathering
  int awaiting = 0;                  // ranks that wait for a parcel
  bool failed = false;
  Refusal failure{DROPLESS_OK, {}};
  int failed_rank = -1;
  int joined = 0;

  std::vector<std::shared_ptr<HubParcel>>& queue(int source, int destination) {
    return queues[static_cast<std::size_t>(source * ranks + destination)];
  }
  void notify_all() {
    for (std::condition_variable& each : changed) each.notify_all();
    all_gathered.notify_all();
  }
};

// The hub with this name: made by the first rank that asks, forgotten by the process when all have
// asked and all have let go.
[[nodiscard]] std::shared_ptr<Hub> join_hub(std::uint64_t name, int ranks);

[[nodiscard]] std::unique_ptr<Transport> make_thread_transport(std::shared_ptr<Hub> hub, int rank);

}  // namespace dropless::cpu::exchange
