// SPDX-License-Identifier: Apache-2.0
// Ranks of a job: rank 0 here, the others behind the hub.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <sstream>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/local_rank.h"
#include "conformance/ranks/rank_hosts.h"
#include "conformance/ranks/tcp.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

constexpr auto patience_with_hub = std::chrono::seconds(30);

class AgentHosts : public RankHosts {
 public:
  explicit AgentHosts(const WorkerOptions& options) : options_(options) {}

  void start() override {
    stop();
    connect();
    generation_ = fmt::format("{}.{}", getpid(), ++starts_);
    for (int rank = 1; rank < options_.ranks; ++rank) {
      const nlohmann::ordered_json arguments = rank_arguments(options_, rank);
      hub_->send(fmt::format("{} s {} {}", rank, generation_, one_line(arguments)));
    }
    own_ = std::make_unique<LocalRank>(rank_arguments(options_, 0), ProcessGroup::of_parent);
  }

  void send(int rank, std::string_view line) override {
    if (rank == 0) {
      own_->link().send(line);
    } else {
      hub_->send(fmt::format("{} l {}", rank, line));
    }
  }

  std::vector<Heard> listen(Link& other, int milliseconds) override {
    std::vector<Link*> links{&other, hub_.get()};
    if (own_) links.push_back(&own_->link());
    wait_for(links, {own_ ? own_->output() : -1}, milliseconds);
    std::vector<Heard> heard;
    if (own_) listen_to_own(heard);
    if (hub_) {
      (void)hub_->flush();
      for (const std::string& line : hub_->take_lines()) hear(line, heard);
    }
    return heard;
  }

  // The hub tells the agents when this connection ends.
  void stop() override {
    own_.reset();
    hub_.reset();
  }

 private:
  void connect() {
    std::istringstream stream(options_.hub);
    int port = 0;
    std::string key, why;
    stream >> port >> key;
    hub_ = try_to_connect("127.0.0.1", port, why);
    if (!hub_) throw UsageError(fmt::format("the hub of this run does not answer: {}", why));
    hub_->send("conductor " + key);
    const auto answer = hub_->next_line(LinkClock::now() + patience_with_hub);
    if (answer == "ready") return;
    std::istringstream gone(answer.value_or("").substr(0, 256));
    std::string word, rank, host;
    if (gone >> word >> rank >> host && word == "gone") {
      throw UsageError(fmt::format("rank {} on {} has gone; start all ranks anew", rank, host));
    }
    throw UsageError("the hub of this run has no answer; start all ranks anew");
  }

  void listen_to_own(std::vector<Heard>& heard) {
    (void)own_->link().flush();
    const std::optional<std::string> end = own_->ended();
    for (std::string& line : own_->take_lines()) {
      heard.push_back({0, Heard::Kind::line, std::move(line)});
    }
    if (std::string text = own_->take_output(); !text.empty()) {
      heard.push_back({0, Heard::Kind::printed, std::move(text)});
    }
    if (end) heard.push_back({0, Heard::Kind::ended, *end});
  }

  // "3 l G line", "3 e G how", "3 o G "text"", "3 lost host".
  void hear(const std::string& line, std::vector<Heard>& heard) const {
    char* rest = nullptr;
    const int rank = static_cast<int>(std::strtol(line.c_str(), &rest, 10));
    const std::string text = *rest == ' ' ? std::string(rest + 1) : "";
    if (rank < 1 || rank >= options_.ranks) return;
    if (text.starts_with("lost ")) {
      heard.push_back({rank, Heard::Kind::ended, "its agent on " + text.substr(5) + " has gone"});
      return;
    }
    const std::string prefix = text.substr(0, 1) + " " + generation_ + " ";
    if (!text.starts_with(prefix)) return;  // of an earlier conductor
    const std::string said = text.substr(prefix.size());
    if (text[0] == 'l') heard.push_back({rank, Heard::Kind::line, said});
    if (text[0] == 'e') heard.push_back({rank, Heard::Kind::ended, said});
    if (text[0] == 'o') {
      const auto printed = nlohmann::ordered_json::parse(said, nullptr, false);
      if (printed.is_string()) {
        heard.push_back({rank, Heard::Kind::printed, printed.get<std::string>()});
      }
    }
  }

  const WorkerOptions& options_;
  std::unique_ptr<Link> hub_;
  std::unique_ptr<LocalRank> own_;
  std::string generation_;
  int starts_ = 0;
};

}  // namespace

std::unique_ptr<RankHosts> make_agent_hosts(const WorkerOptions& options) {
  return std::make_unique<AgentHosts>(options);
}

}  // namespace dropless::conformance
