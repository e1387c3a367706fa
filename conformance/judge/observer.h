// SPDX-License-Identifier: Apache-2.0
// Sees every tensor that the judge of this thread compares, with what was expected; decides
// nothing. How common checks would have judged the same data is measured with it (docs/museum.md).
//
//     struct Recorder : JudgeObserver { void compared(const Comparison&) override; };
//     Recorder recorder;          // sees everything until it is gone
#pragma once

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

  // Before the elements are judged, once for every check of a tensor.
  virtual void compared(const Comparison& comparison) = 0;

  [[nodiscard]] static JudgeObserver* of_thread() { return in_force(); }

 private:
  static JudgeObserver*& in_force() {
    thread_local JudgeObserver* observer = nullptr;
    return observer;
  }
  JudgeObserver* before_;
};

}  // namespace dropless::conformance
