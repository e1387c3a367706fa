// SPDX-License-Identifier: Apache-2.0
// An open exchange: its group, its transport and the routing of its last plan.
#pragma once

#include <deque>
#include <memory>

#include "optimized/cpu/exchange/bootstrap.h"
#include "optimized/cpu/exchange/bytes.h"
#include "optimized/cpu/exchange/layout.h"

namespace dropless::cpu::exchange {

// One row or none from a rank for a token of this one.
struct HomeEntry {
  std::int32_t rank, row;  // place of the token in the link to that rank
};

struct Plan {
  enum class State {
    none,       // nothing planned yet
    ready,      // rows may move
    refused,    // overflow was reported: dispatch and combine are refused
    overflowed  // overflow on a step without a check: they write nothing (EXCHANGE-11)
  };
  State state = State::none;
  Index tokens = 0, top_k = 0;
  std::vector<Link> sent;                // [R] from this rank; the own one too
  std::vector<Link> received;            // [R] to this rank
  std::vector<LinkRows> rows;            // [R] of received
  RowZones zones;                        // of this rank
  Counts counts;                         // of this rank's pairs
  Counts totals;                         // of all ranks
  Counts before;                         // of the ranks before this one; where rows are dropped
  std::vector<std::int32_t> home_begin;  // [T+1] into home
  std::vector<HomeEntry> home;           // of each token by ascending rank
};

// What has overflowed since the last check (EXCHANGE-11).
struct Unchecked {
  Index first_step = -1, demand = 0;
};

class Handle {
 public:
  Handle(Group group, Connected connected);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const Group group;
  Plan plan;
  Unchecked unchecked;
  std::vector<Bytes> scratch;  // [4R] what a call makes for each rank before it is offered

  [[nodiscard]] Index ranks() const { return group.ranks; }
  [[nodiscard]] Bytes& scratch_of(Index rank, Index which) {
    return scratch[at(which * group.ranks + rank)];
  }
  [[nodiscard]] const char* transport_name() const;
  [[nodiscard]] bool shares_memory() const;  // one rank does, with itself
  // Host threads for a call: what is asked for, or this rank's share of the processors.
  [[nodiscard]] int threads(int asked) const;
  // Plans so far, the same number on all ranks: which call the routing belongs to.
  [[nodiscard]] std::uint64_t plans() const { return tag_.generation; }
  // For a failure between two rounds: the handle is failed, and the other ranks are told why.
  void give_up(const Refusal& why) noexcept;
  // Throws when an earlier call has failed: the group has to be made anew (EXCHANGE-14).
  void refuse_if_failed() const;

 private:
  friend class Round;
  std::unique_ptr<Transport> transport_;
  Tag tag_;
  int ranks_here_ = 1;
  bool failed_ = false;
  Refusal failure_{DROPLESS_OK, {}};
};

// One collective call. Whoever makes a Round has checked its own arguments: from here on all ranks
// take part.
//
//     Round round(handle, Phase::dispatch);
//     round.run([&](Round& r) { r.offer(destination, sections); ... });
class Round {
 public:
  using Sections = std::array<Section, 3>;

  Round(Handle& handle, Phase phase);

  // Runs the body; when it fails, the handle is failed, and the other ranks are told.
  template <class Body>
  void run(const Body& body) {
    try {
      body(*this);
      finish();
    } catch (const Refusal& refusal) {
      fail(refusal);
      throw;
    } catch (const std::bad_alloc&) {
      fail({DROPLESS_OUT_OF_MEMORY, "out of host memory"});
      throw;
    } catch (const std::exception& error) {
      fail({DROPLESS_INTERNAL_ERROR, error.what()});
      throw;
    }
  }

  // See Transport::gather.
  [[nodiscard]] const Gathered* gather(const std::vector<std::int64_t>& mine);
  void offer(Index destination, const Sections& sections);
  // Waits for the parcels of these sources; none is read before all are there.
  void await(Index source, const Sections& expected);  // row counts and sizes must agree
  [[nodiscard]] Sections sizes(Index source);          // waits, and says what is coming
  const Sections& open(Index source);

 private:
  Expected expected(Index source) const;
  void finish();
  void fail(const Refusal& refusal) noexcept;

  Handle& handle_;
  Tag tag_;
  Deadline deadline_;
  Sections own_{};               // as offered to this rank itself
  std::deque<Sections> opened_;  // of sources_, which were opened from the transport
  std::vector<int> sources_;
};

// The caller's opaque pointer. Throws Refusal for one that is not open.
[[nodiscard]] Handle& handle_of(dropless_exchange* exchange);

}  // namespace dropless::cpu::exchange
