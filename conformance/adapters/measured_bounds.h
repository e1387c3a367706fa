// SPDX-License-Identifier: Apache-2.0
// What is known about the bounds by measurement. The measuring lives above the suite
// (tests/tolerances/measure); this is all that the command line knows about it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dropless::conformance {

// A bound between what is legal and what is not, both in units of the bound.
struct MeasuredBound {
  std::string bound, derivation;  // name, and heading of tolerances/derivations.md
  double honest = 0;              // largest error of a legal computation
  std::string honest_name;
  double fault = 0;  // of the smallest fault that is seen
  std::string fault_name, size_class;
  std::int64_t elements = 0;
  std::string complaint;  // empty: legal results pass, all faults fail
};
// Defined in tests/tolerances/measure, as is the next one.
std::vector<MeasuredBound> measured_bounds();

// A statistical rule against somebody who is right.
struct MeasuredRule {
  std::string rule, threshold;
  bool in_use = true;  // false: a lower threshold, where a rate can be seen
  double nominal = 0;  // below 0: none is known
  std::int64_t alarms = 0, runs = 0;
  double low = 0, high = 1;  // 95 % confidence interval of the rate
  double largest = 0;        // statistic, in units of the threshold
};
std::vector<MeasuredRule> measured_rules(std::int64_t runs);

}  // namespace dropless::conformance
