// SPDX-License-Identifier: Apache-2.0
// dropless: does an implementation compute dropless MoE training correctly?
//
// Exit codes: 0 everything required passed, 1 something did not, 2 wrong use; 128 + n after signal
// n.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "conformance/adapters/sources.h"
#include "conformance/command_line/session.h"
#include "conformance/report/build_info.h"
#include "conformance/runner/supervisor.h"

namespace {

using dropless::conformance::Session;

constexpr int wrong_use = 2;
constexpr int broken = 1;

Session* session_of_process = nullptr;

void on_signal(int number) {
  session_of_process->interrupt = number;
}

// One line, whatever the message was made of, in one piece: other ranks may write to the same
// terminal.
int complain(std::ostream& err, std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  err << "dropless: " + message + '\n';
  return wrong_use;
}

std::string version_line() {
  const auto& info = dropless::conformance::build_info();
  return fmt::format("dropless {} ({})", info.version, info.commit);
}

// The sub-command whose options were being read, for the remedy.
std::string command_in(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) return "dropless " + command->get_name();
  return "dropless";
}

// CLI11 only says that a sub-command is missing when a word is none of them.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return;
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  throw dropless::conformance::UsageError(
      fmt::format("no command '{}'; choose one of {}", argv[1], fmt::join(names, ", ")));
}

int run(int argc, char** argv, Session& session) {
  dropless::conformance::register_planted_faults();
  dropless::conformance::register_honest_variants();
  CLI::App app("Finds out whether an implementation computes dropless MoE training correctly.",
               "dropless");
  app.set_version_flag("--version", version_line());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  dropless::conformance::add_gate(app, session);
  dropless::conformance::add_run(app, session);
  dropless::conformance::add_list(app, session);
  dropless::conformance::add_explain(app, session);
  dropless::conformance::add_info(app, session);
  dropless::conformance::add_faults(app, session);
  dropless::conformance::add_honest(app, session);
  dropless::conformance::add_sensitivity(app, session);
  dropless::conformance::add_museum(app, session);
  dropless::conformance::add_tolerances(app, session);
  dropless::conformance::add_fuzz(app, session);
  dropless::conformance::add_bench(app, session);
  dropless::conformance::add_check_clauses(app, session);
  dropless::conformance::add_worker(app, session);
  try {
    check_command(app, argc, argv);
    app.parse(argc, argv);
    return session.exit_code;
  } catch (const CLI::Success& help) {
    return app.exit(help, session.out, session.err);
  } catch (const CLI::ParseError& error) {
    return complain(session.err, fmt::format("{}; see {} --help", error.what(), command_in(app)));
  } catch (const dropless::conformance::UsageError& error) {
    return complain(session.err, error.what());
  } catch (const dropless::conformance::Interrupted& stop) {
    return 128 + stop.signal;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Session session{std::cout, std::cerr, isatty(STDERR_FILENO) != 0, {}, 0};
  session_of_process = &session;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, on_signal);
  std::signal(SIGXFSZ, SIG_IGN);  // a full results file is reported, not died of
  try {
    const int code = run(argc, argv, session);
    session.out.flush();
    return code;
  } catch (const std::exception& error) {
    std::cerr << "dropless: the suite itself failed: " << error.what() << "; please report it\n";
    return broken;
  }
}
