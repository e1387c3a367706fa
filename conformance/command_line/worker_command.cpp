// SPDX-License-Identifier: Apache-2.0
// dropless worker, dropless rank (hidden): the processes in which an implementation runs. The
// supervisor starts the one, conductors and agents the other.
#include <unistd.h>

#include <memory>

#include "conformance/command_line/session.h"
#include "conformance/ranks/conductor.h"
#include "conformance/ranks/rank_process.h"
#include "conformance/runner/worker.h"

namespace dropless::conformance {
namespace {

void add_rank(CLI::App& app) {
  auto options = std::make_shared<RankOptions>();
  CLI::App* command = app.add_subcommand("rank", "")->group("");
  command->add_option("--implementation", options->implementation)->required();
  command->add_option("--models", options->models);
  command->add_option("--threads", options->threads);
  command->add_option("--rank", options->rank)->required();
  command->add_option("--ranks", options->ranks)->required();
  command->add_option("--local-rank", options->local_rank);
  command->callback([options] { _exit(serve_rank(*options, link_to_parent())); });
}

}  // namespace

void add_worker(CLI::App& app, Session&) {
  auto options = std::make_shared<WorkerOptions>();
  CLI::App* command = app.add_subcommand("worker", "")->group("");
  command->add_option("--implementation", options->implementation)->required();
  command->add_option("--models", options->models);
  command->add_option("--threads", options->threads);
  command->add_option("--ranks", options->ranks);
  command->add_option("--launcher", options->launcher);
  command->add_option("--hub", options->hub);
  command->add_option("--timeout", options->timeout_seconds);
  // Straight out: destructors of a foreign library are not ours to run.
  command->callback([options] { _exit(options->ranks > 0 ? conduct(*options) : serve(*options)); });
  add_rank(app);
}

}  // namespace dropless::conformance
