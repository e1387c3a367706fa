// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: a meeting place in memory, and one verdict for all of them.
#include "conformance/ranks/thread_ranks.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "conformance/cases/selection.h"
#include "conformance/judge/observer.h"
#include "conformance/ranks/play.h"
#include "conformance/ranks/rank_group.h"

namespace dropless::conformance {
namespace {

// Where the ranks of one case meet. Once a rank has left, whoever waits for it is told so.
class MeetingPlace {
 public:
  explicit MeetingPlace(int ranks) : sent_(static_cast<std::size_t>(ranks)) {}

  bool all_gather(int rank, const void* sent, void* received, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    const auto place = static_cast<std::size_t>(rank);
    const auto* first = static_cast<const std::byte*>(sent);
    if (left_ > 0) return false;
    sent_[place].assign(first, first + bytes);
    const std::int64_t round = rounds_;
    if (++arrived_ == sent_.size()) {
      collected_ = std::make_shared<std::vector<std::vector<std::byte>>>(sent_);
      arrived_ = 0;
      ++rounds_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return rounds_ != round || left_ > 0; });
      if (rounds_ == round) return false;
    }
    const auto collected = collected_;
    lock.unlock();
    auto* out = static_cast<std::byte*>(received);
    for (const std::vector<std::byte>& one : *collected) {
      if (one.size() != bytes) return false;  // ranks disagree about what they exchange
      std::memcpy(out, one.data(), bytes);
      out += bytes;
    }
    return true;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    ++left_;
    all_here_.notify_all();
  }

  std::shared_ptr<const void> remembered(const std::string& key,
                                         const std::function<std::shared_ptr<const void>()>& make) {
    std::shared_ptr<Memory> memory;
    {
      const std::lock_guard lock(mutex_);
      std::shared_ptr<Memory>& found = memories_[key];
      if (!found) found = std::make_shared<Memory>();
      memory = found;
    }
    std::call_once(memory->once, [&] { memory->value = make(); });
    return memory->value;
  }

 private:
  struct Memory {
    std::once_flag once;
    std::shared_ptr<const void> value;
  };
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::vector<std::byte>> sent_;
  std::shared_ptr<std::vector<std::vector<std::byte>>> collected_;
  std::size_t arrived_ = 0;
  std::int64_t rounds_ = 0, left_ = 0;
  std::map<std::string, std::shared_ptr<Memory>> memories_;
};

class ThreadGroup : public RankGroup {
 public:
  ThreadGroup(MeetingPlace& place, int rank, int ranks)
      : place_(place), rank_(rank), ranks_(ranks) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] bool all_gather(const void* sent, void* received, std::size_t bytes) override {
    return place_.all_gather(rank_, sent, received, bytes);
  }

 protected:
  std::shared_ptr<const void> remembered(const std::string& key, const Maker& make) override {
    return place_.remembered(key, make);
  }

 private:
  MeetingPlace& place_;
  int rank_, ranks_;
};

// The graver, the higher. A rank that lost its peer fails because of another one.
int gravity(Status status) {
  constexpr Status by_gravity[] = {
      Status::pass,       Status::skipped_by_tier, Status::waived,  Status::not_supported,
      Status::mistrusted, Status::blocked,         Status::flaky,   Status::internal_error,
      Status::fail,       Status::resource,        Status::timeout, Status::device_lost,
      Status::crash};
  return static_cast<int>(std::find(std::begin(by_gravity), std::end(by_gravity), status) -
                          std::begin(by_gravity));
}

Verdict run_ranks(const dropless_implementation& implementation, const Family& family,
                  const CaseId& id, const RunOptions& options) {
  const int ranks = std::stoi(value_of(id.values, "ranks"));
  MeetingPlace place(ranks);
  std::vector<Verdict> verdicts(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  JudgeObserver* const watching = JudgeObserver::of_thread();
  std::mutex one_at_a_time;
  const auto play = [&](int rank) {
    const RankObserver observer(watching, one_at_a_time, rank);
    ThreadGroup group(place, rank, ranks);
    // The watchdog tells by this name which of the threads is busy.
    pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
    verdicts[static_cast<std::size_t>(rank)] =
        play_rank(implementation, family, id, options, group);
    place.leave();
  };
  std::string trouble;
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(play, rank);
  } catch (const std::system_error& error) {
    trouble = fmt::format("only {} of {} threads could be started: {}", threads.size(), ranks,
                          error.what());
    place.leave();
  }
  for (std::thread& thread : threads) thread.join();
  Verdict verdict = merged(verdicts);
  if (!trouble.empty()) verdict.status = Status::resource, verdict.reason = trouble;
  return verdict;
}

}  // namespace

Verdict merged(const std::vector<Verdict>& by_rank) {
  Verdict all;
  if (by_rank.empty()) {
    all.reason = "no rank took part";
    return all;
  }
  const auto gravest = std::max_element(by_rank.begin(), by_rank.end(),
                                        [](const Verdict& left, const Verdict& right) {
                                          return gravity(left.status) < gravity(right.status);
                                        });
  all.status = gravest->status;
  if (!gravest->reason.empty()) {
    all.reason = fmt::format("rank {}: {}", gravest - by_rank.begin(), gravest->reason);
  }
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Verdict& one = by_rank[rank];
    all.checks += one.checks;
    all.failed_checks += one.failed_checks;
    all.seconds = std::max(all.seconds, one.seconds);
    for (Failure failure : one.failures) {
      failure.what = fmt::format("rank {}: {}", rank, failure.what);
      all.failures.push_back(std::move(failure));
    }
    for (const std::string& path : one.paths) {
      if (std::find(all.paths.begin(), all.paths.end(), path) == all.paths.end()) {
        all.paths.push_back(path);
      }
    }
  }
  return all;
}

Verdict run_case_over_threads(const dropless_implementation& implementation, const Family& family,
                              const CaseId& id, const RunOptions& options) {
  try {
    return run_ranks(implementation, family, id, options);
  } catch (const std::exception& error) {
    Verdict verdict;
    verdict.reason = error.what();
    return verdict;
  }
}

}  // namespace dropless::conformance
