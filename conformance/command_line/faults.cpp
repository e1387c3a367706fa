// SPDX-License-Identifier: Apache-2.0
// dropless faults: the kill score of the suite over the planted faults.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>

#include "conformance/command_line/fault_pages.h"
#include "conformance/command_line/fault_tables.h"
#include "conformance/command_line/session.h"
#include "conformance/report/build_info.h"
#include "conformance/report/machine.h"
#include "conformance/runner/parallel_campaign.h"

namespace dropless::conformance {
namespace {

constexpr double longest_timeout = 86400;

struct FaultsOptions {
  std::vector<std::string> faults, stages, from, update;
  std::optional<std::string> tier, jobs, timeout, at_least;
  std::string json;
  bool list = false, explain = false, alone = false, every_case = false, clauses = false;
  bool markdown = false, gpu = false;
};

std::vector<FaultEntry> chosen_faults(const FaultsOptions& options) {
  std::vector<std::string> stages;
  for (const FaultEntry& fault : fault_entries()) {
    if (std::find(stages.begin(), stages.end(), fault.stage()) == stages.end()) {
      stages.push_back(fault.stage());
    }
  }
  for (const std::string& stage : options.stages) {
    if (std::find(stages.begin(), stages.end(), stage) == stages.end()) {
      throw UsageError(
          fmt::format("no faults of stage '{}'; choose one of {}", stage, fmt::join(stages, ", ")));
    }
  }
  std::vector<FaultEntry> chosen;
  for (const std::string& name : options.faults) {
    const auto found = std::find_if(fault_entries().begin(), fault_entries().end(),
                                    [&](const FaultEntry& fault) { return fault.name == name; });
    if (found == fault_entries().end()) {
      throw UsageError(fmt::format("no fault '{}'; see dropless faults --list", name));
    }
    chosen.push_back(*found);
  }
  if (options.faults.empty()) chosen = fault_entries();
  if (!options.stages.empty()) {
    std::erase_if(chosen, [&](const FaultEntry& fault) {
      return std::find(options.stages.begin(), options.stages.end(), fault.stage()) ==
             options.stages.end();
    });
  }
  if (options.gpu) {
    std::erase_if(chosen, [](const FaultEntry& fault) { return !fault.on_gpu; });
    for (FaultEntry& fault : chosen) fault.visibility = Visibility::cpu;  // seen by this run
  }
  if (chosen.empty()) throw UsageError("no fault left; see dropless faults --list");
  return chosen;
}

std::vector<Tier> tiers_up_to(const std::optional<std::string>& text) {
  const Tier last = text ? tier_named(*text) : Tier::standard;
  std::vector<Tier> tiers;
  for (const Tier tier : {Tier::smoke, Tier::standard, Tier::full}) {
    if (tier <= last) tiers.push_back(tier);
  }
  return tiers;
}

// Several faults at a time, each with a worker process of its own. Results in the order of the
// faults; lines are printed in that order as soon as they are known.
std::vector<Hunt> hunt_all(Session& session, const std::vector<FaultEntry>& faults,
                           const HuntOptions& options, int jobs, bool explain) {
  std::vector<FaultEntry> visible;
  for (const FaultEntry& fault : faults) {
    if (fault.visibility == Visibility::cpu) visible.push_back(fault);
  }
  std::vector<Hunt> hunts(visible.size());
  parallel_campaign(
      visible.size(), jobs, [&](std::size_t i) { hunts[i] = hunt(visible[i], options); },
      [&](std::size_t i) {
        session.out << hunt_line(hunts[i]);
        if (explain) session.out << hunt_explanation(hunts[i]);
        session.out.flush();
      });
  return hunts;
}

void write_json(const std::string& path, const FaultResults& results) {
  std::ofstream file(path);
  file << to_json(results).dump(2) << '\n';
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", path));
}

Depth depth_of(const FaultsOptions& given) {
  const int wishes = (given.alone ? 1 : 0) + (given.every_case ? 1 : 0) + (given.clauses ? 1 : 0);
  if (wishes > 1) throw UsageError("give one of --alone, --clauses and --every-case");
  if (given.alone) return Depth::alone;
  if (given.clauses) return Depth::two_clauses;
  return given.every_case ? Depth::every_case : Depth::first_kill;
}

// Refuses before the work what could not be done after it.
void check_pages(const FaultsOptions& given, const std::vector<FaultEntry>& faults, Depth depth) {
  for (const std::string& page : given.update) {
    const std::vector<std::string> tables = tables_on(page);
    if (faults.size() != fault_entries().size()) {
      throw UsageError(fmt::format(
          "{} wants all faults: leave --fault and --stage out, or give --from the files of every "
          "stage",
          page));
    }
    const bool clauses = std::find(tables.begin(), tables.end(), "clauses") != tables.end();
    if (clauses && depth != Depth::two_clauses && depth != Depth::every_case) {
      throw UsageError(fmt::format("{} has a table of clauses; give --clauses as well", page));
    }
  }
}

FaultResults hunted(Session& session, const FaultsOptions& given) {
  FaultResults results;
  results.faults = chosen_faults(given);
  results.tiers = tiers_up_to(given.tier);
  results.depth = depth_of(given);
  results.commit = build_info().commit;
  check_pages(given, results.faults, results.depth);
  HuntOptions options;
  options.tiers = results.tiers;
  options.alone = given.alone;
  options.every_case = given.every_case;
  options.until_two_clauses = given.clauses;
  options.interrupt = &session.interrupt;
  if (given.timeout) {
    options.timeout_seconds = positive_number("--timeout", *given.timeout, longest_timeout);
  }
  const int jobs =
      given.jobs ? static_cast<int>(whole_number("--jobs", *given.jobs, 1, 1024)) : usable_cores();
  if (!given.json.empty()) write_json(given.json, {});  // refused before the work, not after
  results.hunts = hunt_all(session, results.faults, options, jobs, given.explain);
  return results;
}

// Results of earlier campaigns instead of a new one.
FaultResults read_again(const FaultsOptions& given) {
  const bool again = given.tier || given.jobs || given.timeout || !given.faults.empty() ||
                     !given.stages.empty() || given.alone || given.clauses || given.every_case;
  if (again) throw UsageError("--from hunts nothing; leave the options of a hunt out");
  FaultResults results = read_fault_results(given.from);
  // Parts that hold every hunt of the catalogue are the whole campaign: faults that are only listed
  // (a stage may have no others) need no file.
  const auto visible =
      std::count_if(fault_entries().begin(), fault_entries().end(),
                    [](const FaultEntry& fault) { return fault.visibility == Visibility::cpu; });
  if (static_cast<std::ptrdiff_t>(results.hunts.size()) == visible) {
    results.faults = fault_entries();
  }
  check_pages(given, results.faults, results.depth);
  return results;
}

void run_faults(Session& session, const FaultsOptions& given) {
  if (given.list) {
    session.out << fault_list(chosen_faults(given));
    return;
  }
  const std::int64_t least =
      given.at_least ? whole_number("--at-least", *given.at_least, 1, 100) : 100;
  const FaultResults results = given.from.empty() ? hunted(session, given) : read_again(given);
  const std::vector<Hunt>& hunts = results.hunts;
  const bool by_clause = results.depth == Depth::two_clauses || results.depth == Depth::every_case;
  session.out << '\n' << score_table(hunts, results.faults, results.tiers);
  if (by_clause) session.out << '\n' << clause_table(hunts);
  if (given.markdown) {
    if (results.depth != Depth::alone) session.out << '\n' << score_markdown(results);
    if (by_clause) session.out << '\n' << clauses_markdown(results);
  }
  if (!given.json.empty()) write_json(given.json, results);
  for (const std::string& page : given.update) {
    update_page(page, results);
    session.out << fmt::format("\n{} is up to date\n", page);
  }
  const auto killed = std::count_if(hunts.begin(), hunts.end(),
                                    [](const Hunt& hunt) { return hunt.killer.has_value(); });
  const auto seen = static_cast<std::int64_t>(hunts.size());
  session.out << '\n' << last_line(hunts);
  bool good = seen > 0 && 100 * killed >= least * seen;
  if (by_clause && results.faults.size() == fault_entries().size()) {
    const std::vector<std::string> unexplained = unexplained_clauses(results);
    if (!unexplained.empty()) {
      session.out << fmt::format(
          "required clauses that no fault needs, and no reason is given: {}\n",
          fmt::join(unexplained, ", "));
      good = false;
    }
  }
  session.exit_code = good ? 0 : 1;
}

}  // namespace

void add_faults(CLI::App& app, Session& session) {
  auto options = std::make_shared<FaultsOptions>();
  CLI::App* command = app.add_subcommand(
      "faults", "Kill score: does the suite find the planted faults? Exit code 0: all of them");
  command->add_option("--fault", options->faults, "only this fault; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--stage", options->stages, "only faults of this stage; repeatable")
      ->type_name("STAGE")
      ->allow_extra_args(false);
  command
      ->add_option("--tier", options->tier,
                   "cases up to this tier (default: smoke, then standard for what survived)")
      ->type_name("TIER");
  command->add_flag("--alone", options->alone,
                    "only cases of the first clause that the fault names, and only it may kill");
  command->add_flag("--every-case", options->every_case,
                    "go on after the first kill, and show which clause sees which fault");
  command->add_flag(
      "--clauses", options->clauses,
      "go on until a second clause sees the fault, and show which clauses are needed");
  command->add_flag("--explain", options->explain, "the first failing case of each fault in full");
  command->add_flag("--gpu", options->gpu,
                    "only the faults of the CUDA implementation of this build; needs a GPU");
  command->add_flag("--list", options->list, "list the faults and run nothing");
  command->add_option("--at-least", options->at_least, "exit code 0 from this share (default: 100)")
      ->type_name("PERCENT");
  command->add_option("-j,--jobs", options->jobs, "worker processes (default: usable cores)")
      ->type_name("N");
  command->add_option("--timeout", options->timeout, "time limit of a case (default: 60)")
      ->type_name("SECONDS");
  command->add_option("--json", options->json, "write the results as JSON as well")
      ->type_name("FILE");
  command
      ->add_option("--from", options->from,
                   "results that --json wrote, instead of a hunt; repeatable, put together")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_flag("--markdown", options->markdown, "print the tables as Markdown as well");
  command
      ->add_option("--update", options->update,
                   "write the tables of this page anew, between its markers; repeatable")
      ->type_name("PAGE")
      ->allow_extra_args(false);
  command->callback([options, &session] { run_faults(session, *options); });
}

}  // namespace dropless::conformance
