// SPDX-License-Identifier: Apache-2.0
// Verdicts and outcomes to JSON and back.
#include "conformance/runner/outcome.h"

#include <stdexcept>

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

Status status_of(const Json& json) {
  const auto word = json.at("status").get<std::string>();
  const std::optional<Status> status = status_from(word);
  if (!status) throw std::invalid_argument("unknown status '" + word + "'");
  return *status;
}

Json to_json(const Failure& failure) {
  return {{"clause", failure.clause},     {"what", failure.what}, {"element", failure.element},
          {"expected", failure.expected}, {"got", failure.got},   {"bound", failure.bound},
          {"margin", failure.margin}};
}

Failure failure_from(const Json& json) {
  return {json.at("clause"), json.at("what"),  json.at("element"), json.at("expected"),
          json.at("got"),    json.at("bound"), json.at("margin")};
}

}  // namespace

Json to_json(const Verdict& verdict) {
  Json failures = Json::array();
  for (const Failure& failure : verdict.failures) failures.push_back(to_json(failure));
  return {{"status", name(verdict.status)},
          {"reason", verdict.reason},
          {"checks", verdict.checks},
          {"failed_checks", verdict.failed_checks},
          {"seconds", verdict.seconds},
          {"paths", verdict.paths},
          {"failures", failures}};
}

Verdict verdict_from(const Json& json) {
  Verdict verdict;
  verdict.status = status_of(json);
  verdict.reason = json.at("reason");
  verdict.checks = json.at("checks");
  verdict.failed_checks = json.at("failed_checks");
  verdict.seconds = json.at("seconds");
  verdict.paths = json.at("paths").get<std::vector<std::string>>();
  for (const Json& failure : json.at("failures")) {
    verdict.failures.push_back(failure_from(failure));
  }
  return verdict;
}

Json to_json(const Outcome& outcome) {
  Json json{{"record", "case"},
            {"id", outcome.id.text()},
            {"stage", stage_of(outcome.id)},
            {"model", model_of(outcome.id)}};
  json.update(to_json(outcome.verdict));
  Json attempts = Json::array();
  for (const Attempt& attempt : outcome.attempts) {
    attempts.push_back({{"status", name(attempt.status)}, {"reason", attempt.reason}});
  }
  json["attempts"] = attempts;
  json["phase"] = outcome.phase;
  json["output"] = outcome.output;
  return json;
}

Outcome outcome_from(const Json& json) {
  Outcome outcome;
  outcome.id = parse_case_id(json.at("id").get<std::string>());
  outcome.verdict = verdict_from(json);
  for (const Json& attempt : json.at("attempts")) {
    outcome.attempts.push_back({status_of(attempt), attempt.at("reason")});
  }
  outcome.phase = json.at("phase");
  outcome.output = json.at("output");
  return outcome;
}

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string stage_of(const CaseId& id) {
  return id.family.substr(0, id.family.find('.'));
}

std::string model_of(const CaseId& id) {
  for (const auto& [key, value] : id.values) {
    if (key == "model") return value;
  }
  return "";
}

}  // namespace dropless::conformance
