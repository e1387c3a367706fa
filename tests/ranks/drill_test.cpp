// SPDX-License-Identifier: Apache-2.0
// The same cases over threads, processes and joined ranks, and five ways of getting stuck: each is
// told by rank and phase, costs its own case, and leaves nothing behind.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/ranks/ways.h"

namespace dropless::runner_tests {
namespace {

std::string id(const std::string& trouble, int seed = 1, int ranks = 4) {
  return fmt::format("ranks.drill:ranks={},trouble={},seed={}", ranks, trouble, seed);
}

// Seconds that a case may take; on a crowded machine honest ranks need more than usual.
std::string time_limit() {
  const char* given = std::getenv("DROPLESS_TEST_TIMEOUT");
  return given == nullptr ? "2" : given;
}

std::map<std::string, nlohmann::json> cases_of(const std::string& path) {
  std::map<std::string, nlohmann::json> cases;
  for (const nlohmann::json& record : records(path)) {
    if (record.at("record") == "case") cases[record.at("id")] = record;
  }
  return cases;
}

// What a run could leave on the machine.
std::set<std::string> shared_things() {
  std::set<std::string> things;
  for (const std::filesystem::path& folder :
       {std::filesystem::path("/dev/shm"), std::filesystem::temp_directory_path()}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename();
      const bool ours = folder == "/dev/shm" || file.starts_with("dropless-0") ||
                        file.starts_with("ompi.") || file.starts_with("openmpi-sessions");
      if (ours && file.find("dropless-runner") == std::string::npos) things.insert(entry.path());
    }
  }
  return things;
}

class Ways : public testing::TestWithParam<Way> {};

TEST_P(Ways, TheSameCasesAndVerdicts) {
  Drill drill(GetParam(), 4);
  const Ran ran = drill.run({"ranks.drill", "--tier", "smoke", "--results", "r.jsonl"});
  ASSERT_EQ(ran.code, 0) << ran;
  const auto cases = cases_of(drill.path("r.jsonl"));
  ASSERT_EQ(cases.size(), 3u);
  for (int seed = 1; seed <= 3; ++seed) {
    const nlohmann::json& record = cases.at(id("none", seed));
    EXPECT_EQ(record.at("status"), "pass");
    EXPECT_EQ(record.at("checks"), 4 * 5);
    EXPECT_EQ(record.at("paths"), nlohmann::json::array({"drill"}));
  }
  EXPECT_NE(ran.err.find("4 ranks"), std::string::npos) << ran;
  for (const Ran& other : drill.others()) {
    EXPECT_EQ(other.code, 0) << other;
    EXPECT_EQ(other.out + other.err, "") << other;
  }
}

struct Stuck {
  const char* trouble;
  const char* status;
  const char* phase;
  const char* reason;
};
constexpr Stuck five[] = {
    {"skips", "timeout", "exchange_dispatch", "left exchange_dispatch without the others: rank 2"},
    {"dies", "crash", "exchange_combine", "rank 2: died (SIGKILL) inside exchange_combine"},
    {"loops", "timeout", "exchange_plan", "busy while the others wait: rank 2"},
    {"wrong_peer", "timeout", "exchange_combine", "behind: rank 2"},
    {"throws", "crash", "exchange_dispatch",
     "rank 2: exchange_dispatch threw an exception: out of luck"},
};

TEST_P(Ways, FiveKindsOfDeadlockAreToldByRankAndPhase) {
  const auto before = shared_things();
  Drill drill(GetParam(), 4);
  // Ranks of a launcher differ from those of the tool in how they are started and ended.
  const bool joined = GetParam() == Way::joined_by_address || GetParam() == Way::joined_by_file ||
                      GetParam() == Way::under_mpirun;
  const bool all = !joined || std::getenv("DROPLESS_TEST_TIMEOUT") != nullptr;
  const std::vector<Stuck> planted(five, five + (all ? std::size(five) : 2));
  std::vector<std::string> arguments;
  int seed = 0;
  for (const Stuck& one : planted) {
    arguments.push_back(id(one.trouble));
    arguments.push_back(id("none", ++seed));  // the next case goes on
  }
  arguments.insert(arguments.end(), {"--timeout", time_limit(), "--results", "r.jsonl"});
  const Ran ran = drill.run(arguments);
  EXPECT_EQ(ran.code, 1) << ran;
  const auto cases = cases_of(drill.path("r.jsonl"));
  ASSERT_EQ(cases.size(), 2 * planted.size()) << ran;
  for (int honest = 1; honest <= seed; ++honest) {
    EXPECT_EQ(cases.at(id("none", honest)).at("status"), "pass")
        << cases.at(id("none", honest)).dump(1);
  }
  for (const Stuck& one : planted) {
    const nlohmann::json& record = cases.at(id(one.trouble));
    EXPECT_EQ(record.at("status"), one.status) << record.dump(1);
    // Threads die together, so nobody can tell which of them began.
    if (GetParam() == Way::threads && std::string(one.trouble) == "dies") continue;
    EXPECT_EQ(record.at("phase"), one.phase) << record.dump(1);
    EXPECT_NE(record.at("reason").get<std::string>().find(one.reason), std::string::npos)
        << record.dump(1);
  }
  EXPECT_TRUE(wait_until([] { return processes_with(plugin("rank_trouble")).empty(); }));
  EXPECT_TRUE(wait_until([&] {
    for (const std::string& thing : shared_things()) {
      if (!before.contains(thing)) return false;
    }
    return true;
  })) << "files are left behind";
  for (const Ran& other : drill.others()) EXPECT_EQ(other.code, 1) << other;
}

TEST_P(Ways, ARankThatIsKilledOnceCostsOneCase) {
  if (GetParam() == Way::threads) GTEST_SKIP() << "ranks of one process die together";
  Drill drill(GetParam(), 4);
  drill.set("DROPLESS_TEST_MARKER", drill.path("killed"));
  const Ran ran = drill.run({id("none", 1), id("dies_once"), id("none", 2), "--timeout",
                             time_limit(), "--results", "r.jsonl"});
  EXPECT_EQ(ran.code, 1) << ran;
  const auto cases = cases_of(drill.path("r.jsonl"));
  EXPECT_EQ(cases.at(id("none", 1)).at("status"), "pass");
  EXPECT_EQ(cases.at(id("none", 2)).at("status"), "pass");
  const nlohmann::json& lost = cases.at(id("dies_once"));
  EXPECT_EQ(lost.at("status"), "flaky") << lost.dump(1);
  EXPECT_NE(lost.at("reason").get<std::string>().find("rank 2: died (SIGKILL)"), std::string::npos)
      << lost.dump(1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Ways, testing::ValuesIn(all_ways()),
                         [](const auto& row) { return name(row.param); });

TEST(Processes, RanksThatNoticeByThemselvesEndTheCaseAtOnce) {
  Drill drill(Way::processes, 4);
  drill.set("DROPLESS_TEST_PATIENCE", "0.5");
  const Ran ran = drill.run({id("exits"), id("fails"), "--timeout", "30", "--results", "r.jsonl"});
  EXPECT_EQ(ran.code, 1) << ran;
  const auto cases = cases_of(drill.path("r.jsonl"));
  const nlohmann::json& exited = cases.at(id("exits"));
  EXPECT_EQ(exited.at("status"), "crash");
  EXPECT_NE(exited.at("reason").get<std::string>().find(
                "rank 2: ended its process with exit(5) inside exchange_combine"),
            std::string::npos)
      << exited.dump(1);
  EXPECT_LT(exited.at("seconds"), 20) << exited.dump(1);
  const nlohmann::json& failed = cases.at(id("fails"));
  EXPECT_EQ(failed.at("status"), "fail") << failed.dump(1);
  EXPECT_EQ(failed.at("failed_checks"), 4) << failed.dump(1);
  EXPECT_NE(failed.dump().find("out of order"), std::string::npos) << failed.dump(1);
}

TEST(Processes, TheToolKilledTakesAllRanksWithIt) {
  Tool tool;
  tool.set("DROPLESS_RANK_DRILL", "1");
  const pid_t pid = tool.start(
      {"run", id("wrong_peer"), "--ranks", "4", "-i", plugin("rank_trouble"), "--no-results"});
  ASSERT_TRUE(wait_until([] { return processes_with(plugin("rank_trouble")).size() >= 6; }));
  kill(pid, SIGKILL);
  EXPECT_EQ(tool.finish(pid).code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([] { return processes_with(plugin("rank_trouble")).empty(); }));
}

TEST(Processes, AnInterruptEndsAllRanks) {
  Tool tool;
  tool.set("DROPLESS_RANK_DRILL", "1");
  const pid_t pid = tool.start(
      {"run", id("wrong_peer"), "--ranks", "4", "-i", plugin("rank_trouble"), "--no-results"});
  ASSERT_TRUE(wait_until([] { return processes_with(plugin("rank_trouble")).size() >= 6; }));
  kill(pid, SIGINT);
  EXPECT_EQ(tool.finish(pid).code, 128 + SIGINT);
  EXPECT_TRUE(wait_until([] { return processes_with(plugin("rank_trouble")).empty(); }));
}

}  // namespace
}  // namespace dropless::runner_tests
