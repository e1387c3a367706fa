// SPDX-License-Identifier: Apache-2.0
// Following rank 0.
#include "conformance/ranks/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/local_rank.h"
#include "conformance/ranks/rendezvous.h"
#include "conformance/report/build_info.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int look_milliseconds = 100;
constexpr auto patience_with_host = std::chrono::seconds(10);  // at most, for its welcome

class Agent {
 public:
  Agent(std::unique_ptr<Link> host, int local_rank)
      : host_(std::move(host)), local_rank_(local_rank) {}

  Orders obey(const std::atomic<int>& interrupt) {
    // An order is heard even when the launcher ends all ranks at the same time.
    for (bool last_round = false; !last_round;) {
      last_round = interrupt != 0;
      std::vector<Link*> links{host_.get()};
      std::vector<int> outputs;
      if (rank_) links.push_back(&rank_->link()), outputs.push_back(rank_->output());
      wait_for(links, outputs, look_milliseconds);
      for (const std::string& line : host_->take_lines()) {
        if (const std::optional<Orders> orders = take(line)) return *orders;
      }
      report();
      (void)host_->flush();
      if (!host_->open()) return {1, "rank 0 has gone; see what it printed"};
    }
    return {128 + interrupt, ""};
  }

 private:
  // An order; the last one says how to leave.
  std::optional<Orders> take(const std::string& line) {
    const std::string text = line.size() > 2 ? line.substr(2) : "";
    const std::size_t space = std::min(text.find(' '), text.size());
    switch (line.empty() ? ' ' : line[0]) {
      case 's':
        generation_ = text.substr(0, space);
        rank_.reset();
        start(text.substr(std::min(space + 1, text.size())));
        break;
      case 'k':
        rank_.reset();
        break;
      case 'l':
        if (rank_) rank_->link().send(text);
        break;
      case 'x':
        return Orders{std::atoi(text.c_str()), text.substr(std::min(space + 1, text.size()))};
      default:
        break;
    }
    return std::nullopt;
  }

  // Rank 0 knows nothing of this machine: which of its ranks this is, is known here.
  void start(const std::string& text) {
    try {
      auto arguments = Json::parse(text).get<std::vector<std::string>>();
      arguments.insert(arguments.end(), {"--local-rank", std::to_string(local_rank_)});
      rank_ = std::make_unique<LocalRank>(arguments, ProcessGroup::own);
    } catch (const std::exception& error) {
      say('l', fmt::format("u {}", error.what()));
    }
  }

  void say(char kind, const std::string& text) {
    host_->send(fmt::format("{} {} {}", kind, generation_, text));
  }

  void report() {
    if (!rank_) return;
    (void)rank_->link().flush();
    const std::optional<std::string> end = rank_->ended();  // its last words come before
    for (const std::string& line : rank_->take_lines()) say('l', line);
    if (const std::string text = rank_->take_output(); !text.empty()) say('o', one_line(text));
    if (end) say('e', *end);
  }

  std::unique_ptr<Link> host_;
  int local_rank_;
  std::unique_ptr<LocalRank> rank_;
  std::string generation_;
};

// False: whoever answered is not rank 0 of this job.
bool is_welcome(const Launch& launch, const Found& found, LinkClock::time_point join_deadline,
                const std::atomic<int>& interrupt) {
  const Json hello{{"key", found.key},
                   {"rank", launch.rank},
                   {"ranks", launch.ranks},
                   {"host", own_host_name()},
                   {"commit", build_info().commit}};
  found.link->send("agent " + one_line(hello));
  const auto deadline = std::min(join_deadline, LinkClock::now() + patience_with_host);
  while (interrupt == 0 && LinkClock::now() < deadline && found.link->open()) {
    const auto answer =
        found.link->next_line(LinkClock::now() + std::chrono::milliseconds(look_milliseconds));
    if (answer) return *answer == "welcome";
  }
  return false;
}

}  // namespace

Orders follow(const Launch& launch, const MeetingPoint& point, double join_seconds,
              const std::atomic<int>& interrupt) {
  const auto deadline = LinkClock::now() + std::chrono::duration_cast<LinkClock::duration>(
                                               std::chrono::duration<double>(join_seconds));
  while (interrupt == 0) {
    Found found = find_host(point, deadline, interrupt);
    if (!found.link) break;
    if (is_welcome(launch, found, deadline, interrupt)) {
      return Agent(std::move(found.link), launch.local_rank).obey(interrupt);
    }
    if (LinkClock::now() >= deadline) {
      throw UsageError(
          fmt::format("whoever answers at {} is not rank 0 of this job; set "
                      "MASTER_PORT to a port that is free there, on every rank",
                      found.address));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(look_milliseconds));
  }
  return {128 + interrupt, ""};
}

}  // namespace dropless::conformance
