// SPDX-License-Identifier: Apache-2.0
// dropless worker (hidden): the process in which an implementation runs. The supervisor starts it.
#include <unistd.h>

#include <memory>

#include "conformance/command_line/session.h"
#include "conformance/runner/worker.h"

namespace dropless::conformance {

void add_worker(CLI::App& app, Session&) {
  auto options = std::make_shared<WorkerOptions>();
  CLI::App* command = app.add_subcommand("worker", "")->group("");
  command->add_option("--implementation", options->implementation)->required();
  command->add_option("--models", options->models);
  command->add_option("--threads", options->threads);
  // Straight out: destructors of a foreign library are not ours to run.
  command->callback([options] { _exit(serve(*options)); });
}

}  // namespace dropless::conformance
