// SPDX-License-Identifier: Apache-2.0
// Sees every tensor that the judge of this thread compares, with what was expected; decides
// nothing. How common checks would have judged the same data is measured with it (docs/museum.md).
//
//     struct Recorder : JudgeObserver { void compared(int rank, const Comparison&) override; };
//     Recorder recorder;          // sees everything until it is gone
//
// Ranks that run as threads report to the observer of the thread that started them (RankObserver).
#pragma once

#include <mutex>
#include <string_view>
#include <vector>

#include "conformance/judge/judge.h"

namespace dropless::conformance {

struct Comparison {
  std::string_view clause, what;
  const Buffer& buffer;
  bool is_float = false;              // a floating-point format: not ids, counts, scale bytes
  std::vector<double> expected, got;  // row-major
  const Judged& judged;               // empty: all of them
};

class JudgeObserver {
 public:
  JudgeObserver() : before_(in_force()) { in_force() = this; }
  virtual ~JudgeObserver() { in_force() = before_; }
  JudgeObserver(const JudgeObserver&) = delete;
  JudgeObserver& operator=(const JudgeObserver&) = delete;

  // Before the elements are judged, once for every check of a tensor, by rank of a collective case
  // (0 in all others); of one call at a time.
  virtual void compared(int rank, const Comparison& comparison) = 0;

  [[nodiscard]] static JudgeObserver* of_thread() { return in_force(); }

 private:
  static JudgeObserver*& in_force() {
    thread_local JudgeObserver* observer = nullptr;
    return observer;
  }
  JudgeObserver* before_;
};

// What the thread of a rank tells an observer that other ranks tell as well; null: nobody.
class RankObserver : public JudgeObserver {
 public:
  RankObserver(JudgeObserver* observer, std::mutex& mutex, int rank)
      : observer_(observer), mutex_(mutex), rank_(rank) {}
  void compared(int, const Comparison& comparison) override {
    if (observer_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    observer_->compared(rank_, comparison);
  }

 private:
  JudgeObserver* observer_;
  std::mutex& mutex_;
  int rank_;
};

}  // namespace dropless::conformance
