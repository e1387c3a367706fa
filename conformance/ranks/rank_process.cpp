// SPDX-License-Identifier: Apache-2.0
// One rank: a thread listens to the link whatever the implementation does, the main thread plays.
#include "conformance/ranks/rank_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "conformance/adapters/describe.h"
#include "conformance/cases/models.h"
#include "conformance/cases/phase.h"
#include "conformance/ranks/play.h"
#include "conformance/runner/child.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int nobody_listens = 3;  // exit code
constexpr auto patience_with_conductor = std::chrono::seconds(30);

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The conductor at the other end of the link.
class Conductor {
 public:
  explicit Conductor(std::unique_ptr<Link> link) : link_(std::move(link)) {
    std::thread([this] { listen(); }).detach();
  }

  void say(std::string_view line) {
    const std::lock_guard lock(writing_);
    link_->send(line);
    if (!link_->flush_until(LinkClock::now() + patience_with_conductor)) _exit(nobody_listens);
  }

  std::string next_request() { return next_of(requests_); }

  // The bytes of all ranks, or none.
  std::optional<std::string> gathered(std::int64_t round, std::string_view own) {
    say(fmt::format("g {} {}", round, hex_of(own)));
    for (;;) {
      const std::string answer = next_of(answers_);
      char* end = nullptr;
      const std::int64_t its_round = std::strtoll(answer.c_str() + 1, &end, 10);
      if (its_round != round) continue;  // of a case that is over
      if (answer[0] == 'b' || *end != ' ') return std::nullopt;
      return bytes_of(end + 1);
    }
  }

  [[nodiscard]] int descriptor() const { return link_->write_end(); }

 private:
  [[noreturn]] void listen() {
    for (;;) {
      for (std::string& line : link_->take_lines()) {
        if (line == "s") {
          say(fmt::format("s {:.6f}", processor_seconds()));
          continue;
        }
        const std::lock_guard lock(mutex_);
        (line.starts_with('{') ? requests_ : answers_).push_back(std::move(line));
        arrived_.notify_all();
      }
      // Without its conductor a rank must not stay, however busy it is.
      if (!link_->open()) _exit(nobody_listens);
      pollfd ready{link_->read_end(), POLLIN, 0};
      poll(&ready, 1, -1);
    }
  }

  std::string next_of(std::deque<std::string>& queue) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !queue.empty(); });
    std::string line = std::move(queue.front());
    queue.pop_front();
    return line;
  }

  std::unique_ptr<Link> link_;
  std::mutex writing_, mutex_;
  std::condition_variable arrived_;
  std::deque<std::string> requests_, answers_;
};

// Round numbers go on from case to case, so that an answer that comes late is known as such.
class ProcessGroupOfRanks : public RankGroup {
 public:
  ProcessGroupOfRanks(Conductor& conductor, int rank, int ranks, std::int64_t& rounds)
      : conductor_(conductor), rank_(rank), ranks_(ranks), rounds_(rounds) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return ranks_; }
  [[nodiscard]] bool all_gather(const void* sent, void* received, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const auto all = conductor_.gathered(++rounds_, {static_cast<const char*>(sent), bytes});
    if (!all || all->size() != bytes * static_cast<std::size_t>(ranks_)) return false;
    std::memcpy(received, all->data(), all->size());
    return true;
  }

 protected:
  std::shared_ptr<const void> remembered(const std::string& key, const Maker& make) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const void>& found = memories_[key];
    if (!found) found = make();
    return found;
  }

 private:
  Conductor& conductor_;
  int rank_, ranks_;
  std::int64_t& rounds_;
  std::recursive_mutex mutex_;
  std::map<std::string, std::shared_ptr<const void>> memories_;
};

Conductor* conductor_of_process = nullptr;
int descriptor_of_link = -1;
std::vector<std::string> blocked_operations;
std::int64_t current_ticket = 0;

void say_verdict(const Verdict& verdict) {
  std::fflush(nullptr);  // what the implementation printed belongs to this case
  conductor_of_process->say("v " +
                            one_line({{"ticket", current_ticket}, {"verdict", to_json(verdict)}}));
}

// As in a worker of one process: a blocked operation ends the case, and this process with it.
void on_phase(std::string_view operation) {
  if (std::find(blocked_operations.begin(), blocked_operations.end(), operation) !=
      blocked_operations.end()) {
    Verdict verdict;
    verdict.status = Status::blocked;
    verdict.reason = fmt::format("{} ran into the time limit too often in this run", operation);
    say_verdict(verdict);
    _exit(0);
  }
  conductor_of_process->say(fmt::format("p {}", operation));
}

// mpirun ends everybody when one has died: who says so before he goes is not the one.
void on_termination(int) {
  constexpr char farewell[] = "t\n";
  (void)!write(descriptor_of_link, farewell, sizeof farewell - 1);
  _exit(128 + SIGTERM);
}

void tell_the_environment(const RankOptions& options) {
  setenv("RANK", std::to_string(options.rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
  const int local_rank = options.local_rank < 0 ? options.rank : options.local_rank;
  setenv("LOCAL_RANK", std::to_string(local_rank).c_str(), 1);
}

void play_cases(const LoadedImplementation& implementation, const RankOptions& options) {
  std::int64_t rounds = 0;
  for (;;) {
    const Json request = Json::parse(conductor_of_process->next_request());
    current_ticket = request.at("ticket");
    blocked_operations = request.at("blocked").get<std::vector<std::string>>();
    rounds = current_ticket << 32;
    Verdict verdict;
    try {
      const CaseId id = registry().resolve(request.at("id").get<std::string>());
      ProcessGroupOfRanks group(*conductor_of_process, options.rank, options.ranks, rounds);
      verdict = play_rank(implementation.table(), *registry().find(id.family), id,
                          {.threads = options.threads}, group);
    } catch (const std::exception& error) {
      verdict.reason = error.what();
    }
    say_verdict(verdict);
  }
}

}  // namespace

int serve_rank(const RankOptions& options, std::unique_ptr<Link> link) {
  // When memory runs out the kernel takes a rank, not the supervisor or another program.
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  tell_the_environment(options);
  descriptor_of_link = link->write_end();
  static Conductor conductor(std::move(link));  // its thread outlives this function
  conductor_of_process = &conductor;
  std::signal(SIGTERM, on_termination);
  try {
    if (!options.models.empty()) load_models(options.models);
    const LoadedImplementation implementation = load_implementation(options.implementation);
    conductor.say("h " + one_line(describe(implementation)));
    set_phase_listener(on_phase);
    play_cases(implementation, options);
    return 0;
  } catch (const std::exception& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    conductor.say("u " + message);
    return 2;
  }
}

std::unique_ptr<Link> link_to_parent() {
  return std::make_unique<Link>(request_descriptor, reply_descriptor);
}

}  // namespace dropless::conformance
