// SPDX-License-Identifier: Apache-2.0
// Rendezvous between threads: the receiver reads the sender's rows; a late receiver gets a copy.
#include "optimized/cpu/exchange/thread_hub.h"

#include <map>

#include "optimized/cpu/exchange/packing.h"

namespace dropless::cpu::exchange {
namespace {

using Lock = std::unique_lock<std::mutex>;
using State = HubParcel::State;

// How long a sender waits for receivers to come and read before it makes a copy for them.
constexpr auto grace = std::chrono::milliseconds(5);
// Parcels that may wait for one late receiver.
constexpr std::size_t most_waiting = 8;

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override { close(Clock::now()); }

  const char* name() const override { return "threads"; }
  bool shares_memory() const override { return true; }

  void offer(int destination, const Parcel& parcel) override {
    const Lock lock(hub_->mutex);
    std::shared_ptr<HubParcel> item = unused();
    item->parcel = parcel;
    item->state = State::offered;
    item->staged = false;
    hub_->queue(rank_, destination).push_back(item);
    outstanding_.push_back({destination, std::move(item)});
    changed(destination).notify_all();
  }

  Parcel await(const Expected& expected, Deadline deadline) override {
    const int source = expected.tag.source;
    Lock lock(hub_->mutex);
    auto& queue = hub_->queue(source, rank_);
    const auto ready = [&] { return !queue.empty() || hub_->failed || is_closed(source); };
    changed(rank_).wait_until(lock, deadline, ready);
    if (queue.empty()) {
      if (hub_->failed) throw_failure();
      if (is_closed(source)) peer_lost(expected, "it has closed the exchange");
      timed_out(expected);
    }
    check_tag(expected, queue.front()->parcel.tag);
    return queue.front()->parcel;
  }

  const Parcel& open(int source) override {
    Lock lock(hub_->mutex);
    auto& queue = hub_->queue(source, rank_);
    changed(rank_).wait(lock,
                        [&] { return queue.empty() || queue.front()->state == State::offered; });
    if (queue.empty()) throw_failure();  // withdrawn by a sender that gave up
    queue.front()->state = State::open;
    return queue.front()->parcel;
  }

  void release(int source) override {
    const Lock lock(hub_->mutex);
    auto& queue = hub_->queue(source, rank_);
    queue.front()->state = State::done;
    queue.erase(queue.begin());
    changed(source).notify_all();
  }

  void settle(const Expected& expected, Deadline deadline) override {
    Lock lock(hub_->mutex);
    const auto all_done = [&] {
      return std::all_of(outstanding_.begin(), outstanding_.end(), [](const Outstanding& each) {
        return each.item->state == State::done || each.item->staged;
      });
    };
    changed(rank_).wait_until(lock, std::min(deadline, Clock::now() + grace), all_done);
    for (const Outstanding& each : outstanding_) {
      if (each.item->state == State::offered && !each.item->staged) stage(lock, each);
    }
    changed(rank_).wait(lock, all_done);  // the rest is being read
    for (const Outstanding& each : outstanding_) {
      const auto& queue = hub_->queue(rank_, each.destination);
      const auto taken = [&] { return queue.size() < most_waiting || hub_->failed; };
      if (!changed(rank_).wait_until(lock, deadline, taken)) {
        outstanding_.clear();
        Expected late = expected;
        late.tag.source = each.destination;
        not_taken(late);
      }
    }
    outstanding_.clear();
  }

  void give_up(const Refusal& why) noexcept override {
    Lock lock(hub_->mutex);
    if (!hub_->failed) {
      hub_->failed = true;
      hub_->failed_rank = rank_;
      hub_->failure = why;
    }
    for (const Outstanding& each : outstanding_) {
      changed(rank_).wait(lock, [&] { return each.item->state != State::open; });
      if (each.item->state != State::offered || each.item->staged) continue;
      auto& queue = hub_->queue(rank_, each.destination);
      queue.erase(std::remove(queue.begin(), queue.end(), each.item), queue.end());
    }
    outstanding_.clear();
    for (int source = 0; source < hub_->ranks; ++source) {  // what this rank had begun to read
      auto& queue = hub_->queue(source, rank_);
      if (queue.empty() || queue.front()->state != State::open) continue;
      queue.front()->state = State::done;
      queue.erase(queue.begin());
    }
    hub_->notify_all();
  }

  void close(Deadline) noexcept override {
    const Lock lock(hub_->mutex);
    hub_->closed[static_cast<std::size_t>(rank_)] = 1;
    hub_->notify_all();
  }

 private:
  struct Outstanding {
    int destination;
    std::shared_ptr<HubParcel> item;
  };

  std::condition_variable& changed(int rank) {
    return hub_->changed[static_cast<std::size_t>(rank)];
  }
  bool is_closed(int rank) const { return hub_->closed[static_cast<std::size_t>(rank)] != 0; }

  [[noreturn]] void throw_failure() const {
    throw Refusal{hub_->failure.status, gave_up_text(hub_->failed_rank, hub_->failure.message)};
  }

  // A parcel object that nobody looks at any more; they are few and keep their memory.
  std::shared_ptr<HubParcel> unused() {
    for (const std::shared_ptr<HubParcel>& each : pool_) {
      if (each.use_count() == 1) return each;
    }
    pool_.push_back(std::make_shared<HubParcel>());
    return pool_.back();
  }

  void stage(Lock& lock, const Outstanding& each) {
    std::byte* memory = each.item->copy.reserve(packed_bytes(each.item->parcel));
    each.item->state = State::staging;
    lock.unlock();
    const Parcel copy = pack(each.item->parcel, memory);
    lock.lock();
    each.item->parcel = copy;
    each.item->staged = true;
    each.item->state = State::offered;
    changed(each.destination).notify_all();
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<Outstanding> outstanding_;
  std::vector<std::shared_ptr<HubParcel>> pool_;
};

}  // namespace

Hub::Hub(int ranks_of_group)
    : ranks(ranks_of_group),
      changed(static_cast<std::size_t>(ranks_of_group)),
      queues(static_cast<std::size_t>(ranks_of_group * ranks_of_group)),
      closed(static_cast<std::size_t>(ranks_of_group), 0) {}

std::shared_ptr<Hub> join_hub(std::uint64_t name, int ranks) {
  static std::mutex mutex;
  static std::map<std::uint64_t, std::shared_ptr<Hub>> open;  // not yet joined by all
  const std::lock_guard lock(mutex);
  std::shared_ptr<Hub>& entry = open[name];
  if (!entry) entry = std::make_shared<Hub>(ranks);
  const std::shared_ptr<Hub> hub = entry;
  if (++hub->joined == ranks) open.erase(name);
  return hub;
}

std::unique_ptr<Transport> make_thread_transport(std::shared_ptr<Hub> hub, int rank) {
  return std::make_unique<ThreadTransport>(std::move(hub), rank);
}

}  // namespace dropless::cpu::exchange
