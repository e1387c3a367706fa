// SPDX-License-Identifier: Apache-2.0
// Ranks that one mpirun has started, so that the implementation may use MPI. When one dies mpirun
// ends them all.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/broadcast.h"
#include "conformance/ranks/rank_hosts.h"
#include "conformance/ranks/tcp.h"
#include "conformance/runner/child.h"

namespace dropless::conformance {
namespace {

constexpr auto patience_with_mpirun = std::chrono::seconds(3);  // to tell how a rank ended
// To clean up behind itself: ended by force it leaves the folder of the job.
constexpr auto patience_at_the_end = std::chrono::seconds(30);

// mpirun refuses root, more ranks than cores, and binds ranks to cores, unless told otherwise.
void allow_what_tests_need() {
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
    setenv(variable, "1", 0);
  }
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
}

// DROPLESS_MPIRUN may hold options as well: "mpirun --hostfile hosts".
std::vector<std::string> words_of_mpirun() {
  const char* wish = std::getenv("DROPLESS_MPIRUN");
  std::istringstream stream(wish != nullptr && *wish != '\0' ? wish : "mpirun");
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class MpiHosts : public RankHosts {
 public:
  explicit MpiHosts(const WorkerOptions& options) : options_(options) {}
  ~MpiHosts() override { stop(); }

  void start() override {
    stop();
    allow_what_tests_need();
    use_shared_memory_of_our_own();
    std::random_device device;
    key_ = fmt::format("{:08x}{:08x}", device(), device());
    listener_ = std::make_unique<Listener>(0);
    std::vector<std::string> arguments = words_of_mpirun();
    arguments.insert(arguments.end(), {"-np", std::to_string(options_.ranks), path_of_mpi_rank()});
    arguments.insert(arguments.end(), {"--implementation", options_.implementation, "--threads",
                                       std::to_string(options_.threads)});
    if (!options_.models.empty()) {
      arguments.insert(arguments.end(), {"--models", options_.models});
    }
    arguments.insert(arguments.end(), {"--connect", addresses(), "--port",
                                       std::to_string(listener_->port()), "--key", key_});
    mpirun_ = std::make_unique<Child>(path_of_mpirun(), arguments, ProcessGroup::of_parent);
    ranks_.clear();
    ranks_.resize(static_cast<std::size_t>(options_.ranks));
  }

  void send(int rank, std::string_view line) override {
    if (Link* link = ranks_[static_cast<std::size_t>(rank)].link.get()) link->send(line);
  }

  std::vector<Heard> listen(Link& other, int milliseconds) override {
    std::vector<Link*> links{&other};
    for (const Rank& rank : ranks_) links.push_back(rank.link.get());
    for (const auto& link : unknown_) links.push_back(link.get());
    std::vector<int> others;
    if (listener_) others.push_back(listener_->descriptor());
    if (mpirun_) others.push_back(mpirun_->output());
    wait_for(links, others, suspects_ ? std::min(milliseconds, 20) : milliseconds);
    std::vector<Heard> heard;
    if (!mpirun_) return heard;
    const bool over = mpirun_->ended().has_value();
    if (std::string text = mpirun_->take_output(); !text.empty()) {
      printed_ += text;
      heard.push_back({0, Heard::Kind::printed, std::move(text)});
    }
    meet_ranks();
    listen_to_ranks(heard);
    tell_ends(over, heard);
    return heard;
  }

  // The ranks end when their links do, mpirun ends after them and cleans up.
  void stop() override {
    ranks_.clear();
    unknown_.clear();
    listener_.reset();
    if (mpirun_) {
      const auto deadline = LinkClock::now() + patience_at_the_end;
      for (bool asked = false; !mpirun_->ended() && LinkClock::now() < deadline;) {
        if (!asked) kill(mpirun_->pid(), SIGTERM);
        asked = true;
        (void)mpirun_->take_output();
        usleep(10000);
      }
    }
    mpirun_.reset();
    if (!segments_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(segments_, ignored);
      segments_.clear();
    }
    printed_.clear();
    suspects_ = false;
  }

 private:
  struct Rank {
    std::unique_ptr<Link> link;
    bool terminated = false, told = false;
    bool lost = false;
    LinkClock::time_point lost_at;
  };

  // Open MPI leaves its segments behind when a rank dies at the wrong moment.
  void use_shared_memory_of_our_own() {
    std::string pattern = "/dev/shm/dropless-mpi-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) return;
    segments_ = pattern;
    setenv("OMPI_MCA_btl_vader_backing_directory", segments_.c_str(), 1);
  }

  static std::string addresses() {
    std::string list = "127.0.0.1";
    for (const std::string& one : own_addresses()) list += "," + one;
    return list;
  }

  // "rank key 2 4": who it is and how many it sees.
  void meet_ranks() {
    while (std::unique_ptr<Link> link = listener_->accept()) unknown_.push_back(std::move(link));
    for (auto& link : unknown_) {
      const auto hello = link->next_line(LinkClock::now());
      if (!hello) continue;
      std::istringstream stream(*hello);
      std::string word, key;
      int rank = -1, ranks = -1;
      stream >> word >> key >> rank >> ranks;
      if (word == "rank" && key == key_ && ranks == options_.ranks && rank >= 0 && rank < ranks) {
        ranks_[static_cast<std::size_t>(rank)].link = std::move(link);
      } else {
        link.reset();
      }
    }
    std::erase_if(unknown_, [](const auto& link) { return !link || !link->open(); });
  }

  void listen_to_ranks(std::vector<Heard>& heard) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (!rank.link || rank.lost) continue;
      (void)rank.link->flush();
      for (std::string& line : rank.link->take_lines()) {
        rank.terminated = rank.terminated || line == "t";
        heard.push_back({static_cast<int>(i), Heard::Kind::line, std::move(line)});
      }
      if (rank.link->open()) continue;
      rank.lost = true;
      rank.lost_at = LinkClock::now();
      suspects_ = true;
    }
  }

  // A broken link does not say how its process ended; mpirun does, in a moment.
  void tell_ends(bool over, std::vector<Heard>& heard) {
    std::vector<int> ends;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (rank.told || (!over && !rank.lost)) continue;
      const bool wait = !rank.terminated && rank.lost && !over &&
                        LinkClock::now() - rank.lost_at < patience_with_mpirun;
      if (wait) continue;
      rank.told = true;
      ends.push_back(static_cast<int>(i));
    }
    // The one that mpirun names ended first. The others it has ended after that, by force where
    // they were too slow to say so.
    std::stable_sort(ends.begin(), ends.end(),
                     [&](int a, int b) { return is_named(a) && !is_named(b); });
    for (const int number : ends) {
      const Rank& rank = ranks_[static_cast<std::size_t>(number)];
      if (over && !rank.link) {  // it never came
        heard.push_back({number, Heard::Kind::line, "u " + why_nobody_came()});
      }
      heard.push_back({number, Heard::Kind::ended, over ? end_by_mpirun(number) : "lost"});
    }
  }

  [[nodiscard]] bool is_named(int rank) const {
    return printed_.find(fmt::format("process rank {} ", rank)) != std::string::npos;
  }

  // mpirun ends as the first rank did that ended badly: 128 + signal. Which one that was it prints.
  std::string end_by_mpirun(int rank) const {
    const int status = *mpirun_->ended();
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    const int number_lost = static_cast<int>(std::count_if(
        ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.lost && !one.terminated; }));
    if (!is_named(rank) && number_lost != 1) return "lost";
    if (code > 128) {
      const char* name = sigabbrev_np(code - 128);
      return name == nullptr ? fmt::format("signal {}", code - 128) : fmt::format("SIG{}", name);
    }
    return fmt::format("exit({})", code);
  }

  std::string why_nobody_came() const {
    std::string text = printed_.substr(0, 300);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return fmt::format("mpirun ended with {}: {}", how_it_ended(*mpirun_->ended()), text);
  }

  const WorkerOptions& options_;
  std::string key_, printed_, segments_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Child> mpirun_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Link>> unknown_;
  bool suspects_ = false;  // a rank was lost and nothing is known about it yet
};

}  // namespace

std::string path_of_mpirun() {
  const std::string name = words_of_mpirun().front();
  if (name.find('/') != std::string::npos) {
    if (access(name.c_str(), X_OK) == 0) return name;
  } else {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string program = folder + "/" + name;
      if (access(program.c_str(), X_OK) == 0) return program;
    }
  }
  throw UsageError(fmt::format(
      "--launcher mpi: {} was not found; install Open MPI, set DROPLESS_MPIRUN to the program, or "
      "choose --launcher processes",
      name));
}

std::string path_of_mpi_rank() {
  if (std::string program = mpi_program(); !program.empty()) return program;
  throw UsageError(
      "--launcher mpi: this build has no MPI; configure with -DDROPLESS_MPI=ON, or choose "
      "--launcher processes");
}

std::unique_ptr<RankHosts> make_mpi_hosts(const WorkerOptions& options) {
  return std::make_unique<MpiHosts>(options);
}

}  // namespace dropless::conformance
