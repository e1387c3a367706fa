// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one exchange meet: every call of a rank lays its inputs on a board, the last
// one to come makes the plan for all, and each takes its own outputs from what everybody laid down.
// For ranks that are threads of one process; that is all that a reference needs.
#pragma once

#include <dropless/contract.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "reference/exchange.h"

namespace dropless::reference::contract {

enum class ExchangeCall { plan, dispatch, combine, dispatch_backward, combine_backward, close };

// The inputs of one rank in one call; each call uses some of them.
struct Deposit {
  ExchangeCall call = ExchangeCall::close;
  std::string refusal = {};  // why this rank's arguments were refused: the call is one for nobody
  std::vector<Index> ids = {};
  Index step = 0;
  bool last_step = false;
  dropless_dtype dtype = DROPLESS_FP32;
  Index hidden = 0;  // columns of rows
  bool with_weights = false;
  std::uint64_t layer = 0;  // of a layer call: what all ranks must agree on
  std::vector<std::byte> x = {}, scales = {}, weights = {};
  Doubles rows = {}, row_weights = {};
};

struct Round {
  std::vector<Deposit> deposits = {};
  PlanOutcome outcome = {};      // of a plan
  ExchangeTraffic traffic = {};  // of a plan that delivers
};

class ExchangeBoard {
 public:
  ExchangeBoard(const dropless_profile& profile, const ExchangeSettings& settings,
                double timeout_seconds);

  // Waits for all ranks. Throws StatusError with TIMEOUT or PEER_LOST, on every call from then on;
  // Refused when a rank's arguments were refused or the ranks disagree about the call.
  std::shared_ptr<const Round> meet(Index rank, Deposit deposit);
  // This rank's part of a call that it refuses; the others are told and the handle stays usable.
  void refuse(Index rank, const std::string& why);
  // The rank leaves without waiting.
  void leave();

  [[nodiscard]] const ExchangeHandle& handle() const { return handle_; }
  [[nodiscard]] const ExchangeSettings& settings() const { return settings_; }
  [[nodiscard]] bool broken();
  // How often the handle was planned. Every plan needs this rank too, so nothing changes behind its
  // back.
  [[nodiscard]] Index plans() const;

 private:
  struct Meeting {
    Round round;
    Index arrived = 0;
    bool finished = false;
    std::exception_ptr trouble;
  };
  // This rank's next meeting, with its deposit in it. The lock is held.
  std::shared_ptr<Meeting> arrive(Index rank, Deposit deposit);
  void finish(Meeting& meeting);

  ExchangeSettings settings_;
  ExchangeHandle handle_;
  std::chrono::duration<double> timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Index> next_;                         // [R] number of each rank's next meeting
  std::vector<std::shared_ptr<Meeting>> meetings_;  // those that some rank has not come to yet
  Index first_ = 0;                                 // number of meetings_[0]
  Index plans_ = 0;
  bool broken_ = false;
};

// One rank's seat; dropless_exchange* points to it.
struct ExchangeSeat {
  Index rank = 0;
  std::shared_ptr<ExchangeBoard> board;
};

// The open seats of this process: a pointer that is not here is refused, not followed.
dropless_exchange* keep_seat(std::unique_ptr<ExchangeSeat> seat);
ExchangeSeat& seat_of(dropless_exchange* exchange);                    // throws Refused
std::unique_ptr<ExchangeSeat> take_seat(dropless_exchange* exchange);  // throws Refused

// Collective: the board that rank 0 sets up, found by the others through settings.all_gather.
// Throws NotSupported when they are not threads of one process, Refused when their settings differ.
std::shared_ptr<ExchangeBoard> join_board(const dropless_profile& profile,
                                          const dropless_exchange_settings& declared,
                                          const ExchangeSettings& settings);

}  // namespace dropless::reference::contract
