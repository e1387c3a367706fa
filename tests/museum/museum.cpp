// SPDX-License-Identifier: Apache-2.0
// Every fault in a process of its own, since one that writes where it must not, or never returns,
// would take the others with it.
#include "conformance/runner/museum.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/adapters/sources.h"
#include "conformance/cases/family.h"
#include "conformance/runner/supervisor.h"
#include "tests/museum/exhibit.h"
#include "tests/museum/page.h"

namespace dropless::conformance {
namespace {

using museum::Exhibit;
using Clock = std::chrono::steady_clock;

struct Visitor {
  std::size_t fault = 0;  // index
  pid_t process = -1;
  int pipe = -1;
  std::string said;
  Clock::time_point started = Clock::now();
};

Visitor send(std::size_t index, const FaultEntry& fault) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("museum: no pipe");
  Visitor visitor;
  visitor.fault = index, visitor.pipe = ends[0], visitor.process = ::fork();
  if (visitor.process < 0) throw std::runtime_error("museum: no process");
  if (visitor.process != 0) {
    ::close(ends[1]);
    return visitor;
  }
  ::close(ends[0]);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
  std::string text;
  try {
    text = to_json(museum::examine(fault.name)).dump();
  } catch (const std::exception& error) {
    Exhibit exhibit;
    exhibit.fault = fault.name, exhibit.trouble = error.what();
    text = to_json(exhibit).dump();
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(ends[1], text.data() + at, text.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  ::_exit(0);
}

// True at the end of what it says.
bool listen(Visitor& visitor) {
  char buffer[4096];
  const ssize_t read = ::read(visitor.pipe, buffer, sizeof buffer);
  if (read > 0) visitor.said.append(buffer, static_cast<std::size_t>(read));
  return read <= 0;
}

Exhibit farewell(Visitor& visitor, const FaultEntry& fault) {
  ::close(visitor.pipe);
  int status = 0;
  ::waitpid(visitor.process, &status, 0);
  try {
    return museum::exhibit_from(nlohmann::json::parse(visitor.said));
  } catch (const nlohmann::json::exception&) {
    Exhibit exhibit;
    exhibit.fault = fault.name;
    exhibit.trouble =
        WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : "no answer";
    return exhibit;
  }
}

void visit(const std::vector<FaultEntry>& faults, const MuseumPlan& plan,
           const std::function<void(const Exhibit&)>& keep) {
  std::vector<Visitor> inside;
  std::size_t next = 0, done = 0;
  const auto empty_the_house = [&] {
    for (Visitor& visitor : inside) {
      ::kill(visitor.process, SIGKILL);
      farewell(visitor, faults[visitor.fault]);
    }
  };
  while (done < faults.size()) {
    if (plan.interrupt != nullptr && *plan.interrupt != 0) {
      empty_the_house();
      throw Interrupted(*plan.interrupt);
    }
    while (next < faults.size() && inside.size() < static_cast<std::size_t>(plan.jobs)) {
      inside.push_back(send(next, faults[next]));
      ++next;
    }
    std::vector<pollfd> doors;
    for (const Visitor& visitor : inside) doors.push_back({visitor.pipe, POLLIN, 0});
    ::poll(doors.data(), doors.size(), 200);
    for (std::size_t i = inside.size(); i-- > 0;) {
      Visitor& visitor = inside[i];
      const double seconds = std::chrono::duration<double>(Clock::now() - visitor.started).count();
      if (seconds > plan.timeout_seconds) ::kill(visitor.process, SIGKILL);
      if (doors[i].revents == 0 || !listen(visitor)) continue;
      keep(farewell(visitor, faults[visitor.fault]));
      inside.erase(inside.begin() + static_cast<std::ptrdiff_t>(i));
      ++done;
      if (plan.progress) plan.progress(done, faults.size());
    }
  }
}

// By fault.
using Results = std::map<std::string, Exhibit>;

Results read_results(const std::string& path) {
  Results results;
  std::ifstream file(path);
  if (path.empty() || !file) return results;
  try {
    for (const nlohmann::json& one : nlohmann::json::parse(file)) {
      Exhibit exhibit = museum::exhibit_from(one);
      results[exhibit.fault] = std::move(exhibit);
    }
  } catch (const nlohmann::json::exception&) {
    throw UsageError(fmt::format("{} holds no results of the museum; name another file", path));
  }
  return results;
}

void write_results(const std::string& path, const Results& results) {
  if (path.empty()) return;
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [fault, exhibit] : results) all.push_back(to_json(exhibit));
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  if (!file.flush()) throw UsageError(fmt::format("{} cannot be written", path));
}

std::vector<FaultEntry> chosen_faults(const MuseumPlan& plan) {
  std::vector<FaultEntry> chosen;
  for (const FaultEntry& fault : fault_entries()) {
    const auto& stages = plan.stages;
    const bool wanted =
        stages.empty() || std::find(stages.begin(), stages.end(), fault.stage()) != stages.end();
    if (wanted && fault.visibility == Visibility::cpu) chosen.push_back(fault);
  }
  if (chosen.empty()) throw UsageError("no fault of such a stage; see dropless faults --list");
  return chosen;
}

}  // namespace

std::string museum_page(const MuseumPlan& plan) {
  const std::vector<FaultEntry> faults = chosen_faults(plan);
  Results results = read_results(plan.json);
  write_results(plan.json, results);  // refused before the work, not after
  registry();                         // built once, before the processes part
  std::vector<FaultEntry> open;
  for (const FaultEntry& fault : faults) {
    if (results.count(fault.name) == 0) open.push_back(fault);
  }
  visit(open, plan, [&](const Exhibit& exhibit) {
    results[exhibit.fault] = exhibit;
    write_results(plan.json, results);
  });
  std::vector<Exhibit> exhibits;
  for (const FaultEntry& fault : faults) exhibits.push_back(results.at(fault.name));
  return museum::page(faults, exhibits);
}

}  // namespace dropless::conformance
