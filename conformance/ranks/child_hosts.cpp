// SPDX-License-Identifier: Apache-2.0
// Ranks as children of the conductor.
#include <fcntl.h>

#include "conformance/ranks/local_rank.h"
#include "conformance/ranks/rank_hosts.h"

namespace dropless::conformance {
namespace {

int copy_of(int descriptor) {
  return fcntl(descriptor, F_DUPFD_CLOEXEC, 16);
}

class ChildHosts : public RankHosts {
 public:
  explicit ChildHosts(const WorkerOptions& options) : options_(options) {}

  void start() override {
    stop();
    for (int rank = 0; rank < options_.ranks; ++rank) {
      ranks_.push_back(
          std::make_unique<LocalRank>(rank_arguments(options_, rank), ProcessGroup::of_parent));
    }
  }

  void send(int rank, std::string_view line) override {
    ranks_[static_cast<std::size_t>(rank)]->link().send(line);
  }

  std::vector<Heard> listen(Link& other, int milliseconds) override {
    std::vector<Link*> links{&other};
    std::vector<int> outputs;
    for (const auto& one : ranks_) {
      links.push_back(&one->link());
      outputs.push_back(one->output());
    }
    wait_for(links, outputs, milliseconds);
    std::vector<Heard> heard;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = static_cast<int>(i);
      ranks_[i]->link().flush();
      const std::optional<std::string> end = ranks_[i]->ended();  // its last words come before
      for (std::string& line : ranks_[i]->take_lines()) {
        heard.push_back({rank, Heard::Kind::line, std::move(line)});
      }
      if (std::string text = ranks_[i]->take_output(); !text.empty()) {
        heard.push_back({rank, Heard::Kind::printed, std::move(text)});
      }
      if (end) heard.push_back({rank, Heard::Kind::ended, *end});
    }
    return heard;
  }

  void stop() override { ranks_.clear(); }

 private:
  const WorkerOptions& options_;
  std::vector<std::unique_ptr<LocalRank>> ranks_;
};

}  // namespace

LocalRank::LocalRank(const std::vector<std::string>& arguments, ProcessGroup group)
    : child_("/proc/self/exe", arguments, group),
      link_(copy_of(child_.replies()), copy_of(child_.requests())) {}

std::optional<std::string> LocalRank::ended() {
  if (told_) return std::nullopt;
  const std::optional<int> status = child_.ended();
  if (!status) return std::nullopt;
  told_ = true;
  return how_it_ended(*status);
}

std::vector<std::string> rank_arguments(const WorkerOptions& options, int rank) {
  std::vector<std::string> arguments{"dropless",         "rank",
                                     "--implementation", options.implementation,
                                     "--threads",        std::to_string(options.threads),
                                     "--rank",           std::to_string(rank),
                                     "--ranks",          std::to_string(options.ranks)};
  if (!options.models.empty()) {
    arguments.insert(arguments.end(), {"--models", options.models});
  }
  return arguments;
}

std::unique_ptr<RankHosts> make_child_hosts(const WorkerOptions& options) {
  return std::make_unique<ChildHosts>(options);
}

}  // namespace dropless::conformance
