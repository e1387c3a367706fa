// SPDX-License-Identifier: Apache-2.0
// The real binary, run as its users run it, in a folder of its own.
//
//     Tool tool;
//     const Ran ran = tool.run({"run", "--stage", "mxfp8", "-i", plugin("segfault")});
//     EXPECT_EQ(ran.code, 1) << ran;
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace dropless::runner_tests {

struct Ran {
  int code = -1;  // exit code, 128 + signal
  std::string out, err;
  double seconds = 0;
};
std::ostream& operator<<(std::ostream& stream, const Ran& ran);

class Tool {
 public:
  Tool();
  ~Tool();
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  void set(const std::string& variable, const std::string& value);  // environment
  // Starts the tool by another program: words before its own arguments, "mpirun -np 4".
  void start_by(std::vector<std::string> words) { before_ = std::move(words); }
  Ran run(const std::vector<std::string>& arguments);
  // Starts without waiting; `finish` waits for it.
  pid_t start(const std::vector<std::string>& arguments);
  Ran finish(pid_t pid);

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
  std::map<std::string, std::string> environment_;
  std::vector<std::string> before_;
};

// A library of tests/plugins.
std::string plugin(const std::string& name);

std::string contents(const std::string& path);
void write(const std::string& path, const std::string& text);

// Lines of a results file.
std::vector<nlohmann::json> records(const std::string& path);
// Number of case records by status.
std::map<std::string, int> statuses(const std::string& path);
// The first case record with this status; null when there is none.
nlohmann::json first_with(const std::string& path, const std::string& status);

// Wrong use: exit code 2, nothing on stdout, one line on stderr that begins with "dropless: ",
// holds every one of `parts` and a remedy behind a semicolon or colon.
testing::AssertionResult is_usage_error(const Ran& ran, const std::vector<std::string>& parts);

// Waits for something that is about to happen; false when it does not within 30 s.
bool wait_until(const std::function<bool()>& happened);

// Ids of running processes whose command line contains `text`, this one left out.
std::vector<pid_t> processes_with(const std::string& text);

}  // namespace dropless::runner_tests
