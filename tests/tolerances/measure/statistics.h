// SPDX-License-Identifier: Apache-2.0
// How often the statistical rules accuse somebody who is right, by simulation.
//
//     for (const Rule& rule : statistical_rules()) {
//       const FalseAlarms found = rule.simulate(20000);
//       found.alarms, found.runs, upper_limit(found)
//     }
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dropless::tolerances {

struct FalseAlarms {
  std::int64_t alarms = 0, runs = 0;
  double largest = 0;  // statistic seen, in units of the threshold
};

struct Rule {
  std::string name;       // clause and what is compared
  std::string threshold;  // as the suite has it, or a lower one where the rate can be seen
  bool in_use = true;     // false: a lower threshold, to see whether the nominal rate holds
  double nominal = 0;     // rate that theory gives; below 0: none is known
  std::function<FalseAlarms(std::int64_t runs)> simulate;
};
std::vector<Rule> statistical_rules();

// 95 % confidence interval of the rate (Clopper and Pearson).
struct Confidence {
  double low, high;
};
Confidence confidence_of(const FalseAlarms& found);

}  // namespace dropless::tolerances
