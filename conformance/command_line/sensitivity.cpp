// SPDX-License-Identifier: Apache-2.0
// dropless sensitivity: does the verdict of every family turn when an input is changed?
#include "conformance/runner/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "conformance/command_line/session.h"
#include "conformance/report/machine.h"

namespace dropless::conformance {
namespace {

struct SensitivityOptions {
  std::vector<std::string> stages, families;
  std::optional<std::string> tier, jobs;
  std::string json;
};

std::string how(const Sensitivity& input) {
  const std::string where = input.call == 0 ? "" : fmt::format(", in call {} alone", input.call);
  return fmt::format("{}{}  {}", input.edit, where, input.case_id);
}

std::string line(const Sensitivity& input) {
  std::string word = input.flips ? "flips" : input.reason.empty() ? "HOLE" : "exempt";
  std::string note = input.flips ? how(input) : input.reason;
  if (input.flips && !input.reason.empty()) {
    word = "STALE", note = "flips, but is listed as exempt: " + input.reason;
  }
  if (note.empty()) note = fmt::format("no verdict changed in {} attempts", input.attempts);
  return fmt::format("{:<7}{:<32}{:<44}{}\n", word, input.family, input.input, note);
}

nlohmann::ordered_json to_json(const SensitivityReport& report) {
  nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
  for (const Sensitivity& input : report.inputs) {
    inputs.push_back({{"family", input.family},
                      {"input", input.input},
                      {"flips", input.flips},
                      {"edit", input.edit},
                      {"call", input.call},
                      {"case", input.case_id},
                      {"attempts", input.attempts},
                      {"reason", input.reason}});
  }
  return {{"good", report.good()},
          {"attempts", report.attempts},
          {"families_without_a_passing_case", report.no_case},
          {"stale_exemptions", report.stale},
          {"inputs", inputs}};
}

std::string summary(const SensitivityReport& report) {
  const auto count = [&](auto wanted) {
    return std::count_if(report.inputs.begin(), report.inputs.end(), wanted);
  };
  return fmt::format(
      "{} inputs: {} flip the verdict, {} need not (reasons listed), {} holes, {} stale; "
      "{} changed runs\n",
      report.inputs.size(), count([](const Sensitivity& i) { return i.flips; }),
      count([](const Sensitivity& i) { return !i.flips && !i.reason.empty(); }),
      count([](const Sensitivity& i) { return !i.flips && i.reason.empty(); }),
      count([](const Sensitivity& i) { return i.flips && !i.reason.empty(); }) +
          static_cast<std::ptrdiff_t>(report.stale.size()),
      report.attempts);
}

void run_command(Session& session, const SensitivityOptions& given) {
  SensitivityPlan plan;
  plan.stages = given.stages, plan.families = given.families;
  if (given.tier) plan.tier = tier_named(*given.tier);
  plan.jobs =
      given.jobs ? static_cast<int>(whole_number("--jobs", *given.jobs, 1, 1024)) : usable_cores();
  plan.interrupt = &session.interrupt;
  const SensitivityReport report = run_sensitivity(plan);
  for (const Sensitivity& input : report.inputs) session.out << line(input);
  for (const std::string& family : report.no_case) {
    session.out << fmt::format("HOLE   {}: no case passes on the reference\n", family);
  }
  for (const std::string& entry : report.stale) {
    session.out << fmt::format("STALE  the exemption of {} applies to nothing\n", entry);
  }
  session.out << '\n' << summary(report);
  if (!given.json.empty()) {
    std::ofstream file(given.json);
    file << to_json(report).dump(2) << '\n';
    if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", given.json));
  }
  session.exit_code = report.good() ? 0 : 1;
}

}  // namespace

void add_sensitivity(CLI::App& app, Session& session) {
  auto options = std::make_shared<SensitivityOptions>();
  CLI::App* command = app.add_subcommand(
      "sensitivity",
      "Changes every input of the reference in one place: does the verdict turn? Exit code 0: yes");
  command->add_option("--stage", options->stages, "only families of this stage; repeatable")
      ->type_name("STAGE")
      ->allow_extra_args(false);
  command->add_option("--family", options->families, "only this family; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--tier", options->tier, "whose cases are tried (default: smoke)")
      ->type_name("TIER");
  command->add_option("-j,--jobs", options->jobs, "threads (default: usable cores)")
      ->type_name("N");
  command->add_option("--json", options->json, "write the results as JSON as well")
      ->type_name("FILE");
  command->callback([options, &session] { run_command(session, *options); });
}

}  // namespace dropless::conformance
