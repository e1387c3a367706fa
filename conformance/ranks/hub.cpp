// SPDX-License-Identifier: Apache-2.0
// Gathering agents, and carrying lines between them and the conductor.
#include "conformance/ranks/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "conformance/cases/case_id.h"
#include "conformance/report/build_info.h"
#include "conformance/runner/phase_record.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr int look_milliseconds = 50;
constexpr auto last_words = std::chrono::seconds(3);

LinkClock::time_point in_seconds(double seconds) {
  return LinkClock::now() +
         std::chrono::duration_cast<LinkClock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Hub::Hub(const MeetingPoint& point, int ranks, double join_seconds,
         const std::atomic<int>& interrupt)
    : host_(point), agents_(static_cast<std::size_t>(ranks)) {
  std::random_device device;
  conductor_key_ = fmt::format("{:08x}{:08x}", device(), device());
  try {
    gather(join_seconds, interrupt);
  } catch (const UsageError& error) {
    tell_all(2, error.what());
    throw;
  }
  host_.remove_file();
  thread_ = std::thread([this] { relay(); });
}

Hub::~Hub() {
  finish(1, "rank 0 has given up");
}

std::string Hub::address() const {
  return fmt::format("{} {}", const_cast<Host&>(host_).listener().port(), conductor_key_);
}

std::vector<int> Hub::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 1; rank < agents_.size(); ++rank) {
    if (!agents_[rank].link) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Hub::gather(double join_seconds, const std::atomic<int>& interrupt) {
  const auto deadline = in_seconds(join_seconds);
  while (!missing().empty()) {
    if (interrupt != 0) return;  // noticed by the caller before its first case
    if (LinkClock::now() >= deadline) {
      throw UsageError(fmt::format(
          "{} of {} did not come within {:.3g} s; start all ranks, or raise --join-timeout",
          rank_list(missing()), agents_.size(), join_seconds));
    }
    std::vector<Link*> links;
    for (const auto& link : unknown_) links.push_back(link.get());
    wait_for(links, {host_.listener().descriptor()}, look_milliseconds);
    while (std::unique_ptr<Link> link = host_.listener().accept()) {
      unknown_.push_back(std::move(link));
    }
    for (auto& link : unknown_) {
      const std::vector<std::string> lines = link->take_lines();
      if (!lines.empty()) {
        take_hello(std::move(link), lines.front());
      } else if (!link->open()) {
        link.reset();
      }
    }
    std::erase(unknown_, nullptr);
  }
}

// Strangers that knock at the port are turned away; a rank of this job that is wrong ends the run.
void Hub::take_hello(std::unique_ptr<Link> link, const std::string& line) {
  constexpr std::string_view word = "agent ";
  const Json hello =
      line.starts_with(word) ? Json::parse(line.substr(word.size()), nullptr, false) : Json();
  if (!hello.is_object() || hello.value("key", "") != host_.key()) return;
  const int rank = hello.value("rank", -1), ranks = hello.value("ranks", -1);
  const std::string host = hello.value("host", "?"), commit = hello.value("commit", "?");
  const int own_ranks = static_cast<int>(agents_.size());
  std::string trouble;
  if (ranks != own_ranks) {
    trouble = fmt::format(
        "rank {} on {} was started as one of {} ranks, rank 0 as one of {}; give "
        "all ranks the same number",
        rank, host, ranks, own_ranks);
  } else if (rank < 1 || rank >= own_ranks || agents_[static_cast<std::size_t>(rank)].link) {
    trouble = fmt::format(
        "two processes say that they are rank {}, one of them on {}; give each a "
        "rank of its own",
        rank, host);
  } else if (commit != build_info().commit) {
    trouble = fmt::format(
        "rank {} on {} has the suite of commit {}, rank 0 that of {}; start the "
        "same build on all ranks",
        rank, host, commit, build_info().commit);
  }
  if (!trouble.empty()) {
    link->send("welcome");
    link->send("x 2 " + trouble);
    (void)link->flush_until(LinkClock::now() + last_words);
    throw UsageError(trouble);
  }
  link->send("welcome");
  agents_[static_cast<std::size_t>(rank)] = {std::move(link), host};
}

void Hub::tell_all(int code, const std::string& message) {
  std::string line = fmt::format("x {} {}", code, message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  for (Agent& agent : agents_) {
    if (agent.link) agent.link->send(line);
  }
  for (Agent& agent : agents_) {
    if (agent.link) (void)agent.link->flush_until(LinkClock::now() + last_words);
  }
}

void Hub::finish(int code, const std::string& message) {
  if (finished_) return;
  finished_ = true;
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  tell_all(code, message);
}

void Hub::relay() {
  while (!stop_) relay_once();
}

void Hub::drop_conductor() {
  conductor_.reset();
  for (Agent& agent : agents_) {
    if (agent.link) agent.link->send("k");
  }
}

void Hub::meet_conductor(const std::string& line) {
  if (line != "conductor " + conductor_key_) {
    conductor_.reset();
    return;
  }
  for (std::size_t rank = 1; rank < agents_.size(); ++rank) {
    if (agents_[rank].link) continue;
    conductor_->send(fmt::format("gone {} {}", rank, agents_[rank].host));
    return;
  }
  conductor_->send("ready");
}

void Hub::relay_once() {
  std::vector<Link*> links{conductor_.get()};
  for (const Agent& agent : agents_) links.push_back(agent.link.get());
  // A second conductor waits until the first one has gone.
  wait_for(links, {conductor_ ? -1 : host_.listener().descriptor()}, look_milliseconds);
  if (!conductor_) {
    conductor_ = host_.listener().accept();
    if (conductor_) {
      const auto hello = conductor_->next_line(in_seconds(5));
      meet_conductor(hello.value_or(""));
    }
  }
  if (conductor_) {
    for (const std::string& line : conductor_->take_lines()) {
      const std::size_t space = std::min(line.find(' '), line.size() - 1);
      const auto rank = static_cast<std::size_t>(std::atoi(line.c_str()));
      if (rank >= 1 && rank < agents_.size() && agents_[rank].link) {
        agents_[rank].link->send(line.substr(space + 1));
      }
    }
    (void)conductor_->flush();
    if (!conductor_->open()) drop_conductor();
  }
  for (std::size_t rank = 1; rank < agents_.size(); ++rank) {
    Agent& agent = agents_[rank];
    if (!agent.link) continue;
    (void)agent.link->flush();
    for (const std::string& line : agent.link->take_lines()) {
      if (conductor_) conductor_->send(fmt::format("{} {}", rank, line));
    }
    if (agent.link->open()) continue;
    agent.link.reset();
    if (conductor_) conductor_->send(fmt::format("{} lost {}", rank, agent.host));
  }
}

}  // namespace dropless::conformance
