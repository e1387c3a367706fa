// SPDX-License-Identifier: Apache-2.0
// The threads of a campaign.
#include "conformance/runner/parallel_campaign.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dropless::conformance {
namespace {

class Campaign {
 public:
  Campaign(std::size_t count, const std::function<void(std::size_t)>& work,
           const std::function<void(std::size_t)>& tell)
      : work_(work), tell_(tell), done_(count) {}

  void run(int jobs) {
    const std::size_t places = std::min(static_cast<std::size_t>(std::max(jobs, 1)), done_.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < places; ++i) threads.emplace_back([this] { take_turns(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void take_turns() {
    for (;;) {
      std::size_t index = 0;
      {
        const std::lock_guard lock(mutex_);
        if (error_ || next_ >= done_.size()) return;
        index = next_++;
      }
      try {
        work_(index);
        const std::lock_guard lock(mutex_);
        done_[index] = true;
        for (; !error_ && told_ < done_.size() && done_[told_]; ++told_) {
          if (tell_) tell_(told_);
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  const std::function<void(std::size_t)>& work_;
  const std::function<void(std::size_t)>& tell_;
  std::vector<bool> done_;
  std::size_t next_ = 0, told_ = 0;
  std::exception_ptr error_;
  std::mutex mutex_;
};

}  // namespace

void parallel_campaign(std::size_t count, int jobs, const std::function<void(std::size_t)>& work,
                       const std::function<void(std::size_t)>& tell) {
  Campaign(count, work, tell).run(jobs);
}

}  // namespace dropless::conformance
