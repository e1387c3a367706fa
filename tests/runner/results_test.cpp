// SPDX-License-Identifier: Apache-2.0
// Results files: what they hold, how a run goes on after a break, and that no damage is overlooked.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

const std::vector<std::string> selection{"permutation.plan", "--tier", "smoke"};

class ResultsFile : public testing::Test {
 protected:
  Ran run(std::vector<std::string> more) {
    std::vector<std::string> arguments{"run"};
    arguments.insert(arguments.end(), selection.begin(), selection.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tool.run(arguments);
  }
  // A complete run, cut to the header and two cases, with `tail` behind.
  std::string interrupted(const std::string& tail = "") {
    EXPECT_EQ(run({"--results", "whole.jsonl", "-i", plugin("example")}).code, 0);
    const std::string whole = contents(tool.path("whole.jsonl"));
    std::size_t end = 0;
    for (int line = 0; line < 3; ++line) end = whole.find('\n', end) + 1;
    write(tool.path("r.jsonl"), whole.substr(0, end) + tail);
    return whole.substr(0, end);
  }
  // Refused, and not a byte changed.
  testing::AssertionResult refused(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& parts) {
    const std::string before = contents(tool.path("r.jsonl"));
    const Ran ran = tool.run(arguments);
    if (contents(tool.path("r.jsonl")) != before) {
      return testing::AssertionFailure() << "the file was changed";
    }
    return is_usage_error(ran, parts);
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> found;
    for (const auto& record : records(tool.path("r.jsonl"))) {
      if (record.at("record") == "case") found.push_back(record.at("id"));
    }
    return found;
  }
  Tool tool;
};

TEST_F(ResultsFile, HasHeaderCasesFooter) {
  EXPECT_EQ(run({"--results", "r.jsonl"}).code, 0);
  const auto all = records(tool.path("r.jsonl"));
  const auto& header = all.front();
  EXPECT_EQ(header.at("record"), "header");
  for (const char* key : {"schema", "suite", "machine", "implementation", "selection", "seed"}) {
    EXPECT_TRUE(header.contains(key)) << key;
  }
  for (const char* key : {"version", "commit", "contract", "clauses", "build", "libraries"}) {
    EXPECT_TRUE(header.at("suite").contains(key)) << key;
  }
  EXPECT_EQ(header.at("selection").at("tier"), "smoke");
  EXPECT_EQ(header.at("cases"), all.size() - 2);
  EXPECT_EQ(all.back().at("record"), "footer");
  EXPECT_EQ(all.back().at("cases"), all.size() - 2);
  EXPECT_EQ(all.back().at("counts").at("pass"), all.size() - 2);
  EXPECT_EQ(all.back().at("exit_code"), 0);
}

TEST_F(ResultsFile, IsMadeByDefaultButNotForASingleCase) {
  EXPECT_EQ(run({}).code, 0);
  EXPECT_EQ(run({}).code, 0);  // in the same second: another name
  const auto files = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(tool.path("dropless-results"))) {
      count += entry.is_regular_file() ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(files(), 2);
  const Ran list = tool.run({"list", "permutation.plan", "--tier", "smoke"});
  EXPECT_EQ(tool.run({"run", list.out.substr(0, list.out.find('\n'))}).code, 0);
  EXPECT_EQ(files(), 2);
}

TEST_F(ResultsFile, IsNeverOverwritten) {
  write(tool.path("r.jsonl"), "precious");
  EXPECT_TRUE(refused({"run", "permutation.plan", "--results", "r.jsonl"},
                      {"r.jsonl exists already", "--resume"}));
}

TEST_F(ResultsFile, GoesOnAfterABreak) {
  const std::string kept = interrupted();
  const Ran ran = tool.run({"run", "--resume", "r.jsonl"});
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_TRUE(contents(tool.path("r.jsonl")).starts_with(kept));
  const auto all = records(tool.path("r.jsonl"));
  EXPECT_EQ(all[3].at("record"), "resumed");
  EXPECT_EQ(all.back().at("record"), "footer");
  const std::vector<std::string> found = ids();
  EXPECT_EQ(std::set<std::string>(found.begin(), found.end()).size(), found.size());
  EXPECT_EQ(found.size(), all.front().at("cases"));
}

TEST_F(ResultsFile, DropsALastLineThatWasCutOff) {
  interrupted("{\"record\":\"case\",\"id\":\"permuta");
  const Ran ran = tool.run({"run", "--resume", "r.jsonl"});
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_EQ(records(tool.path("r.jsonl")).back().at("record"), "footer");
}

TEST_F(ResultsFile, ThatIsCompleteIsReportedAgain) {
  EXPECT_EQ(run({"--results", "r.jsonl", "-i", plugin("last_slot_lost")}).code, 1);
  const std::string before = contents(tool.path("r.jsonl"));
  const Ran again = tool.run({"run", "--resume", "r.jsonl", "--junit", "r.xml"});
  EXPECT_EQ(again.code, 1) << again;
  EXPECT_EQ(contents(tool.path("r.jsonl")), before);
  EXPECT_NE(contents(tool.path("r.xml")).find("<failure"), std::string::npos);
}

TEST_F(ResultsFile, GarbageInTheMiddleIsRefused) {
  const std::vector<std::string> resume{"run", "--resume", "r.jsonl"};
  const std::string kept = interrupted("garbage\n{\"record\":\"case\"}\n");
  EXPECT_TRUE(refused(resume, {"r.jsonl, line 4", "damaged", "start a new run"}));
  const std::string second = kept.substr(kept.find('\n') + 1);
  write(tool.path("r.jsonl"), kept + second.substr(0, second.find('\n') + 1));
  EXPECT_TRUE(refused(resume, {"line 4", "is there twice"}));
  write(tool.path("r.jsonl"), kept + "{\"record\":\"footer\",\"cases\":7}\n");
  EXPECT_TRUE(refused(resume, {"line 4", "counts"}));
  write(tool.path("r.jsonl"), kept + "{\"record\":\"footer\",\"cases\":2}\n");
  EXPECT_TRUE(refused(resume, {"footer", "not all cases"}));
  write(tool.path("r.jsonl"), kept + "{\"record\":\"surprise\"}\n");
  EXPECT_TRUE(refused(resume, {"line 4", "surprise"}));
  write(tool.path("r.jsonl"), second);
  EXPECT_TRUE(refused(resume, {"line 1", "header"}));
  write(tool.path("r.jsonl"), "{\"record\":\"header\",\"schema\":1}\n");
  EXPECT_TRUE(refused(resume, {"line 1"}));
  write(tool.path("r.jsonl"), "{\"record\":\"header\",\"schema\":99}\n");
  EXPECT_TRUE(refused(resume, {"schema 99"}));
  write(tool.path("r.jsonl"), kept.substr(0, 100));
  EXPECT_TRUE(refused(resume, {"no complete header"}));
  write(tool.path("r.jsonl"), "");
  EXPECT_TRUE(refused(resume, {"no complete header"}));
  EXPECT_TRUE(refused({"run", "--resume", "nowhere.jsonl"}, {"nowhere.jsonl", "does not exist"}));
}

TEST_F(ResultsFile, ACaseThatWasNeverSelectedIsRefused) {
  const std::string kept = interrupted();
  std::string line = kept.substr(kept.find('\n') + 1);
  line = line.substr(0, line.find('\n') + 1);
  line.replace(line.find("seed="), 6, "seed=9");
  write(tool.path("r.jsonl"), kept + line);
  EXPECT_TRUE(refused({"run", "--resume", "r.jsonl"}, {"seed=9", "not part of this run"}));
}

TEST_F(ResultsFile, OfAnotherSuiteImplementationOrSelectionIsRefused) {
  std::string kept = interrupted();
  EXPECT_TRUE(refused({"run", "--resume", "r.jsonl", "-i", "reference"},
                      {"cannot be resumed", "implementation", "plain C example"}));
  EXPECT_TRUE(refused({"run", "--resume", "r.jsonl", "-i", plugin("last_slot_lost")},
                      {"cannot be resumed", "fingerprint"}));
  EXPECT_TRUE(refused({"run", "permutation.copy", "--resume", "r.jsonl"},
                      {"cannot be resumed", "other cases"}));
  EXPECT_TRUE(refused({"gate", "--resume", "r.jsonl"}, {"cannot be resumed"}));
  const std::string version = "\"version\":\"";
  kept.replace(kept.find(version) + version.size(), 1, "9");
  write(tool.path("r.jsonl"), kept);
  EXPECT_TRUE(refused({"run", "--resume", "r.jsonl"}, {"its suite has version"}));
}

TEST_F(ResultsFile, IsWrittenByOneRunOnly) {
  const pid_t first = tool.start(
      {"run", "permutation.copy", "--tier", "smoke", "--results", "r.jsonl", "-i", plugin("hang")});
  EXPECT_TRUE(
      wait_until([&] { return contents(tool.path("r.jsonl")).find('\n') != std::string::npos; }));
  const Ran second = tool.run({"run", "--resume", "r.jsonl"});
  EXPECT_TRUE(is_usage_error(second, {"r.jsonl is being written by another run"}));
  kill(first, SIGTERM);
  EXPECT_EQ(tool.finish(first).code, 128 + SIGTERM);
}

TEST_F(ResultsFile, AnInterruptedRunSaysHowToGoOn) {
  const pid_t running = tool.start(
      {"run", "permutation.copy", "--tier", "smoke", "--results", "r.jsonl", "-i", plugin("hang")});
  EXPECT_TRUE(
      wait_until([&] { return contents(tool.path("r.jsonl")).find('\n') != std::string::npos; }));
  kill(running, SIGINT);
  const Ran ran = tool.finish(running);
  EXPECT_EQ(ran.code, 128 + SIGINT) << ran;
  EXPECT_NE(ran.err.find("continue with --resume r.jsonl"), std::string::npos) << ran;
  EXPECT_NE(records(tool.path("r.jsonl")).back().at("record"), "footer");
}

TEST_F(ResultsFile, ThatCannotBeWrittenIsSaidBeforeTheRun) {
  EXPECT_TRUE(is_usage_error(run({"--results", "/proc/nowhere/r.jsonl"}),
                             {"/proc/nowhere/r.jsonl cannot be written", "--results"}));
  EXPECT_TRUE(is_usage_error(run({"--results", tool.path("")}), {"cannot be written"}));
  EXPECT_TRUE(is_usage_error(run({"--junit", "/nowhere/r.xml"}), {"/nowhere/r.xml"}));
  EXPECT_TRUE(is_usage_error(run({"--results", "a", "--no-results"}), {"--no-results"}));
  EXPECT_TRUE(is_usage_error(run({"--results", "a", "--resume", "b"}), {"--resume"}));
}

TEST_F(ResultsFile, AFullDiskIsSaidAndTheRunCanGoOn) {
  interrupted();
  const auto room = static_cast<rlim_t>(std::filesystem::file_size(tool.path("r.jsonl")) + 900);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{room, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Ran full = tool.run({"run", "--resume", "r.jsonl"});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(is_usage_error(full, {"r.jsonl cannot take more", "--resume"}));
  EXPECT_EQ(tool.run({"run", "--resume", "r.jsonl"}).code, 0);
}

TEST_F(ResultsFile, JunitCountsWhatItHolds) {
  const Ran ran = tool.run({"run", "permutation.plan", "permutation.copy", "--tier", "smoke",
                            "--no-results", "--junit", "r.xml", "-i", plugin("segfault")});
  EXPECT_EQ(ran.code, 1);
  const std::string xml = contents(tool.path("r.xml"));
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = xml.find(text); at != std::string::npos; at = xml.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_GT(count("<error type=\"crash\""), 0u);
  for (const auto& [attribute, element] :
       {std::pair{"tests", "<testcase "}, {"errors", "<error "}}) {
    const std::string counted = fmt::format("{}=\"{}\"", attribute, count(element));
    EXPECT_NE(xml.find(counted), std::string::npos) << counted << " is not in\n" << xml;
  }
}

}  // namespace
}  // namespace dropless::runner_tests
