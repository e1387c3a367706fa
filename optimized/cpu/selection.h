// SPDX-License-Identifier: Apache-2.0
// Selection of K experts of one token: compared values, groups, ties to the lowest index.
// ROUTING-2 to 5 and 7.
#pragma once

#include "optimized/cpu/route_settings.h"

namespace dropless::cpu {

// The `count` largest of the values offered so far, in descending order, of equal ones the one that
// was offered first.
class Largest {
 public:
  explicit Largest(Index count) : count_(static_cast<std::size_t>(count)) {}
  void clear() { entries_.clear(); }
  // Most values are turned away by this one comparison.
  void offer(double value, Index index) {
    if (entries_.size() < count_ || (count_ > 0 && value > entries_.back().value)) {
      insert(value, index);
    }
  }
  [[nodiscard]] const auto& entries() const { return entries_; }

  struct Entry {
    double value;
    Index index;
  };

 private:
  void insert(double value, Index index);

  std::size_t count_;
  std::vector<Entry> entries_;
};

class Selector {
 public:
  explicit Selector(const RouteSettings& settings);

  // ids[K] in descending order of the compared values. bias is empty or [E]. The row is not a NaN
  // row (ROUTING-8).
  void select(const float* logits, const double* scores, const std::vector<float>& bias,
              std::vector<Index>& ids);

 private:
  void compare(const float* logits, const double* scores, const std::vector<float>& bias);
  double group_score(Index group);

  RouteSettings settings_;
  std::vector<double> compared_;  // values that order the experts
  std::vector<double> grouped_;   // values that make the group scores
  Largest experts_, groups_, members_;
};

}  // namespace dropless::cpu
