// SPDX-License-Identifier: Apache-2.0
// Starting the tool and reading what it left behind.
#include "tests/runner/tool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace dropless::runner_tests {
namespace {

constexpr unsigned patience_seconds = 110;  // then the tool is killed: a hang is a failed test

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Ran& ran) {
  return stream << "exit code " << ran.code << "\n--- stdout\n"
                << ran.out << "--- stderr\n"
                << ran.err;
}

Tool::Tool() {
  std::string pattern = std::filesystem::temp_directory_path() / "dropless-runner-XXXXXX";
  folder_ = mkdtemp(pattern.data());
  // Under AddressSanitizer a crash shall still be the crash that it is without.
  set("ASAN_OPTIONS",
      "handle_segv=0:handle_sigbus=0:handle_abort=0:replace_intrin=0:detect_leaks=0");
}

Tool::~Tool() {
  std::filesystem::remove_all(folder_);
}

void Tool::set(const std::string& variable, const std::string& value) {
  environment_[variable] = value;
}

pid_t Tool::start(const std::vector<std::string>& arguments) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(patience_seconds);  // survives exec
  if (chdir(folder_.c_str()) != 0) _exit(126);
  for (const auto& [variable, value] : environment_) setenv(variable.c_str(), value.c_str(), 1);
  dup2(open(".stdout", O_CREAT | O_TRUNC | O_WRONLY, 0600), STDOUT_FILENO);
  dup2(open(".stderr", O_CREAT | O_TRUNC | O_WRONLY, 0600), STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : before_) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(const_cast<char*>(DROPLESS_TOOL));
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(126);
}

Ran Tool::finish(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.out = contents(path(".stdout"));
  ran.err = contents(path(".stderr"));
  return ran;
}

Ran Tool::run(const std::vector<std::string>& arguments) {
  const auto start_time = std::chrono::steady_clock::now();
  Ran ran = finish(start(arguments));
  ran.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
  return ran;
}

std::string plugin(const std::string& name) {
  return fmt::format("{}/{}.so", DROPLESS_PLUGINS, name);
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<nlohmann::json> records(const std::string& path) {
  std::vector<nlohmann::json> found;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

std::map<std::string, int> statuses(const std::string& path) {
  std::map<std::string, int> counts;
  for (const nlohmann::json& record : records(path)) {
    if (record.at("record") == "case") ++counts[record.at("status")];
  }
  return counts;
}

nlohmann::json first_with(const std::string& path, const std::string& status) {
  for (const nlohmann::json& record : records(path)) {
    if (record.at("record") == "case" && record.at("status") == status) return record;
  }
  return nullptr;
}

testing::AssertionResult is_usage_error(const Ran& ran, const std::vector<std::string>& parts) {
  const auto no = [&](const std::string& why) {
    std::ostringstream text;
    text << ran;
    return testing::AssertionFailure() << why << "\n" << text.str();
  };
  if (ran.code != 2) return no("exit code is not 2");
  if (!ran.out.empty()) return no("something on stdout");
  if (std::count(ran.err.begin(), ran.err.end(), '\n') != 1 || ran.err.back() != '\n') {
    return no("not one line on stderr");
  }
  if (!ran.err.starts_with("dropless: ")) return no("does not say who speaks");
  for (const std::string& part : parts) {
    if (ran.err.find(part) == std::string::npos) return no("does not name '" + part + "'");
  }
  if (ran.err.find_first_of(";:", 10) == std::string::npos) return no("no remedy");
  return testing::AssertionSuccess();
}

bool wait_until(const std::function<bool()>& happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      continue;
    }
    std::string line = contents(entry.path() / "cmdline");
    std::replace(line.begin(), line.end(), '\0', ' ');
    const pid_t pid = std::stoi(name);
    if (pid != getpid() && line.find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace dropless::runner_tests
