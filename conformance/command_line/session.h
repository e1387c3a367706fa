// SPDX-License-Identifier: Apache-2.0
// What every sub-command shares: where to print, and the options that several of them have.
//
// A sub-command is a function `add_<name>(CLI::App&, Session&)` that declares its options and, as
// its callback, sets `session.exit_code`. Only files of this folder print, only main exits.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <iosfwd>
#include <optional>
#include <string>

#include "conformance/runner/chosen.h"

namespace dropless::conformance {

struct Session {
  std::ostream& out;
  std::ostream& err;
  bool progress = false;          // err is a terminal: a line may be rewritten
  std::atomic<int> interrupt{0};  // signal that asked to stop
  int exit_code = 0;
};

// Options as text: every number is converted by whole_number, so that all mistakes read alike.
struct ImplementationOptions {
  std::optional<std::string> implementation;  // default cpu, or that of a resumed run
  std::optional<std::string> models, threads, timeout, jobs, memory;
  std::optional<std::string> ranks, launcher, join_timeout;
};

struct SelectionOptions {
  Wishes wishes;
  std::optional<std::string> tier;
  [[nodiscard]] bool given() const;  // anything but the default
  [[nodiscard]] Wishes read(Tier default_tier) const;
};

struct ResultOptions {
  std::string results, resume, junit;
  bool no_results = false;
};

void declare(CLI::App& command, ImplementationOptions& options);
void declare_models(CLI::App& command, ImplementationOptions& options);
void declare_ranks(CLI::App& command, ImplementationOptions& options);
void declare(CLI::App& command, SelectionOptions& options);
void declare(CLI::App& command, ResultOptions& options);

// Throw UsageError that names the option, the value and what is allowed.
std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t least,
                          std::int64_t most);
double positive_number(const std::string& option, const std::string& text, double most);
Tier tier_named(const std::string& text);

void add_gate(CLI::App& app, Session& session);
void add_run(CLI::App& app, Session& session);
void add_list(CLI::App& app, Session& session);
void add_explain(CLI::App& app, Session& session);
void add_info(CLI::App& app, Session& session);
void add_faults(CLI::App& app, Session& session);
void add_honest(CLI::App& app, Session& session);
void add_sensitivity(CLI::App& app, Session& session);
void add_museum(CLI::App& app, Session& session);
void add_tolerances(CLI::App& app, Session& session);
void add_fuzz(CLI::App& app, Session& session);
void add_bench(CLI::App& app, Session& session);
void add_check_clauses(CLI::App& app, Session& session);
void add_worker(CLI::App& app, Session& session);

}  // namespace dropless::conformance
