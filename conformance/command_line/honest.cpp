// SPDX-License-Identifier: Apache-2.0
// dropless honest: the suite over implementations that differ legally. Nothing may fail, and
// nothing may be mistrusted.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <ostream>

#include "conformance/adapters/sources.h"
#include "conformance/command_line/session.h"
#include "conformance/report/failure_text.h"
#include "conformance/report/machine.h"
#include "conformance/report/summary.h"
#include "conformance/runner/fuzzing.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

constexpr double longest_timeout = 86400, default_timeout = 60;
constexpr std::size_t failures_shown = 3;  // of one variant

struct HonestOptions {
  std::vector<std::string> variants, stages;
  std::optional<std::string> tier, fuzz, seed, jobs, timeout;
  std::string json, out = "dropless-fuzz";
  bool list = false;
};

// One variant over the cases of a tier, or over random ones.
struct Trial {
  std::string variant, cases;  // "standard", "fuzz"
  Counts counts;
  double seconds = 0;
  bool complete = true;  // false: a fuzz run stopped early, or drew too much alike

  [[nodiscard]] std::int64_t count(Status status) const {
    const auto found = counts.find(status);
    return found == counts.end() ? 0 : found->second;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [status, number] : counts) sum += number;
    return sum;
  }
  [[nodiscard]] std::int64_t failed() const {
    return total() - count(Status::pass) - count(Status::mistrusted) - count(Status::not_supported);
  }
  [[nodiscard]] bool clean() const {
    return complete && failed() == 0 && count(Status::mistrusted) == 0 && count(Status::pass) > 0;
  }
};

std::vector<HonestEntry> chosen_variants(const HonestOptions& options) {
  if (options.variants.empty()) return honest_entries();
  std::vector<HonestEntry> chosen;
  for (const std::string& name : options.variants) {
    const auto found = std::find_if(honest_entries().begin(), honest_entries().end(),
                                    [&](const HonestEntry& entry) { return entry.name == name; });
    if (found == honest_entries().end()) {
      throw UsageError(fmt::format("no honest variant '{}'; see dropless honest --list", name));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

SupervisorOptions supervisor_options(const HonestOptions& options, const std::string& variant,
                                     Session& session) {
  SupervisorOptions supervisor;
  supervisor.worker.implementation = "honest:" + variant;
  const int cores = usable_cores();
  supervisor.jobs =
      options.jobs ? static_cast<int>(whole_number("--jobs", *options.jobs, 1, 1024)) : cores;
  supervisor.worker.threads = std::max(1, cores / supervisor.jobs);
  supervisor.timeout_seconds = options.timeout
                                   ? positive_number("--timeout", *options.timeout, longest_timeout)
                                   : default_timeout;
  supervisor.interrupt = &session.interrupt;
  return supervisor;
}

Trial run_cases(const std::string& variant, const std::vector<CaseId>& cases, std::string_view tier,
                const SupervisorOptions& options, Session& session) {
  Trial trial;
  trial.variant = variant;
  trial.cases = tier;
  std::vector<Outcome> accused;
  const auto start = std::chrono::steady_clock::now();
  Supervisor supervisor(options);
  supervisor.run(cases, [&](const Outcome& outcome) {
    ++trial.counts[outcome.verdict.status];
    if (!acceptable(outcome.verdict.status)) accused.push_back(outcome);
  });
  trial.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::size_t i = 0; i < std::min(accused.size(), failures_shown); ++i) {
    session.out << failure_text(accused[i], {options.worker.implementation, "", 0}) << '\n';
  }
  for (std::size_t i = failures_shown; i < accused.size(); ++i) {
    session.out << fmt::format("{:<11} {}\n", name(accused[i].verdict.status),
                               accused[i].id.text());
  }
  return trial;
}

Trial run_random(const std::string& variant, const FuzzPlan& plan, const SupervisorOptions& options,
                 Session& session) {
  const FuzzReport report = run_fuzz(plan, options, [](const FuzzReport&) {});
  for (const FuzzFinding& finding : report.findings) {
    session.out << fmt::format("{}: {} cases, the first is number {}\n", finding.kind,
                               finding.cases, finding.number)
                << failure_text(finding.outcome, {options.worker.implementation, "", 0}) << '\n';
  }
  Trial trial{variant, "fuzz", report.statuses, report.seconds, !report.stopped};
  for (const FuzzShare& share : report.shares) {
    // Of one stage alone not every label can be drawn.
    if (share.met || !plan.stages.empty()) continue;
    session.out << fmt::format("{}: {} of {}, required {:.1f} %\n", share.label, share.count,
                               share.of, 100 * share.required);
    trial.complete = false;
  }
  return trial;
}

std::string heading() {
  return fmt::format("{:<28} {:<9} {:>8} {:>8} {:>7} {:>11} {:>12} {:>8}\n", "variant", "cases of",
                     "cases", "passed", "failed", "mistrusted", "not offered", "seconds");
}

std::string line_of(const Trial& trial) {
  return fmt::format("{:<28} {:<9} {:>8} {:>8} {:>7} {:>11} {:>12} {:>8.1f}{}\n", trial.variant,
                     trial.cases, trial.total(), trial.count(Status::pass), trial.failed(),
                     trial.count(Status::mistrusted), trial.count(Status::not_supported),
                     trial.seconds, trial.clean() ? "" : "  ACCUSED");
}

nlohmann::ordered_json json_of(const std::vector<Trial>& trials) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Trial& trial : trials) {
    all.push_back({{"variant", trial.variant},
                   {"cases_of", trial.cases},
                   {"cases", trial.total()},
                   {"passed", trial.count(Status::pass)},
                   {"failed", trial.failed()},
                   {"mistrusted", trial.count(Status::mistrusted)},
                   {"not_supported", trial.count(Status::not_supported)},
                   {"seconds", trial.seconds},
                   {"clean", trial.clean()}});
  }
  return {{"trials", all}};
}

void write_json(const std::string& path, const std::vector<Trial>& trials) {
  std::ofstream file(path);
  file << json_of(trials).dump(2) << '\n';
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", path));
}

FuzzPlan fuzz_plan(const HonestOptions& options) {
  FuzzPlan plan;
  plan.cases = whole_number("--fuzz", *options.fuzz, 1, 1000000000);
  if (options.seed) {
    plan.seed =
        static_cast<std::uint64_t>(whole_number("--seed", *options.seed, 0, std::int64_t{1} << 62));
  }
  plan.stages = options.stages;
  plan.out = options.out;
  return plan;
}

void run_honest(Session& session, const HonestOptions& options) {
  const std::vector<HonestEntry> variants = chosen_variants(options);
  if (options.list) {
    for (const HonestEntry& variant : variants) {
      session.out << fmt::format("{:<28} {}\n", variant.name, variant.difference);
    }
    return;
  }
  // Random cases alone when only they were asked for.
  const bool with_tier = options.tier || !options.fuzz;
  const Tier tier = options.tier ? tier_named(*options.tier) : Tier::standard;
  Wishes wishes;
  wishes.stages = options.stages;
  wishes.tier = tier;
  const std::vector<CaseId> cases = chosen_cases(registry(), wishes);
  if (!options.json.empty()) write_json(options.json, {});  // refused before the work
  session.out << heading() << std::flush;
  std::vector<Trial> trials;
  const auto keep = [&](Trial trial) {
    session.out << line_of(trial) << std::flush;
    trials.push_back(std::move(trial));
  };
  for (const HonestEntry& variant : variants) {
    const SupervisorOptions supervisor = supervisor_options(options, variant.name, session);
    if (with_tier) keep(run_cases(variant.name, cases, name(tier), supervisor, session));
    if (options.fuzz) keep(run_random(variant.name, fuzz_plan(options), supervisor, session));
  }
  if (!options.json.empty()) write_json(options.json, trials);
  const auto clean =
      std::count_if(trials.begin(), trials.end(), [](const Trial& trial) { return trial.clean(); });
  const bool all = clean == static_cast<std::int64_t>(trials.size());
  session.out << fmt::format("\n{}: {} of {} trials without a failure or a mistrusted case\n",
                             all ? "HONEST" : "ACCUSED", clean, trials.size());
  session.exit_code = all ? 0 : 1;
}

}  // namespace

void add_honest(CLI::App& app, Session& session) {
  auto options = std::make_shared<HonestOptions>();
  CLI::App* command = app.add_subcommand(
      "honest", "No false accusation: implementations that differ legally pass everything");
  command->add_option("--variant", options->variants, "only this variant; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--stage", options->stages, "only cases of this stage; repeatable")
      ->type_name("STAGE")
      ->allow_extra_args(false);
  command->add_option("--tier", options->tier, "smoke, standard (default) or full")
      ->type_name("TIER");
  command
      ->add_option("--fuzz", options->fuzz,
                   "this many random cases; instead of those of a tier unless --tier is given")
      ->type_name("CASES");
  command->add_option("--seed", options->seed, "of the random cases (default: 1)")->type_name("S");
  command->add_option("--out", options->out, "folder for failing random cases")->type_name("DIR");
  command->add_flag("--list", options->list, "list the variants and run nothing");
  command->add_option("-j,--jobs", options->jobs, "worker processes (default: usable cores)")
      ->type_name("N");
  command->add_option("--timeout", options->timeout, "time limit of a case (default: 60)")
      ->type_name("SECONDS");
  command->add_option("--json", options->json, "write the results as JSON as well")
      ->type_name("FILE");
  command->callback([options, &session] { run_honest(session, *options); });
}

}  // namespace dropless::conformance
