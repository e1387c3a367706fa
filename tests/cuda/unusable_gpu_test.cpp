// SPDX-License-Identifier: Apache-2.0
// A GPU that cannot be used costs the cases that need it, with a reason that says what to do; the
// other cases of the run are judged. Each machine is one that we make up, so the answers are the
// same with a GPU and without.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "tests/runner/tool.h"

namespace dropless::runner_tests {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class UnusableGpu : public testing::Test {
 protected:
  // The driver of old_driver.cpp; what the test itself was started with stays behind it.
  void use_old_driver() {
    const char* const before = std::getenv("LD_LIBRARY_PATH");
    const std::string rest = before == nullptr ? "" : std::string(":") + before;
    tool.set("LD_LIBRARY_PATH", DROPLESS_OLD_DRIVER_FOLDER + rest);
  }
  Ran run(const std::string& implementation) {
    return tool.run({"run", "routing.bias_update", "permutation.plan", "--tier", "smoke",
                     "--results", "r.jsonl", "-j", "2", "-i", implementation});
  }
  // The bias update is the GPU's, the rest is not (partly_cuda.cpp).
  void expect_refusals_only_of_the_gpu(const Ran& ran, const std::string& reason) {
    EXPECT_EQ(ran.code, 0) << ran;
    int refused = 0, passed = 0;
    for (const nlohmann::json& record : records(tool.path("r.jsonl"))) {
      if (record.at("record") != "case") continue;
      const bool on_gpu = record.at("id").get<std::string>().starts_with("routing.bias_update:");
      EXPECT_EQ(record.at("status"), on_gpu ? "not_supported" : "pass") << record.dump(2);
      if (on_gpu) {
        EXPECT_NE(record.at("reason").get<std::string>().find(reason), std::string::npos)
            << record.dump(2);
      }
      ++(on_gpu ? refused : passed);
    }
    EXPECT_GE(refused, 2) << ran;
    EXPECT_GE(passed, 3) << ran;
  }

  const std::string served = version_text(DROPLESS_OLD_DRIVER_VERSION);
  const std::string needed = version_text(CUDART_VERSION);
  Tool tool;
};

TEST_F(UnusableGpu, ADriverThatIsTooOldIsNamedWithWhatIsNeeded) {
  use_old_driver();
  expect_refusals_only_of_the_gpu(run(DROPLESS_PARTLY_CUDA), "the NVIDIA driver serves CUDA " +
                                                                 served + ", this build needs " +
                                                                 needed + "; update the driver");
}

TEST_F(UnusableGpu, AnArchitectureThatIsTooOldIsNamedWithWhatIsNeeded) {
  expect_refusals_only_of_the_gpu(run(DROPLESS_PARTLY_CUDA_ON_OLD_GPU),
                                  "compute capability 7.5; this build runs from 8.0 on");
}

TEST_F(UnusableGpu, ThatIsNotThereIsMissed) {
  tool.set("CUDA_VISIBLE_DEVICES", "");
  expect_refusals_only_of_the_gpu(run(DROPLESS_PARTLY_CUDA), "no NVIDIA ");
}

// Nothing can be judged in the memory of the GPU: the run says so before it begins.
TEST_F(UnusableGpu, EndsARunThatIsAllOnTheGpu) {
  use_old_driver();
  EXPECT_TRUE(is_usage_error(
      run("cuda"), {"implementation 'cuda' cannot run here",
                    "the NVIDIA driver serves CUDA " + served, needed, "update the driver"}));
}

TEST_F(UnusableGpu, IsNothingToAnotherImplementation) {
  use_old_driver();
  const Ran ran = run("cpu");
  EXPECT_EQ(ran.code, 0) << ran;
  const std::map<std::string, int> counts = statuses(tool.path("r.jsonl"));
  ASSERT_EQ(counts.size(), 1U) << ran;
  EXPECT_GE(counts.at("pass"), 5) << ran;
}

}  // namespace
}  // namespace dropless::runner_tests
