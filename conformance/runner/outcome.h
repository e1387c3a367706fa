// SPDX-License-Identifier: Apache-2.0
// What the runner knows about one case when it is over, and its form in a results file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/cases/case_id.h"
#include "conformance/judge/verdict.h"

namespace dropless::conformance {

struct Attempt {
  Status status = Status::internal_error;
  std::string reason;
};

struct Outcome {
  CaseId id;
  Verdict verdict;
  std::vector<Attempt> attempts;  // one, or two when the first one failed
  std::string phase;              // last operation that was entered, for a crash or a hang
  std::string output;             // end of what the implementation printed; empty after a pass
};

nlohmann::ordered_json to_json(const Verdict& verdict);
// Throws nlohmann::json::exception or std::invalid_argument on anything else than to_json's form.
Verdict verdict_from(const nlohmann::ordered_json& json);

// {record: "case", id, stage, model, status, ...}: one line of the results file.
nlohmann::ordered_json to_json(const Outcome& outcome);
Outcome outcome_from(const nlohmann::ordered_json& json);

// One line of text, whatever bytes the strings inside hold.
std::string one_line(const nlohmann::ordered_json& json);

std::string stage_of(const CaseId& id);
std::string model_of(const CaseId& id);  // empty when the case has none

}  // namespace dropless::conformance
