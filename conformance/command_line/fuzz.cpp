// SPDX-License-Identifier: Apache-2.0
// dropless fuzz: random cases of every family, judged in workers, failures made small; and how soon
// they find the planted faults.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>

#include "conformance/cases/models.h"
#include "conformance/command_line/fuzz_tables.h"
#include "conformance/command_line/session.h"
#include "conformance/report/machine.h"

namespace dropless::conformance {
namespace {

constexpr double default_seconds = 60, default_timeout = 30;
constexpr double longest = 86400 * 30;
constexpr std::int64_t default_fault_cases = 20000;

struct FuzzOptions {
  ImplementationOptions implementation;
  std::optional<std::string> cases, seconds, seed, shrink_seconds, kinds, at_least;
  std::vector<std::string> faults;
  std::string json;
  FuzzPlan plan;
  bool list = false, against_faults = false;
};

void declare_fuzz(CLI::App& command, FuzzOptions& options) {
  FuzzPlan& plan = options.plan;
  plan.out = "dropless-fuzz";
  command.add_option("--seconds", options.seconds, "time for judging (default: 60)")
      ->type_name("N");
  command.add_option("--cases", options.cases, "number of cases")->type_name("N");
  command.add_option("--seed", options.seed, "same seed, same cases (default: 1)")->type_name("S");
  command.add_option("--stage", plan.stages, "only this stage; repeatable")->type_name("STAGE");
  command.add_option("--family", plan.families, "only this family; repeatable")
      ->type_name("FAMILY");
  command.add_option("--out", plan.out, "folder for failing cases (default: dropless-fuzz)")
      ->type_name("DIR");
  command
      .add_option("--shrink-seconds", options.shrink_seconds,
                  "time for making one failure small, 0 for none (default: 20)")
      ->type_name("N");
  command
      .add_option("--kinds", options.kinds, "stop after this many kinds of failures (default: 5)")
      ->type_name("N");
  command.add_flag("--list", options.list, "print the ids of --cases cases and judge nothing");
  command.add_flag("--faults", options.against_faults,
                   "find the planted faults instead, each within --cases cases of its stage "
                   "(default: 20000), those of the tiers left out; shrink only with "
                   "--shrink-seconds");
  command.add_flag("--new-values", options.plan.new_values,
                   "with --faults: leave out cases of the tiers under other seeds as well");
  command.add_option("--fault", options.faults, "only this planted fault; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      .add_option("--at-least", options.at_least,
                  "with --faults: exit code 0 from this share (default: 95)")
      ->type_name("PERCENT");
  command.add_option("--json", options.json, "write the results as JSON as well")
      ->type_name("FILE");
  declare(command, options.implementation);
}

void read_numbers(FuzzOptions& options) {
  FuzzPlan& plan = options.plan;
  if (options.cases) plan.cases = whole_number("--cases", *options.cases, 1, 1000000000);
  if (options.seconds) plan.seconds = positive_number("--seconds", *options.seconds, longest);
  if (options.seed) {
    plan.seed =
        static_cast<std::uint64_t>(whole_number("--seed", *options.seed, 0, std::int64_t{1} << 62));
  }
  if (options.shrink_seconds) {
    plan.shrink_seconds = *options.shrink_seconds == "0"
                              ? 0
                              : positive_number("--shrink-seconds", *options.shrink_seconds, 3600);
  }
  if (options.kinds)
    plan.kinds = static_cast<int>(whole_number("--kinds", *options.kinds, 1, 1000));
  if (plan.out.empty()) throw UsageError("--out is empty; give a folder");
}

SupervisorOptions supervisor_options(const ImplementationOptions& given, Session& session) {
  SupervisorOptions options;
  options.worker.implementation = given.implementation.value_or("cpu");
  options.worker.models = given.models.value_or("");
  if (!options.worker.models.empty()) load_models(options.worker.models);
  const int cores = usable_cores();
  options.jobs =
      given.jobs ? static_cast<int>(whole_number("--jobs", *given.jobs, 1, 1024)) : cores;
  options.worker.threads =
      given.threads ? static_cast<int>(whole_number("--threads", *given.threads, 1, 4096))
                    : std::max(1, cores / options.jobs);
  options.timeout_seconds =
      given.timeout ? positive_number("--timeout", *given.timeout, longest) : default_timeout;
  options.interrupt = &session.interrupt;
  if (given.memory) {
    options.memory_limit_bytes = whole_number("--memory", *given.memory, 1, 1 << 30) << 20;
  }
  return options;
}

int exit_code(const FuzzReport& report) {
  return report.findings.empty() && report.shares_met() && report.count(Status::pass) > 0 ? 0 : 1;
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", path));
}

std::vector<FaultEntry> chosen_faults(const FuzzOptions& options) {
  std::vector<FaultEntry> chosen;
  for (const FaultEntry& fault : fault_entries()) {
    const auto& stages = options.plan.stages;
    const bool wanted =
        stages.empty() || std::find(stages.begin(), stages.end(), fault.stage()) != stages.end();
    if (wanted && fault.visibility == Visibility::cpu) chosen.push_back(fault);
  }
  for (const std::string& name : options.faults) {
    if (std::none_of(chosen.begin(), chosen.end(),
                     [&](const FaultEntry& fault) { return fault.name == name; })) {
      throw UsageError(
          fmt::format("no fault '{}' that a CPU shows; see dropless faults --list", name));
    }
  }
  if (!options.faults.empty()) {
    std::erase_if(chosen, [&](const FaultEntry& fault) {
      return std::find(options.faults.begin(), options.faults.end(), fault.name) ==
             options.faults.end();
    });
  }
  if (chosen.empty()) throw UsageError("no fault left; see dropless faults --list");
  return chosen;
}

void run_faults(FuzzOptions& options, Session& session) {
  FuzzPlan& plan = options.plan;
  if (options.implementation.implementation) {
    throw UsageError("--faults brings its own implementations; leave out --implementation");
  }
  if (options.seconds)
    throw UsageError("--faults counts cases; give --cases N instead of --seconds");
  const std::vector<FaultEntry> faults = chosen_faults(options);
  if (!plan.cases) plan.cases = default_fault_cases;
  if (!options.shrink_seconds) plan.shrink_seconds = 0;
  SupervisorOptions supervisor = supervisor_options(options.implementation, session);
  if (!options.implementation.threads) supervisor.worker.threads = 1;
  const std::int64_t least =
      options.at_least ? whole_number("--at-least", *options.at_least, 1, 100) : 95;
  if (!options.json.empty()) write_json(options.json, {});  // refused before the work, not after
  const std::vector<FuzzedFault> all =
      fuzz_faults(plan, faults, supervisor,
                  [&](const FuzzedFault& one) { session.out << fault_text(one) << std::flush; });
  session.out << '\n' << found_table(all) << '\n' << last_line(all);
  if (!options.json.empty()) write_json(options.json, to_json(all, plan));
  const std::int64_t found =
      std::count_if(all.begin(), all.end(), [](const FuzzedFault& one) { return one.killer; });
  session.exit_code = 100 * found >= least * std::ssize(all) ? 0 : 1;
}

void run(FuzzOptions& options, Session& session) {
  read_numbers(options);
  if (options.against_faults || !options.faults.empty()) {
    run_faults(options, session);
    return;
  }
  if (options.at_least) throw UsageError("--at-least goes with --faults");
  if (options.list) {
    if (!options.plan.cases) throw UsageError("--list needs a number of cases; give --cases N");
    for (const CaseId& id : fuzz_cases(options.plan)) session.out << id.text() << '\n';
    return;
  }
  if (!options.plan.cases && !options.plan.seconds) options.plan.seconds = default_seconds;
  if (!options.json.empty()) write_json(options.json, {});
  const SupervisorOptions supervisor = supervisor_options(options.implementation, session);
  const auto progress = [&](const FuzzReport& report) {
    if (!session.progress) return;
    session.err << fmt::format("\r\x1b[K{} cases, {} kinds of failures, {:.0f} s", report.cases,
                               report.findings.size(), report.seconds)
                << std::flush;
  };
  const FuzzReport report = run_fuzz(options.plan, supervisor, progress);
  if (session.progress) session.err << "\r\x1b[K" << std::flush;

  const Reproduction how = {supervisor.worker.implementation, supervisor.worker.models,
                            options.implementation.threads ? supervisor.worker.threads : 0};
  session.out << fmt::format("fuzz of {}, seed {}, {} workers\n\n",
                             supervisor.worker.implementation, options.plan.seed, supervisor.jobs);
  for (const FuzzFinding& finding : report.findings) session.out << finding_text(finding, how);
  if (!report.findings.empty()) {
    session.out << fmt::format("failing cases: {} (dropless run --batch)\n\n", report.corpus);
  }
  if (report.stopped) {
    session.out << fmt::format("stopped after {} kinds of failures; see --kinds\n\n",
                               report.findings.size());
  }
  session.out << "what was drawn:\n"
              << shares_text(report, !options.plan.stages.empty() || !options.plan.families.empty())
              << '\n'
              << last_line(report);
  if (!options.json.empty()) {
    write_json(options.json, to_json(report, options.plan, supervisor.worker.implementation));
  }
  session.exit_code = exit_code(report);
}

}  // namespace

void add_fuzz(CLI::App& app, Session& session) {
  auto options = std::make_shared<FuzzOptions>();
  CLI::App* command =
      app.add_subcommand("fuzz", "Judge random cases of all families, and make small what fails");
  declare_fuzz(*command, *options);
  command->callback([options, &session] { run(*options, session); });
}

}  // namespace dropless::conformance
