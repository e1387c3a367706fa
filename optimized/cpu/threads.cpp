// SPDX-License-Identifier: Apache-2.0
// The thread pool: workers sleep until there is a job, take tasks by a shared counter, and go back
// to sleep. Workers are created when first needed and live as long as the process.
#include "optimized/cpu/threads.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dropless::cpu {
namespace {

constexpr int most_threads = 256;
thread_local bool inside_task = false;

struct Job {
  const std::function<void(Index)>* task = nullptr;
  Index tasks = 0;
  std::atomic<Index> next{0};
  std::atomic<bool> failed{false};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  void work() {
    inside_task = true;
    for (Index i = next.fetch_add(1); i < tasks && !failed; i = next.fetch_add(1)) {
      try {
        (*task)(i);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        failed = true;
      }
    }
    inside_task = false;
  }
};

class Pool {
 public:
  // Workers that have not woken up when the last task is taken are not waited for.
  void run(int threads, Job& job) {
    const std::lock_guard one_job_at_a_time(run_mutex_);
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < threads - 1) {
        workers_.emplace_back([this, index = static_cast<int>(workers_.size())] { serve(index); });
      }
      job_ = &job;
      wanted_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void serve(int index) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ != nullptr && index < wanted_ && generation_ != seen; });
      seen = generation_;
      Job& job = *job_;
      ++active_;
      lock.unlock();
      job.work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  Job* job_ = nullptr;
  int wanted_ = 0, active_ = 0;
  std::uint64_t generation_ = 0;
};

// Never destroyed: workers may outlive the static objects. After a fork the child has no workers,
// so that it begins with a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (current == nullptr || owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return *current;
}

}  // namespace

int thread_count(int threads) {
  if (threads > 0) return std::min(threads, most_threads);
  static const int hardware =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most_threads);
  return hardware;
}

void parallel_for(int threads, Index tasks, const std::function<void(Index)>& task) {
  const Index useful = std::min<Index>(thread_count(threads), tasks);
  if (useful <= 1 || inside_task) {
    for (Index i = 0; i < tasks; ++i) task(i);
    return;
  }
  Job job;
  job.task = &task;
  job.tasks = tasks;
  pool().run(static_cast<int>(useful), job);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace dropless::cpu
