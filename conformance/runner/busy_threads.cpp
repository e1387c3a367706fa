// SPDX-License-Identifier: Apache-2.0
// Processor time of threads out of /proc.
#include "conformance/runner/busy_threads.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace dropless::conformance {
namespace {

constexpr useconds_t moment = 500000;  // microseconds: the kernel counts hundredths of a second
// A rank is busy when it uses this much of a processor and much more than the idlest rank does.
constexpr double busy_share = 0.02, busy_factor = 4;

// Seconds of user and system time by rank.
std::map<int, double> used_by_ranks(pid_t pid) {
  std::map<int, double> used;
  std::error_code error;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), error);
  if (error) return used;
  for (const auto& task : tasks) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const std::size_t open = stat.find("(rank "), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    const int rank = std::atoi(stat.c_str() + open + 6);
    // State, then ten fields, then utime and stime.
    std::istringstream fields(stat.substr(close + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    used[rank] = (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return used;
}

}  // namespace

void note_busy_shares(const std::map<int, double>& shares, PhaseRecord& record) {
  if (shares.empty()) return;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const double least = std::min_element(shares.begin(), shares.end(), less)->second;
  for (const auto& [rank, share] : shares) {
    record.note_busy(rank, share >= busy_share && share >= busy_factor * least);
  }
}

void note_busy_threads(pid_t pid, PhaseRecord& record) {
  const std::map<int, double> before = used_by_ranks(pid);
  if (before.empty()) return;
  usleep(moment);
  std::map<int, double> shares;
  for (const auto& [rank, seconds] : used_by_ranks(pid)) {
    if (const auto found = before.find(rank); found != before.end()) {
      shares[rank] = (seconds - found->second) / (1e-6 * moment);
    }
  }
  note_busy_shares(shares, record);
}

}  // namespace dropless::conformance
