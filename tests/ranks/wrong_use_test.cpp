// SPDX-License-Identifier: Apache-2.0
// Mistakes with ranks: one clear line on every rank, exit code 2, no waiting for ever.
#include <sys/stat.h>

#include "conformance/ranks/tcp.h"
#include "tests/ranks/ways.h"

namespace dropless::runner_tests {
namespace {

const std::string drill_id = "ranks.drill:ranks=2,trouble=none,seed=1";

Ran run_alone(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& variables = {}) {
  Tool tool;
  tool.set("DROPLESS_RANK_DRILL", "1");
  for (const auto& [variable, value] : variables) tool.set(variable, value);
  std::vector<std::string> all{"run", "-i", plugin("rank_trouble"), "--no-results"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return tool.run(all);
}

void expect_on_all(Drill& drill, const Ran& leader, const std::vector<std::string>& parts) {
  EXPECT_TRUE(is_usage_error(leader, parts));
  EXPECT_FALSE(drill.others().empty());
  for (const Ran& other : drill.others()) EXPECT_TRUE(is_usage_error(other, parts));
}

TEST(WrongUse, OptionsThatMakeNoSense) {
  EXPECT_TRUE(is_usage_error(run_alone({drill_id, "--ranks", "0"}), {"--ranks", "'0'"}));
  EXPECT_TRUE(is_usage_error(run_alone({drill_id, "--ranks", "2", "--launcher", "pigeons"}),
                             {"pigeons", "processes"}));
  EXPECT_TRUE(is_usage_error(run_alone({drill_id, "--launcher", "mpi"}), {"needs --ranks"}));
  EXPECT_TRUE(is_usage_error(run_alone({drill_id, "--ranks", "4"}), {"for 2 ranks", "has 4"}));
  EXPECT_TRUE(is_usage_error(run_alone({"permutation.plan", "--ranks", "2"}),
                             {"permutation.plan has no cases over ranks"}));
  EXPECT_TRUE(
      is_usage_error(run_alone({"--ranks", "3", "--tier", "smoke"}), {"no cases over 3 ranks"}));
}

TEST(WrongUse, MpirunIsMissing) {
  EXPECT_TRUE(is_usage_error(run_alone({drill_id, "--ranks", "2", "--launcher", "mpi"},
                                       {{"DROPLESS_MPIRUN", "no-such-mpirun"}}),
                             {"no-such-mpirun", "was not found"}));
}

TEST(WrongUse, AnImplementationThatCannotBeLoaded) {
  Tool tool;
  tool.set("DROPLESS_RANK_DRILL", "1");
  EXPECT_TRUE(is_usage_error(tool.run({"run", drill_id, "--ranks", "2", "-i", "./nowhere.so"}),
                             {"nowhere.so"}));
  EXPECT_TRUE(is_usage_error(
      tool.run({"run", drill_id, "--ranks", "2", "-i", plugin("crash_in_constructor")}),
      {"crashed", "while it was being loaded"}));
}

TEST(WrongUse, HalfOfTheVariables) {
  EXPECT_TRUE(is_usage_error(run_alone({drill_id}, {{"RANK", "0"}}), {"RANK", "WORLD_SIZE"}));
  EXPECT_TRUE(
      is_usage_error(run_alone({drill_id}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), {"MASTER_ADDR"}));
}

TEST(WrongUse, AnotherNumberOfRanksThanTheLauncherHas) {
  Drill drill(Way::joined_by_address, 2);
  const Ran leader = drill.run({drill_id, "--ranks", "3", "--no-results"});
  expect_on_all(drill, leader, {"--ranks 3", "2 ranks"});
}

TEST(WrongUse, RanksThatCountDifferently) {
  Drill drill(Way::joined_by_address, 2);
  drill.set_for(1, "WORLD_SIZE", "3");
  const Ran leader = drill.run({drill_id, "--no-results"});
  expect_on_all(drill, leader, {"one of 3", "one of 2"});
}

TEST(WrongUse, TheSameRankTwice) {
  Drill drill(Way::joined_by_address, 3);
  drill.set_for(2, "RANK", "1");
  const Ran leader = drill.run({drill_id, "--no-results"});
  expect_on_all(drill, leader, {"rank 1", "two processes"});
}

TEST(WrongUse, APeerIsMissingAtTheStart) {
  Drill drill(Way::joined_by_address, 3);
  drill.leave_out(2);
  const Ran leader = drill.run({drill_id, "--no-results", "--join-timeout", "2"});
  expect_on_all(drill, leader, {"rank 2", "did not come within 2 s"});
}

TEST(WrongUse, Rank0IsMissingAtTheStart) {
  const Ran ran =
      run_alone({drill_id, "--join-timeout", "1"}, {{"RANK", "1"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", std::to_string(free_port())}});
  EXPECT_TRUE(is_usage_error(ran, {"rank 1", "rank 0 was not found", "refused"}));
}

TEST(WrongUse, ThePortIsInUse) {
  const conformance::Listener taken(0);
  Drill drill(Way::joined_by_address, 2);
  drill.set("MASTER_PORT", std::to_string(taken.port()));
  const Ran leader = drill.run({drill_id, "--no-results", "--join-timeout", "1"});
  EXPECT_TRUE(is_usage_error(leader, {"port", "in use"}));
  ASSERT_EQ(drill.others().size(), 1u);
  EXPECT_TRUE(is_usage_error(drill.others()[0], {"rank 1", "MASTER_PORT"}));
}

TEST(WrongUse, TheRendezvousFileCannotBeRead) {
  Drill drill(Way::joined_by_file, 2);
  const std::string folder = drill.path("a_folder");
  mkdir(folder.c_str(), 0700);
  drill.set("DROPLESS_RENDEZVOUS", folder);
  const Ran leader = drill.run({drill_id, "--no-results", "--join-timeout", "2"});
  expect_on_all(drill, leader, {"rendezvous file", "a_folder"});
  drill.set("DROPLESS_RENDEZVOUS", drill.path("no_such_folder/file"));
  const Ran again = drill.run({drill_id, "--no-results", "--join-timeout", "2"});
  expect_on_all(drill, again, {"rendezvous file", "no_such_folder/file"});
}

TEST(WrongUse, ItIsToldOnEveryRankWhatRank0Finds) {
  Drill drill(Way::joined_by_file, 3);
  const Ran leader = drill.run({"no.such_family", "--no-results"});
  expect_on_all(drill, leader, {"no.such_family"});
}

}  // namespace
}  // namespace dropless::runner_tests
