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

  const Gathered* gather(const Expected& expected, const std::vector<std::int64_t>& mine,
                         Deadline deadline) override {
    Hub& hub = *hub_;
    const std::uint64_t number = ++gatherings_;
    HubGathering& here = hub.gatherings[number % 2];
    here.values[own()] = mine;  // read by others when they have seen this rank arrive
    Lock lock(hub.mutex);
    enter(expected.tag);
    hub.gathering_call = std::max(hub.gathering_call, expected.tag.call);
    hub.gathered[own()] = number;
    if (hub.awaiting > 0) hub.notify_all();  // somebody may wait for a parcel in vain
    if (++here.arrived == hub.ranks) {
      lock.unlock();
      add_up(here);
      lock.lock();
      here.arrived = 0;
      here.finished = number;
      hub.all_gathered.notify_all();
    } else {
      const auto ready = [&] {
        return here.finished == number || hub.failed || missing(expected.tag, true) >= 0;
      };
      hub.all_gathered.wait_until(lock, deadline, ready);
      if (missing(expected.tag, false) < 0) {  // all are here: only the sums are not yet made
        hub.all_gathered.wait(lock, [&] { return here.finished == number; });
      }
      if (here.finished != number) {
        if (hub.failed) throw_failure();
        Expected late = expected;
        late.tag.source = missing(expected.tag, true);
        if (late.tag.source < 0) {
          late.tag.source = missing(expected.tag, false);
          timed_out(late);
        }
        if (is_closed(late.tag.source)) peer_lost(late, "it has closed the exchange");
        check_tag(late, hub.now[index(late.tag.source)]);
      }
    }
    for (int r = 0; r < hub.ranks; ++r) {
      if (here.values[index(r)].size() != mine.size()) refuse("ranks plan with other sizes");
    }
    return &here.result;
  }

  void offer(int destination, const Parcel& parcel) override {
    const Lock lock(hub_->mutex);
    enter(parcel.tag);
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
    Tag own_tag = expected.tag;
    own_tag.source = rank_;
    enter(own_tag);
    const auto elsewhere = [&] { return disagrees(expected.tag, hub_->now[index(source)]); };
    const auto ready = [&] {
      return !queue.empty() || hub_->failed || is_closed(source) || elsewhere();
    };
    ++hub_->awaiting;
    changed(rank_).wait_until(lock, deadline, ready);
    --hub_->awaiting;
    if (queue.empty()) {
      if (hub_->failed) throw_failure();
      if (is_closed(source)) peer_lost(expected, "it has closed the exchange");
      if (elsewhere()) check_tag(expected, hub_->now[index(source)]);
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

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t own() const { return index(rank_); }
  std::condition_variable& changed(int rank) { return hub_->changed[index(rank)]; }
  bool is_closed(int rank) const { return hub_->closed[index(rank)] != 0; }

  // In the same call of the handle the other rank does something else, or it is past it without a
  // parcel for this one.
  static bool disagrees(const Tag& tag, const Tag& other) {
    return other.call == tag.call && other.phase != tag.phase;
  }
  // This rank is in this round, with the lock held. Those that gather in the same call are told
  // when it is another one.
  void enter(const Tag& tag) {
    hub_->now[own()] = tag;
    if (tag.phase != Phase::plan && tag.call == hub_->gathering_call) {
      hub_->all_gathered.notify_all();
    }
  }
  // A rank that has not come to this rank's gathering; `hopeless`: and will not. -1: none.
  int missing(const Tag& tag, bool hopeless) const {
    for (int r = 0; r < hub_->ranks; ++r) {
      if (hub_->gathered[index(r)] >= gatherings_) continue;
      if (!hopeless || is_closed(r) || disagrees(tag, hub_->now[index(r)])) return r;
    }
    return -1;
  }
  static void add_up(HubGathering& here) {
    Gathered& all = here.result;
    all.of_rank.clear();
    all.totals.assign(here.values[0].size(), 0);
    for (const std::vector<std::int64_t>& of_rank : here.values) {
      all.of_rank.push_back(of_rank.data());
      const std::size_t count = std::min(of_rank.size(), all.totals.size());
      for (std::size_t i = 0; i < count; ++i) all.totals[i] += of_rank[i];
    }
  }

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
  std::uint64_t gatherings_ = 0;  // that this rank has come to
  std::vector<Outstanding> outstanding_;
  std::vector<std::shared_ptr<HubParcel>> pool_;
};

}  // namespace

Hub::Hub(int ranks_of_group)
    : ranks(ranks_of_group),
      changed(static_cast<std::size_t>(ranks_of_group)),
      queues(static_cast<std::size_t>(ranks_of_group * ranks_of_group)),
      closed(static_cast<std::size_t>(ranks_of_group), 0),
      gathered(static_cast<std::size_t>(ranks_of_group), 0),
      now(static_cast<std::size_t>(ranks_of_group)) {
  for (HubGathering& each : gatherings) each.values.resize(static_cast<std::size_t>(ranks));
}

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
