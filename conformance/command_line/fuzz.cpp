// SPDX-License-Identifier: Apache-2.0
// dropless fuzz: random cases of every family, judged in workers, failures made small.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <ostream>

#include "conformance/cases/models.h"
#include "conformance/command_line/session.h"
#include "conformance/report/failure_text.h"
#include "conformance/report/machine.h"
#include "conformance/report/summary.h"
#include "conformance/runner/fuzzing.h"

namespace dropless::conformance {
namespace {

constexpr double default_seconds = 60, default_timeout = 30;
constexpr double longest = 86400 * 30;

struct FuzzOptions {
  ImplementationOptions implementation;
  std::optional<std::string> cases, seconds, seed, shrink_seconds, kinds;
  FuzzPlan plan;
  bool list = false;
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
  declare(command, options.implementation);
}

void read_numbers(FuzzOptions& options) {
  FuzzPlan& plan = options.plan;
  if (options.cases) plan.cases = whole_number("--cases", *options.cases, 1, 1000000000);
  if (options.seconds) plan.seconds = positive_number("--seconds", *options.seconds, longest);
  if (!plan.cases && !plan.seconds) plan.seconds = default_seconds;
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

std::string finding_text(const FuzzFinding& finding, const Reproduction& how) {
  std::string text =
      fmt::format("{}: {} case{}, the first is number {}\n  {}\n", finding.kind, finding.cases,
                  finding.cases == 1 ? "" : "s", finding.number, finding.first.text());
  if (finding.candidates > 0) {
    text += fmt::format("  made smaller in {} steps ({} candidates{}):\n", finding.steps,
                        finding.candidates, finding.out_of_time ? ", out of time" : "");
  }
  return text + failure_text(finding.outcome, how) + "\n";
}

// Every label that something was required of, stages and families by themselves.
std::string shares_text(const FuzzReport& report, bool families) {
  std::string text;
  for (const FuzzShare& share : report.shares) {
    const bool family = share.label.find('.') != std::string::npos;
    if (family && !families && share.met) continue;
    if (share.of == 0 && share.met) continue;
    const double percent =
        share.of == 0 ? 0
                      : 100.0 * static_cast<double>(share.count) / static_cast<double>(share.of);
    text += fmt::format("  {:<30} {:>8} of {:>8} {:<26} {:>5.1f} %  required {:>4.1f} %{}\n",
                        share.label, share.count, share.of, share.among, percent,
                        100 * share.required, share.met ? "" : "  MISSED");
  }
  return text;
}

std::string last_line(const FuzzReport& report) {
  const auto missed = std::count_if(report.shares.begin(), report.shares.end(),
                                    [](const FuzzShare& share) { return !share.met; });
  const double rate = static_cast<double>(report.cases) / std::max(report.seconds, 1e-9);
  const char* word = "PASS";
  if (!report.findings.empty()) {
    word = "FAIL";
  } else if (report.count(Status::pass) == 0) {
    word = "FAIL (nothing passed)";
  } else if (missed > 0) {
    word = "MISTRUSTED (the cases drawn were too much alike)";
  }
  return fmt::format("{}: {} cases ({}), {} checks, {:.1f} s, {:.0f} cases/s\n", word, report.cases,
                     in_words(report.statuses), report.checks, report.seconds, rate);
}

int exit_code(const FuzzReport& report) {
  const bool shares_met = std::all_of(report.shares.begin(), report.shares.end(),
                                      [](const FuzzShare& share) { return share.met; });
  return report.findings.empty() && shares_met && report.count(Status::pass) > 0 ? 0 : 1;
}

void run(FuzzOptions& options, Session& session) {
  read_numbers(options);
  if (options.list) {
    if (!options.plan.cases) throw UsageError("--list needs a number of cases; give --cases N");
    for (const CaseId& id : fuzz_cases(options.plan)) session.out << id.text() << '\n';
    return;
  }
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
