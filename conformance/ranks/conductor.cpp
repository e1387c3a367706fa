// SPDX-License-Identifier: Apache-2.0
// Loading a group, and one case after the other.
#include "conformance/ranks/conductor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>

#include "conformance/ranks/collective.h"
#include "conformance/ranks/rank_hosts.h"
#include "conformance/runner/child.h"
#include "conformance/runner/outcome.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr double least_loading_seconds = 30;
constexpr auto second_opinion = std::chrono::milliseconds(500);
constexpr auto last_words = std::chrono::seconds(5);

// An implementation that cannot be loaded, on one rank or on all of them alike.
struct Refused {
  std::string message;
};

std::unique_ptr<RankHosts> hosts_for(const WorkerOptions& options) {
  if (options.launcher == "mpi") return make_mpi_hosts(options);
  if (options.launcher == "agents") return make_agent_hosts(options);
  return make_child_hosts(options);
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class Conductor {
 public:
  explicit Conductor(const WorkerOptions& options)
      : options_(options),
        supervisor_(request_descriptor, reply_descriptor),
        hosts_(hosts_for(options)) {}

  int serve() {
    int code = 0;
    try {
      load();
      say("h " + description_);
      while (const std::optional<std::string> line = next_request()) {
        if (!play(*line)) break;
      }
    } catch (const Refused& refused) {
      say("u " + in_one_line(refused.message));
      code = 2;
    } catch (const std::exception& error) {
      say("u " + in_one_line(error.what()));
      code = 2;
    }
    hosts_->stop();
    return code;
  }

 private:
  void say(const std::string& line) {
    supervisor_.send(line);
    (void)supervisor_.flush_until(LinkClock::now() + last_words);
  }

  std::vector<Heard> listen(int milliseconds) {
    std::vector<Heard> heard = hosts_->listen(supervisor_, milliseconds);
    (void)supervisor_.flush();
    for (const Heard& one : heard) {
      if (one.kind == Heard::Kind::printed) print(one);
    }
    return heard;
  }

  // The supervisor keeps what this process prints for the report.
  static void print(const Heard& heard) {
    std::size_t begin = 0;
    while (begin < heard.text.size()) {
      const std::size_t end = std::min(heard.text.find('\n', begin), heard.text.size());
      fmt::print("[rank {}] {}\n", heard.rank, heard.text.substr(begin, end - begin));
      begin = end + 1;
    }
    std::fflush(stdout);
  }

  void load() {
    hosts_->start();
    broken_ = false;
    const double limit = std::max(options_.timeout_seconds, least_loading_seconds);
    auto deadline = LinkClock::now() + std::chrono::duration_cast<LinkClock::duration>(
                                           std::chrono::duration<double>(limit));
    std::vector<std::optional<std::string>> loaded(static_cast<std::size_t>(options_.ranks));
    std::vector<std::pair<int, std::string>> complaints;
    std::size_t here = 0;
    while (here < loaded.size() && complaints.size() < loaded.size()) {
      if (LinkClock::now() > deadline) break;
      for (const Heard& one : listen(50)) {
        std::optional<std::string>& place = loaded[static_cast<std::size_t>(one.rank)];
        if (one.kind == Heard::Kind::line && one.text.starts_with("h ") && !place) {
          place = one.text.substr(2);
          ++here;
        } else if (one.kind == Heard::Kind::line && one.text.starts_with("u ")) {
          complaints.emplace_back(one.rank, one.text.substr(2));
        } else if (one.kind == Heard::Kind::ended && !has_complained(complaints, one.rank)) {
          complaints.emplace_back(one.rank, ending_while_loading(one.text));
        } else {
          continue;
        }
        // The others may be about to say the same.
        if (!complaints.empty()) deadline = std::min(deadline, LinkClock::now() + second_opinion);
      }
      if (!supervisor_.open()) throw Refused{"nobody listens any more"};
    }
    if (!complaints.empty()) throw Refused{in_words(complaints)};
    check_presence(loaded, limit);
    check_agreement(loaded);
  }

  static bool has_complained(const std::vector<std::pair<int, std::string>>& complaints, int rank) {
    return std::any_of(complaints.begin(), complaints.end(),
                       [&](const auto& one) { return one.first == rank; });
  }

  std::string ending_while_loading(const std::string& how) const {
    return how.starts_with("exit")
               ? fmt::format(
                     "{} ended the process with {} while it was being loaded; load it in a program "
                     "of your own to find out why",
                     options_.implementation, how)
               : fmt::format(
                     "{} crashed ({}) while it was being loaded; load it in a program of your own "
                     "to find out why",
                     options_.implementation, how);
  }

  // What all ranks say alike is no matter of ranks.
  std::string in_words(const std::vector<std::pair<int, std::string>>& complaints) const {
    const std::string& first = complaints.front().second;
    const bool alike = std::all_of(complaints.begin(), complaints.end(),
                                   [&](const auto& one) { return one.second == first; });
    if (alike && complaints.size() == static_cast<std::size_t>(options_.ranks)) return first;
    return fmt::format("rank {}: {}", complaints.front().first, first);
  }

  static void check_presence(const std::vector<std::optional<std::string>>& loaded, double limit) {
    std::vector<int> missing;
    for (std::size_t rank = 0; rank < loaded.size(); ++rank) {
      if (!loaded[rank]) missing.push_back(static_cast<int>(rank));
    }
    if (missing.empty()) return;
    throw Refused{
        fmt::format("{} did not finish loading the implementation within {:.3g} s; load "
                    "it in a program of your own to find out why",
                    rank_list(missing), limit)};
  }

  void check_agreement(const std::vector<std::optional<std::string>>& loaded) {
    for (std::size_t rank = 1; rank < loaded.size(); ++rank) {
      if (loaded[rank] == loaded[0]) continue;
      throw Refused{fmt::format(
          "rank {} has loaded another implementation than rank 0: name, version, fingerprint or "
          "profile differ; give all ranks the same file",
          rank)};
    }
    description_ = *loaded[0];
  }

  // The next request; none at their end. Meanwhile a rank may die: then all are started anew.
  std::optional<std::string> next_request() {
    for (;;) {
      std::vector<std::string> lines = supervisor_.take_lines();
      if (!lines.empty()) {
        if (broken_) load();
        return lines.front();
      }
      if (!supervisor_.open()) return std::nullopt;
      for (const Heard& one : listen(1000)) {
        if (one.kind == Heard::Kind::ended) broken_ = true;
      }
    }
  }

  // False when the group must not play another case.
  bool play(const std::string& line) {
    const Json request = Json::parse(line);
    const std::int64_t ticket = request.at("ticket");
    Collective collective(
        options_.ranks, ticket, options_.timeout_seconds,
        {[&](int rank, const std::string& text) { hosts_->send(rank, text); },
         [&](const std::string& announcement) { supervisor_.send("p " + announcement); }});
    for (int rank = 0; rank < options_.ranks; ++rank) hosts_->send(rank, line);
    while (!collective.over()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                            collective.next_look() - LinkClock::now())
                            .count();
      for (const Heard& one : listen(static_cast<int>(std::clamp<std::int64_t>(left, 1, 200)))) {
        if (one.kind == Heard::Kind::ended) broken_ = true;
        collective.take(one);
      }
      if (!supervisor_.open()) return false;
    }
    const Verdict verdict = collective.verdict();
    const bool clean = verdict.status == Status::pass || verdict.status == Status::not_supported ||
                       verdict.status == Status::mistrusted;
    for (const Heard& one : listen(0)) {  // what was printed at the end
      if (one.kind == Heard::Kind::ended) broken_ = true;
    }
    // Nothing of a lost case is left when the next one begins.
    if (!clean) hosts_->stop();
    say("v " + one_line({{"ticket", ticket}, {"verdict", to_json(verdict)}}));
    return clean;
  }

  const WorkerOptions& options_;
  Link supervisor_;
  std::unique_ptr<RankHosts> hosts_;
  std::string description_;
  bool broken_ = false;  // a rank process has ended
};

}  // namespace

int conduct(const WorkerOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  return Conductor(options).serve();
}

}  // namespace dropless::conformance
