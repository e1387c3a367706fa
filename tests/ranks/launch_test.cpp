// SPDX-License-Identifier: Apache-2.0
// What the variables of launchers mean, and which mistakes in them are named.
#include "conformance/ranks/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string complaint(const Variables& variables) {
  try {
    const auto launch = launch_from(of(variables));
    if (launch) (void)meeting_point(*launch, of(variables));
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Launch, NothingSet) {
  EXPECT_FALSE(launch_from(of({})));
}

TEST(Launch, Torchrun) {
  const Variables set{{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"MASTER_ADDR", "node0"},
                      {"MASTER_PORT", "29500"}};
  const auto launch = launch_from(of(set));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->ranks, 8);
  EXPECT_EQ(launch->local_rank, 1);
  const MeetingPoint point = meeting_point(*launch, of(set));
  EXPECT_EQ(point.kind, MeetingPoint::Kind::address);
  EXPECT_EQ(point.host, "node0");
  EXPECT_EQ(point.port, 29500);
  Variables elastic = set;
  elastic["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // its store serves at 29500
  EXPECT_EQ(meeting_point(*launch, of(elastic)).port, 29501);
}

TEST(Launch, OpenMpiOnOneMachineMeetsInAFileOfTheJob) {
  Variables set{{"OMPI_COMM_WORLD_RANK", "3"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                {"PMIX_NAMESPACE", "12/34"}};
  const auto launch = launch_from(of(set));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->ranks, 4);
  const MeetingPoint point = meeting_point(*launch, of(set));
  EXPECT_EQ(point.kind, MeetingPoint::Kind::file);
  EXPECT_NE(point.file.find("12-34"), std::string::npos) << point.file;
  set["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  const auto spread = launch_from(of(set));
  EXPECT_EQ(meeting_point(*spread, of(set)).kind, MeetingPoint::Kind::broadcast);
}

TEST(Launch, SlurmStepsAreJoinedAndBatchScriptsAreNot) {
  Variables set{{"SLURM_PROCID", "2"},  {"SLURM_STEP_NUM_TASKS", "4"},
                {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "77"},
                {"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NODELIST", "gpu[007-009,12]-ib,login"},
                {"SLURM_NTASKS", "4"}};
  const auto launch = launch_from(of(set));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->local_rank, 0);
  const MeetingPoint point = meeting_point(*launch, of(set));
  EXPECT_EQ(point.host, "gpu007-ib");
  EXPECT_EQ(point.port, 16384 + 77 * 64 + 1);
  set["SLURM_STEP_NODELIST"] = "alone,other";
  EXPECT_EQ(meeting_point(*launch, of(set)).host, "alone");
  set.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_FALSE(launch_from(of(set)));
}

TEST(Launch, OneProcessIsNoGroup) {
  EXPECT_FALSE(launch_from(of({{"RANK", "0"}, {"WORLD_SIZE", "1"}})));
  EXPECT_FALSE(launch_from(of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})));
}

TEST(Launch, MistakesAreNamed) {
  EXPECT_NE(complaint({{"RANK", "1"}}).find("RANK is set and WORLD_SIZE is not"),
            std::string::npos);
  EXPECT_NE(complaint({{"WORLD_SIZE", "2"}}).find("WORLD_SIZE is set and RANK is not"),
            std::string::npos);
  EXPECT_NE(complaint({{"RANK", "two"}, {"WORLD_SIZE", "2"}}).find("RANK is 'two'"),
            std::string::npos);
  EXPECT_NE(complaint({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("from 0 to 1"), std::string::npos);
  EXPECT_NE(complaint({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(complaint({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})
                .find("MASTER_ADDR is set and MASTER_PORT is not"),
            std::string::npos);
  EXPECT_NE(complaint({{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"}})
                .find("rank 1 of 4"),
            std::string::npos);
}

TEST(Launch, ARendezvousFileComesFirst) {
  const Variables set{{"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "a"},
                      {"MASTER_PORT", "1"},
                      {"DROPLESS_RENDEZVOUS", "/shared/file"}};
  const MeetingPoint point = meeting_point(*launch_from(of(set)), of(set));
  EXPECT_EQ(point.kind, MeetingPoint::Kind::file);
  EXPECT_EQ(point.file, "/shared/file");
}

}  // namespace
}  // namespace dropless::conformance
