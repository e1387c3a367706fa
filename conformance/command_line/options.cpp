// SPDX-License-Identifier: Apache-2.0
// Options that several sub-commands have.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "conformance/command_line/session.h"

namespace dropless::conformance {

void declare_models(CLI::App& command, ImplementationOptions& options) {
  command.add_option("--models", options.models, "JSON file that replaces the built-in models")
      ->type_name("FILE");
}

void declare(CLI::App& command, ImplementationOptions& options) {
  command
      .add_option("-i,--implementation", options.implementation,
                  "cpu (default), cuda, reference, or a shared library")
      ->type_name("NAME|FILE");
  declare_models(command, options);
  command
      .add_option("--threads", options.threads, "threads that one call may use (default: share)")
      ->type_name("N");
  command.add_option("-j,--jobs", options.jobs, "worker processes (default: usable cores)")
      ->type_name("N");
  command.add_option("--timeout", options.timeout, "time limit of a case (default: 60)")
      ->type_name("SECONDS");
  command
      .add_option("--memory", options.memory,
                  "that all workers together may hold (default: 90 % of the machine)")
      ->type_name("MIB");
}

void declare_ranks(CLI::App& command, ImplementationOptions& options) {
  command
      .add_option("--ranks", options.ranks,
                  "only cases over N ranks, each rank a process (under mpirun, srun or torchrun: "
                  "as many as were started)")
      ->type_name("N");
  command
      .add_option("--launcher", options.launcher,
                  "what the ranks are: processes (default), threads or mpi")
      ->type_name("NAME");
  command
      .add_option("--join-timeout", options.join_timeout,
                  "how long ranks that a launcher starts wait for each other (default: 60)")
      ->type_name("SECONDS");
}

void declare(CLI::App& command, SelectionOptions& options) {
  Wishes& wishes = options.wishes;
  command.add_option("ids", wishes.ids, "case ids, or families (all of their cases)");
  command
      .add_option("--filter", wishes.filters, "only ids that match, * and ? allowed; repeatable")
      ->type_name("GLOB");
  command.add_option("--stage", wishes.stages, "only this stage; repeatable")->type_name("STAGE");
  command.add_option("--model", wishes.models, "only cases of this model; repeatable")
      ->type_name("MODEL");
  command.add_option("--clause", wishes.clauses, "only cases of this clause; repeatable")
      ->type_name("CLAUSE");
  command.add_option("--tier", options.tier, "smoke, standard or full")->type_name("TIER");
  command.add_option("--shard", wishes.shard, "the i-th of n parts")->type_name("i/n");
  command.add_option("--batch", wishes.batch, "file with one id or family per line")
      ->type_name("FILE");
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() > 1 && !option->get_positional()) {
      option->allow_extra_args(false);  // `--stage mxfp8 <id>` takes one stage
    }
  }
}

void declare(CLI::App& command, ResultOptions& options) {
  command.add_option("--results", options.results, "results file, JSON lines; must not exist")
      ->type_name("FILE");
  command.add_option("--resume", options.resume, "continue the run of this results file")
      ->type_name("FILE");
  command.add_flag("--no-results", options.no_results, "write no results file");
  command.add_option("--junit", options.junit, "write JUnit XML as well")->type_name("FILE");
}

bool SelectionOptions::given() const {
  return tier.has_value() || !(wishes == Wishes{});
}

Wishes SelectionOptions::read(Tier default_tier) const {
  Wishes read = wishes;
  read.tier = tier ? tier_named(*tier) : default_tier;
  return read;
}

std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t least,
                          std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    throw UsageError(
        fmt::format("{} is '{}'; give a whole number from {} to {}", option, text, least, most));
  }
  return value;
}

double positive_number(const std::string& option, const std::string& text, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value > 0 && value <= most)) {
    throw UsageError(
        fmt::format("{} is '{}'; give a number above 0, at most {}", option, text, most));
  }
  return value;
}

Tier tier_named(const std::string& text) {
  if (const std::optional<Tier> tier = tier_from(text)) return *tier;
  throw UsageError(fmt::format("no tier '{}'; choose smoke, standard or full", text));
}

}  // namespace dropless::conformance
