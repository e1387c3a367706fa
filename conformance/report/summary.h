// SPDX-License-Identifier: Apache-2.0
// Counting outcomes, and the one decision behind every exit code.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "conformance/runner/outcome.h"

namespace dropless::conformance {

using Counts = std::map<Status, std::int64_t>;

struct Part {  // a stage, or a model
  std::string name;
  Counts counts;
  double seconds = 0;            // of the cases, added up over the workers
  std::set<std::string> models;  // named by its cases
  [[nodiscard]] std::int64_t cases() const;
  [[nodiscard]] std::int64_t count(Status status) const;
  [[nodiscard]] std::int64_t unacceptable() const;
};

struct Summary {
  Part all;
  std::vector<Part> stages;  // in the order of the stages of a training step
  std::vector<Part> models;  // by name; only cases that name one
  std::int64_t checks = 0;
};

Summary summarize(const std::vector<Outcome>& outcomes);

// 0 when everything is acceptable and at least one case passed; 1 otherwise.
int exit_code(const Summary& summary);

// "GO", "NO-GO" or "not offered" (nothing passed, nothing failed).
std::string verdict_of(const Part& part);

// A table with one line per stage.
std::string stage_table(const Summary& summary);
// One line per model: its verdict and its counts.
std::string model_lines(const Summary& summary);
// "1204 pass, 3 fail, 12 not_supported"
std::string in_words(const Counts& counts);

nlohmann::ordered_json footer_of(const Summary& summary, double seconds);

}  // namespace dropless::conformance
