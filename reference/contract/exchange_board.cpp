// SPDX-License-Identifier: Apache-2.0
// Meetings of the ranks of one exchange.
#include "reference/contract/exchange_board.h"

#include <algorithm>
#include <map>
#include <random>

#include "reference/checks.h"
#include "reference/contract/call.h"

namespace dropless::reference::contract {
namespace {

// What the ranks tell each other when they open. Numbers of 64 bits only: nothing in between.
struct Hello {
  std::uint64_t process, board, settings;
};

std::uint64_t this_process() {
  static const std::uint64_t number = [] {
    std::random_device device;
    return static_cast<std::uint64_t>(device()) << 32 | device();
  }();
  return number;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3u;
}

std::uint64_t digest(const ExchangeSettings& settings) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](Index value) { hash = mixed(hash, static_cast<std::uint64_t>(value)); };
  for (const Index value :
       {settings.ranks, settings.num_experts, settings.top_k, settings.max_tokens,
        settings.row_bytes, settings.scale_bytes, settings.overflow_check_every}) {
    add(value);
  }
  std::uint64_t factor = 0;
  static_assert(sizeof factor == sizeof settings.ragged_buffer_factor);
  std::memcpy(&factor, &settings.ragged_buffer_factor, sizeof factor);
  hash = mixed(hash, factor);
  for (const Index node : settings.node_of_rank) add(node);
  for (const Index expert : settings.placement) add(expert);
  return hash;
}

// Boards that not all ranks have joined yet.
class Doorway {
 public:
  std::uint64_t put(std::shared_ptr<ExchangeBoard> board) {
    const std::lock_guard lock(mutex_);
    boards_[++last_] = {std::move(board), 0};
    return last_;
  }
  std::shared_ptr<ExchangeBoard> take(std::uint64_t number, Index ranks) {
    const std::lock_guard lock(mutex_);
    const auto found = boards_.find(number);
    if (found == boards_.end()) throw std::logic_error("a rank joins a board that is gone");
    std::shared_ptr<ExchangeBoard> board = found->second.board;
    if (++found->second.joined == ranks) boards_.erase(found);
    return board;
  }
  void remove(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    boards_.erase(number);
  }

 private:
  struct Entry {
    std::shared_ptr<ExchangeBoard> board;
    Index joined;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, Entry> boards_;
  std::uint64_t last_ = 0;
};

Doorway& doorway() {
  static Doorway one;
  return one;
}

struct Seats {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<ExchangeSeat>> open;
  // The lock is held.
  auto find(const dropless_exchange* exchange) {
    if (exchange == nullptr) throw Refused("exchange is null");
    const auto found = open.find(exchange);
    if (found == open.end()) throw Refused("exchange is no open handle of the reference");
    return found;
  }
};

Seats& seats() {
  static Seats one;
  return one;
}

}  // namespace

dropless_exchange* keep_seat(std::unique_ptr<ExchangeSeat> seat) {
  const std::lock_guard lock(seats().mutex);
  ExchangeSeat* const key = seat.get();
  seats().open.emplace(key, std::move(seat));
  return reinterpret_cast<dropless_exchange*>(key);
}

ExchangeSeat& seat_of(dropless_exchange* exchange) {
  const std::lock_guard lock(seats().mutex);
  return *seats().find(exchange)->second;
}

std::unique_ptr<ExchangeSeat> take_seat(dropless_exchange* exchange) {
  const std::lock_guard lock(seats().mutex);
  const auto found = seats().find(exchange);
  std::unique_ptr<ExchangeSeat> seat = std::move(found->second);
  seats().open.erase(found);
  return seat;
}

ExchangeBoard::ExchangeBoard(const dropless_profile& profile, const ExchangeSettings& settings,
                             double timeout_seconds)
    : settings_(settings),
      handle_(profile, settings),
      timeout_(timeout_seconds),
      next_(at(settings.ranks), 0) {}

bool ExchangeBoard::broken() {
  const std::lock_guard lock(mutex_);
  return broken_;
}

Index ExchangeBoard::plans() const {
  const std::lock_guard lock(mutex_);
  return plans_;
}

void ExchangeBoard::leave() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

std::shared_ptr<ExchangeBoard::Meeting> ExchangeBoard::arrive(Index rank, Deposit deposit) {
  if (broken_) throw StatusError(DROPLESS_PEER_LOST, "the group of this handle is broken");
  const Index number = next_[at(rank)]++;
  while (static_cast<Index>(meetings_.size()) <= number - first_) {
    meetings_.push_back(std::make_shared<Meeting>());
    meetings_.back()->round.deposits.resize(at(settings_.ranks));
  }
  const std::shared_ptr<Meeting> meeting = meetings_[at(number - first_)];
  meeting->round.deposits[at(rank)] = std::move(deposit);
  if (++meeting->arrived == settings_.ranks) {
    // Ranks come to the meetings in their order, so this is the oldest one.
    meetings_.erase(meetings_.begin());
    ++first_;
    finish(*meeting);
    changed_.notify_all();
  }
  return meeting;
}

void ExchangeBoard::finish(Meeting& meeting) {
  const std::vector<Deposit>& deposits = meeting.round.deposits;
  try {
    for (const Deposit& one : deposits) {
      const std::string rank = std::to_string(&one - deposits.data());
      if (!one.refusal.empty()) throw Refused("rank " + rank + ": " + one.refusal);
      const Deposit& first = deposits[0];
      if (one.call != first.call || one.dtype != first.dtype || one.hidden != first.hidden ||
          one.with_weights != first.with_weights || one.step != first.step ||
          one.last_step != first.last_step) {
        throw Refused("rank " + rank + " makes another call than rank 0");
      }
      if (one.layer != first.layer)
        throw Refused("rank " + rank + " runs another layer than rank 0");
    }
    if (deposits[0].call == ExchangeCall::plan) {
      std::vector<Indices> ids;
      for (const Deposit& one : deposits) ids.emplace_back(one.ids);
      ++plans_;
      meeting.round.outcome = handle_.plan(ids, deposits[0].step, deposits[0].last_step);
      if (handle_.state() == HandleState::delivers) {
        meeting.round.traffic =
            exchange_traffic(handle_.plan_in_force(), settings_.row_bytes + settings_.scale_bytes);
      }
    }
  } catch (...) {
    meeting.trouble = std::current_exception();
  }
  meeting.finished = true;
}

std::shared_ptr<const Round> ExchangeBoard::meet(Index rank, Deposit deposit) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Meeting> meeting = arrive(rank, std::move(deposit));
  const bool in_time =
      changed_.wait_for(lock, timeout_, [&] { return meeting->finished || broken_; });
  if (!meeting->finished) {
    broken_ = true;
    changed_.notify_all();
    if (!in_time) throw StatusError(DROPLESS_TIMEOUT, "not all ranks made this call in time");
    throw StatusError(DROPLESS_PEER_LOST, "another rank gave up waiting");
  }
  if (meeting->trouble) std::rethrow_exception(meeting->trouble);
  return {meeting, &meeting->round};
}

void ExchangeBoard::refuse(Index rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (broken_) return;
  Deposit deposit;
  deposit.refusal = why;
  arrive(rank, std::move(deposit));
}

std::shared_ptr<ExchangeBoard> join_board(const dropless_profile& profile,
                                          const dropless_exchange_settings& declared,
                                          const ExchangeSettings& settings) {
  Hello mine{this_process(), 0, digest(settings)};
  if (declared.rank == 0) {
    mine.board =
        doorway().put(std::make_shared<ExchangeBoard>(profile, settings, declared.timeout_seconds));
  }
  std::vector<Hello> all(at(settings.ranks));
  const std::int32_t failed =
      declared.all_gather(declared.all_gather_context, &mine, all.data(), sizeof mine);
  const auto stop_if = [&](bool trouble, const auto& error) {
    if (!trouble) return;
    if (mine.board != 0) doorway().remove(mine.board);
    throw error;
  };
  stop_if(failed != 0, StatusError(DROPLESS_PEER_LOST, "all_gather failed: a rank is missing"));
  const auto differ = [&](auto member) {
    return std::any_of(all.begin(), all.end(),
                       [&](const Hello& one) { return one.*member != all[0].*member; });
  };
  stop_if(differ(&Hello::process),
          NotSupported("the ranks of the reference are threads of one process"));
  stop_if(differ(&Hello::settings), Refused("the ranks open this exchange with other settings"));
  return doorway().take(all[0].board, settings.ranks);
}

}  // namespace dropless::reference::contract
