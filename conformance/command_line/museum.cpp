// SPDX-License-Identifier: Apache-2.0
// dropless museum: what common checks let through of the planted faults.
#include "conformance/runner/museum.h"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <ostream>

#include "conformance/command_line/session.h"
#include "conformance/report/machine.h"

namespace dropless::conformance {
namespace {

constexpr double longest_timeout = 86400;

struct MuseumOptions {
  std::vector<std::string> stages;
  std::optional<std::string> jobs, timeout;
  std::string update, json;
};

void run_museum(Session& session, const MuseumOptions& given) {
  MuseumPlan plan;
  plan.stages = given.stages, plan.json = given.json;
  plan.jobs =
      given.jobs ? static_cast<int>(whole_number("--jobs", *given.jobs, 1, 1024)) : usable_cores();
  if (given.timeout) {
    plan.timeout_seconds = positive_number("--timeout", *given.timeout, longest_timeout);
  }
  plan.interrupt = &session.interrupt;
  if (session.progress) {
    plan.progress = [&session](std::size_t done, std::size_t of) {
      session.err << fmt::format("\r{} of {} faults{}", done, of, done == of ? "\n" : "")
                  << std::flush;
    };
  }
  const std::string page = museum_page(plan);
  if (given.update.empty()) {
    session.out << page;
    return;
  }
  std::ofstream file(given.update);
  file << page;
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", given.update));
  session.out << given.update << " is up to date\n";
}

}  // namespace

void add_museum(CLI::App& app, Session& session) {
  auto options = std::make_shared<MuseumOptions>();
  CLI::App* command = app.add_subcommand(
      "museum", "What common checks let through of the planted faults, as a page of Markdown");
  command->add_option("--stage", options->stages, "only faults of this stage; repeatable")
      ->type_name("STAGE")
      ->allow_extra_args(false);
  command->add_option("--update", options->update, "write the page to this file")
      ->type_name("PAGE");
  command->add_option("-j,--jobs", options->jobs, "processes (default: usable cores)")
      ->type_name("N");
  command->add_option("--timeout", options->timeout, "time limit of a fault (default: 300)")
      ->type_name("SECONDS");
  command
      ->add_option("--json", options->json,
                   "results, kept after every fault; a file that is there is continued")
      ->type_name("FILE");
  command->callback([options, &session] { run_museum(session, *options); });
}

}  // namespace dropless::conformance
