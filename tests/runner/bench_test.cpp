// SPDX-License-Identifier: Apache-2.0
// dropless bench as its users see it, where a machine without a GPU shows it.
#include <cstdlib>
#include <filesystem>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

TEST(BenchCommand, DeviceMemoryNeedsAGpu) {
  Tool tool;
  tool.set("CUDA_VISIBLE_DEVICES", "");  // also where there is one
  const Ran built_in = tool.run({"bench", "-i", "cuda"});
  EXPECT_TRUE(is_usage_error(built_in, {"cuda"}));
  const Ran library = tool.run({"bench", "-i", plugin("cuda_memory")});
  EXPECT_TRUE(is_usage_error(library, {"memory_space 1", "a machine with a GPU"}));
}

TEST(BenchCommand, PeersAreForDeviceMemory) {
  Tool tool;
  EXPECT_TRUE(is_usage_error(tool.run({"bench", "-i", "cpu", "--peer", "true"}),
                             {"--peer", "device memory", "leave it out"}));
  EXPECT_TRUE(is_usage_error(tool.run({"bench", "-i", "cpu", "--rest", "0.01"}),
                             {"--rest", "device memory", "leave it out"}));
}

TEST(BenchCommand, NumbersAreReadBeforeAnythingHappens) {
  Tool tool;
  const std::string file = tool.path("bench.json");
  EXPECT_TRUE(
      is_usage_error(tool.run({"bench", "-i", "cpu", "--json", file, "--repetitions", "many"}),
                     {"--repetitions", "many"}));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(BenchCommand, HostMemoryIsTimedAsBefore) {
  Tool tool;
  const std::string file = tool.path("bench.json");
  const Ran ran = tool.run({"bench", "-i", "cpu", "--filter", "permutation.permute",
                            "--repetitions", "1", "--seconds", "0.001", "--json", file});
  EXPECT_EQ(ran.code, 0) << ran;
  EXPECT_NE(ran.out.find("memcpy of the rows"), std::string::npos) << ran;
  const auto record = nlohmann::json::parse(contents(file));
  EXPECT_EQ(record["results"].size(), 1U);
  EXPECT_GT(record["results"][0]["median_seconds"], 0);
}

}  // namespace
}  // namespace dropless::runner_tests
