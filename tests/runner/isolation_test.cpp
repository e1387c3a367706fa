// SPDX-License-Identifier: Apache-2.0
// Whatever the operation under test does to its process, it costs its own cases and nothing else.
#include <csignal>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

// permutation.plan never calls permute_forward, permutation.copy always does.
const std::vector<std::string> smoke{"run",   "permutation.plan", "permutation.copy", "--tier",
                                     "smoke", "--results",        "r.jsonl",          "-j",
                                     "2"};

class Isolation : public testing::Test {
 protected:
  Ran run_with(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = smoke;
    arguments.insert(arguments.end(), {"-i", plugin(name)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return tool.run(arguments);
  }
  std::map<std::string, int> counts() const { return statuses(tool.path("r.jsonl")); }
  nlohmann::json first(const std::string& status) const {
    return first_with(tool.path("r.jsonl"), status);
  }
  // All plans pass, no copy does, nothing is missing.
  void expect_only_copies(const std::string& status) const {
    const std::vector<nlohmann::json> all = records(tool.path("r.jsonl"));
    ASSERT_GE(all.size(), 8u);
    std::map<std::string, int> expected;
    for (const nlohmann::json& record : all) {
      if (record.at("record") != "case") continue;
      const bool plan = record.at("id").get<std::string>().starts_with("permutation.plan:");
      EXPECT_EQ(record.at("status"), plan ? "pass" : status) << record.dump(2);
      ++expected[plan ? "pass" : status];
    }
    EXPECT_GE(expected["pass"], 5);
    EXPECT_GE(expected[status], 3);
    EXPECT_EQ(all.back().at("record"), "footer");
  }

  Tool tool;
};

TEST_F(Isolation, TheExampleItselfPasses) {
  const Ran ran = run_with("example");
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_EQ(counts().size(), 1u) << ran;
}

struct Crash {
  const char* plugin;
  const char* reason;
};
class Crashes : public Isolation, public testing::WithParamInterface<Crash> {};

TEST_P(Crashes, CostTheirCasesAndAreNamed) {
  const Ran ran = run_with(GetParam().plugin);
  EXPECT_EQ(ran.code, 1) << ran;
  expect_only_copies("crash");
  const nlohmann::json crash = first("crash");
  EXPECT_NE(crash.at("reason").get<std::string>().find(GetParam().reason), std::string::npos)
      << crash.dump(2);
  EXPECT_EQ(crash.at("phase"), "permute_forward");
  EXPECT_EQ(crash.at("attempts").size(), 2u);
  EXPECT_NE(ran.out.find("reproduce: dropless run '" + crash.at("id").get<std::string>() + "'"),
            std::string::npos)
      << ran;
}

INSTANTIATE_TEST_SUITE_P(
    Runner, Crashes,
    testing::Values(Crash{"segfault", "SIGSEGV inside permute_forward"},
                    Crash{"abort_process", "SIGABRT inside permute_forward"},
                    Crash{"exit_zero", "ended the process with exit(0) inside permute_forward"},
                    Crash{"close_descriptors", "permute_forward"}),
    [](const auto& row) { return std::string(row.param.plugin); });

TEST_F(Isolation, AHangIsEndedByTheWatchdogAndThenNotTriedAgain) {
  const Ran ran = run_with("hang", {"--timeout", "0.5"});
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_GE(counts()["timeout"], 3) << ran;
  EXPECT_EQ(counts()["pass"] + counts()["timeout"] + counts()["blocked"],
            records(tool.path("r.jsonl")).size() - 2);
  EXPECT_EQ(first("timeout").at("reason"), "no answer within 0.5 s, inside permute_forward");
  EXPECT_LT(ran.seconds, 20);
}

TEST_F(Isolation, ABusyLoopIsEndedToo) {
  EXPECT_EQ(run_with("spin", {"--timeout", "0.5"}).code, 1);
  EXPECT_GE(counts()["timeout"], 3);
  EXPECT_GE(counts()["pass"], 5);
}

TEST_F(Isolation, MemoryPastTheOutputIsNamed) {
  const Ran ran = run_with("write_past_end");
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_GE(counts()["fail"], 3) << ran;
  EXPECT_EQ(first("fail").at("failures").at(0).at("clause"), "GENERAL-0");
  EXPECT_EQ(counts()["crash"], 0);
}

TEST_F(Isolation, DamagedMemoryReachesNoOtherCase) {
  const Ran ran = run_with("corrupt_memory");
  EXPECT_EQ(ran.code, 1) << ran;
  for (const nlohmann::json& record : records(tool.path("r.jsonl"))) {
    if (record.at("record") != "case") continue;
    if (record.at("id").get<std::string>().starts_with("permutation.plan:")) {
      EXPECT_EQ(record.at("status"), "pass") << record.dump(2);
    }
  }
}

TEST_F(Isolation, ChangedInputsFail) {
  EXPECT_EQ(run_with("write_input").code, 1);
  EXPECT_GE(counts()["fail"], 3);
  EXPECT_NE(first("fail").dump().find("input changed"), std::string::npos) << first("fail").dump(2);
}

TEST_F(Isolation, AnErrorStatusFailsWithItsMessage) {
  EXPECT_EQ(run_with("return_error").code, 1);
  expect_only_copies("fail");
  EXPECT_NE(first("fail").dump().find("the kernel could not be launched"), std::string::npos);
}

TEST_F(Isolation, NotSupportedIsReportedAndAcceptable) {
  const Ran ran = run_with("return_not_supported");
  EXPECT_EQ(ran.code, 0) << ran;
  expect_only_copies("not_supported");
  EXPECT_NE(first("not_supported").at("reason").get<std::string>().find("not on this machine"),
            std::string::npos);
}

TEST_F(Isolation, NothingPassedIsNoPass) {
  const Ran ran = tool.run({"run", "permutation.copy", "--tier", "smoke", "--no-results", "-i",
                            plugin("return_not_supported")});
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_NE(ran.out.find("nothing passed"), std::string::npos) << ran;
}

TEST_F(Isolation, ClaimingSuccessWithoutDoingAnythingFails) {
  EXPECT_EQ(run_with("do_nothing").code, 1);
  EXPECT_GE(counts()["fail"], 3);
  EXPECT_GE(counts()["pass"], 5);
}

TEST_F(Isolation, WhatItPrintsIsCaughtAndShownWithACrashOnly) {
  const Ran quiet = run_with("print");
  EXPECT_EQ(quiet.code, 0) << quiet;
  EXPECT_EQ((quiet.out + quiet.err).find("of the implementation>"), std::string::npos) << quiet;
  const Ran crash = tool.run({"run", "permutation.copy", "--tier", "smoke", "--results", "c.jsonl",
                              "-i", plugin("print_and_crash")});
  EXPECT_EQ(crash.code, 1);
  EXPECT_NE(crash.out.find("| last words"), std::string::npos) << crash;
}

TEST_F(Isolation, MemoryWithoutEndIsStoppedBeforeTheMachineSuffers) {
  const Ran ran = run_with("leak", {"--memory", "400"});
  EXPECT_EQ(ran.code, 1) << ran;
  expect_only_copies("resource");
}

TEST_F(Isolation, FailingOnceIsFlakyAndFailsTheRun) {
  tool.set("DROPLESS_TEST_MARKER", tool.path("marker"));
  const Ran ran = run_with("fail_once");
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_EQ(counts()["flaky"], 1) << ran;
  EXPECT_EQ(first("flaky").at("attempts").at(1).at("status"), "pass");
}

TEST_F(Isolation, AWorkerKilledFromOutsideIsReplaced) {
  tool.set("DROPLESS_TEST_MARKER", tool.path("marker"));
  const Ran ran = run_with("killed_once");
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_EQ(counts()["flaky"], 1) << ran;
  EXPECT_NE(first("flaky").at("reason").get<std::string>().find("SIGKILL"), std::string::npos);
}

TEST_F(Isolation, ProcessesItLeavesBehindEndWithTheWorker) {
  const std::string mark = "left behind by " + tool.path("");
  tool.set("DROPLESS_TEST_PROCESS", mark);
  const Ran ran = run_with("leave_process");
  EXPECT_EQ(ran.code, 0) << ran;
  // They are killed before the run ends, but the kernel takes its time to remove them.
  EXPECT_TRUE(wait_until([&] { return processes_with(mark).empty(); }));
}

TEST_F(Isolation, NothingOutlivesAKilledSupervisor) {
  // The name of this file marks the command lines of the run and of its workers.
  const std::string mark = tool.path("models-of-this-test.json");
  write(mark, contents(DROPLESS_MODELS));
  const pid_t running = tool.start({"run", "permutation.copy", "--tier", "smoke", "--results",
                                    "r.jsonl", "-j", "2", "-i", plugin("hang"), "--models", mark});
  EXPECT_TRUE(wait_until([&] { return processes_with(mark).size() >= 3; }));
  kill(running, SIGKILL);
  EXPECT_EQ(tool.finish(running).code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return processes_with(mark).empty(); }));
}

TEST_F(Isolation, AnExceptionIsACrashOfTheOperation) {
  const Ran ran = tool.run({"run", "permutation.plan", "--tier", "smoke", "--results", "r.jsonl",
                            "-i", plugin("throws")});
  EXPECT_EQ(ran.code, 1) << ran;
  EXPECT_EQ(first("crash").at("reason"), "permute_plan threw an exception: out of luck");
}

}  // namespace
}  // namespace dropless::runner_tests
