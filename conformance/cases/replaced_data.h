// SPDX-License-Identifier: Apache-2.0
// For tests of the trust checks: what the cases of a thread are fed with instead of their own data.
// Nothing else may use it.
//
//     const ReplacedData frozen({.stream = "dh"});       // every cotangent is the same number
//     EXPECT_EQ(run_case(...).status, Status::mistrusted);
#pragma once

#include <functional>
#include <span>
#include <string>

namespace dropless::conformance {

struct Replacement {
  std::string stream = {};  // of random numbers, all of which become `uniform`; empty: none
  double uniform = 0.75;    // in [0, 1); normal() becomes 12 * uniform - 6
  std::function<void(std::span<double>)> logits = {};  // fills a row of router logits
};

// In force while it lives.
class ReplacedData {
 public:
  explicit ReplacedData(Replacement replacement);
  ~ReplacedData();
  ReplacedData(const ReplacedData&) = delete;
  ReplacedData& operator=(const ReplacedData&) = delete;

  [[nodiscard]] static const Replacement* of_thread();  // null: nothing is replaced

 private:
  Replacement replacement_;
  const Replacement* before_;
};

}  // namespace dropless::conformance
