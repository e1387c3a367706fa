// SPDX-License-Identifier: Apache-2.0
// How ranks hand rows to each other: one interface, several ways behind it. A transport belongs to
// one handle. A call of the exchange is one round:
//
//     transport.offer(destination, parcel);   for every destination that gets rows; never blocks
//     transport.await(expected, deadline);    for every source that has rows for this rank
//     const Parcel& p = transport.open(source); ... read p ...; transport.release(source);
//     transport.settle(deadline);             afterwards the memory of the parcels is free again
//
// A rank that needs nothing from a late one goes on: its parcels wait for the late rank (in copies,
// if need be), in order and tagged, so that rounds never mix (EXCHANGE-12).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "optimized/cpu/arguments.h"

namespace dropless::cpu::exchange {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

enum class Phase : std::uint32_t {
  plan = 1,
  dispatch,
  combine,
  dispatch_backward,
  combine_backward,
  layer  // the agreement before a layer call
};
[[nodiscard]] const char* operation_name(Phase phase);  // "exchange_plan"

// Which round a parcel belongs to.
struct Tag {
  std::uint64_t handle = 0;      // the same on all ranks, unlike that of any other handle
  std::uint64_t call = 0;        // collective calls on this handle so far
  std::uint64_t generation = 0;  // plans so far
  Phase phase = Phase::plan;
  std::int32_t source = 0;
};

// Rows in somebody's memory: row i begins at data + (index[i] or i) * stride.
struct Section {
  const std::byte* data = nullptr;
  Index rows = 0, row_bytes = 0, stride = 0;
  const std::int32_t* index = nullptr;  // every `index_step`-th integer; null: 0, 1, 2, ...
  Index index_step = 1;
  [[nodiscard]] const std::byte* row(Index i) const {
    return data + (index == nullptr ? i : index[i * index_step]) * stride;
  }
  [[nodiscard]] Index bytes() const { return rows * row_bytes; }
};

struct Parcel {
  Tag tag;
  std::array<Section, 3> sections;
};

// What a rank waits for, and for how long in all (for the message).
struct Expected {
  Tag tag;  // tag.source: the rank waited for
  double seconds = 0;
};

// Numbers of all ranks, side by side.
struct Gathered {
  std::vector<const std::int64_t*> of_rank;  // [R]
  std::vector<std::int64_t> totals;          // their sums over the ranks
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual const char* name() const = 0;
  // Where ranks share memory: as many numbers from every rank, seen by all; they stay until this
  // rank comes to the next one. Null elsewhere: then parcels have to carry them. R ranks of one
  // process would otherwise hold and add up R copies of R vectors.
  virtual const Gathered* gather(const Expected&, const std::vector<std::int64_t>&, Deadline) {
    return nullptr;
  }
  // True when an opened parcel reads from the sender's memory: then nothing is gained by making
  // what is sent smaller first.
  [[nodiscard]] virtual bool shares_memory() const { return false; }
  virtual void offer(int destination, const Parcel& parcel) = 0;
  // The sizes of the parcel (not yet its rows). Throws Refusal: TIMEOUT, PEER_LOST, or
  // INVALID_ARGUMENT when the source is in another call.
  virtual Parcel await(const Expected& expected, Deadline deadline) = 0;
  virtual const Parcel& open(int source) = 0;
  virtual void release(int source) = 0;
  virtual void settle(const Expected& expected, Deadline deadline) = 0;
  // This rank cannot go on: tells the others why, and touches no memory of the caller any more.
  virtual void give_up(const Refusal& why) noexcept = 0;
  // The orderly end: what was offered still reaches the others (until the deadline).
  virtual void close(Deadline deadline) noexcept = 0;
};

// Refusals of await, in the same words for every transport.
[[noreturn]] void timed_out(const Expected& expected);
// The rank has not even taken what earlier calls sent it.
[[noreturn]] void not_taken(const Expected& expected);
[[noreturn]] void peer_lost(const Expected& expected, const std::string& why);
void check_tag(const Expected& expected, const Tag& arrived);
// What another rank said when it gave up.
[[nodiscard]] std::string gave_up_text(int rank, const std::string& why);

}  // namespace dropless::cpu::exchange
