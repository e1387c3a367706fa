// SPDX-License-Identifier: Apache-2.0
// The worker's loop.
#include "conformance/runner/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <optional>
#include <vector>

#include "conformance/adapters/describe.h"
#include "conformance/cases/case_run.h"
#include "conformance/cases/models.h"
#include "conformance/cases/phase.h"
#include "conformance/ranks/rank_group.h"
#include "conformance/ranks/thread_ranks.h"
#include "conformance/runner/child.h"
#include "conformance/runner/outcome.h"
#include "conformance/runner/phase_record.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

void reply(char kind, std::string_view text) {
  std::string line{kind};
  if (!text.empty()) line.append(" ").append(text);
  line += '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = write(reply_descriptor, line.data() + sent, line.size() - sent);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      _exit(3);  // nobody listens any more
    }
  }
}

std::optional<std::string> next_request() {
  static std::string read_ahead;
  for (;;) {
    if (const std::size_t end = read_ahead.find('\n'); end != std::string::npos) {
      std::string line = read_ahead.substr(0, end);
      read_ahead.erase(0, end + 1);
      return line;
    }
    char chunk[4096];
    const ssize_t count = read(request_descriptor, chunk, sizeof chunk);
    if (count > 0) {
      read_ahead.append(chunk, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return std::nullopt;
    }
  }
}

void reply_verdict(std::int64_t ticket, const Verdict& verdict) {
  std::fflush(nullptr);  // what the implementation printed belongs to this case
  reply('v', one_line({{"ticket", ticket}, {"verdict", to_json(verdict)}}));
}

// Operations that hung again and again are not entered any more: the case ends as blocked, and the
// worker with it, since there is no way back out of the middle of a case.
std::vector<std::string> blocked_operations;
std::int64_t current_ticket = 0;

void on_phase(std::string_view operation) {
  if (std::find(blocked_operations.begin(), blocked_operations.end(), operation) !=
      blocked_operations.end()) {
    Verdict verdict;
    verdict.status = Status::blocked;
    verdict.reason = fmt::format("{} ran into the time limit too often in this run", operation);
    reply_verdict(current_ticket, verdict);
    _exit(0);
  }
  const RankGroup* group = current_group();
  reply('p', group == nullptr ? std::string(operation)
                              : announcement_of_rank(group->rank(), group->ranks(), operation));
}

Verdict judged(const dropless_implementation& table, const std::string& text, int threads) {
  try {
    const CaseId id = registry().resolve(text);
    const Family& family = *registry().find(id.family);
    const auto run = is_collective(family) ? run_case_over_threads : run_case;
    return run(table, family, id, {.threads = threads});
  } catch (const std::exception& error) {
    Verdict verdict;
    verdict.status = Status::internal_error;
    verdict.reason = error.what();
    return verdict;
  }
}

// When memory runs out the kernel takes a worker, not the supervisor or another program.
void volunteer_for_the_oom_killer() {
  std::ofstream("/proc/self/oom_score_adj") << 1000;
}

}  // namespace

int serve(const WorkerOptions& options) {
  fcntl(request_descriptor, F_SETFD, FD_CLOEXEC);
  fcntl(reply_descriptor, F_SETFD, FD_CLOEXEC);
  volunteer_for_the_oom_killer();
  try {
    if (!options.models.empty()) load_models(options.models);
    const LoadedImplementation implementation = load_implementation(options.implementation);
    reply('h', one_line(describe(implementation)));
    set_phase_listener(on_phase);
    while (const std::optional<std::string> line = next_request()) {
      const Json request = Json::parse(*line);
      current_ticket = request.at("ticket");
      blocked_operations = request.at("blocked").get<std::vector<std::string>>();
      const Verdict verdict = judged(implementation.table(), request.at("id"), options.threads);
      reply_verdict(current_ticket, verdict);
    }
    return 0;
  } catch (const std::exception& error) {
    reply('u', error.what());
    return 2;
  }
}

}  // namespace dropless::conformance
