// SPDX-License-Identifier: Apache-2.0
// A device that is lost, stuck or full in the middle of a run costs the case that did it, with a
// status and a reason that say so; the cases after it are judged. Skipped where there is no GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "conformance/adapters/device_memory.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

const char* const right[] = {
    "routing.bias_update:counts=zipf,experts=61,rows=1,rate=dyadic",
    "routing.bias_update:counts=near,experts=9,rows=1,rate=dyadic",
    "routing.bias_update:counts=large,experts=33,rows=3,rate=dyadic",
};
const char* const wrong = "routing.bias_update:counts=one_hot,experts=16,rows=1,rate=dyadic";

std::map<std::string, Outcome> outcomes(const std::string& implementation, double timeout) {
  std::vector<CaseId> cases;
  for (const char* id : {right[0], right[1], wrong, right[2]}) cases.push_back(parse_case_id(id));
  SupervisorOptions options;
  options.worker.implementation = implementation;
  options.timeout_seconds = timeout;
  options.program = DROPLESS_TOOL;
  Supervisor supervisor(options);
  supervisor.probe();
  std::map<std::string, Outcome> known;
  supervisor.run(cases, [&](const Outcome& outcome) { known[outcome.id.text()] = outcome; });
  return known;
}

std::string said(const Outcome& outcome) {
  return std::string(name(outcome.verdict.status)) + ": " + outcome.verdict.reason;
}

// The status of the case that makes trouble; the others pass.
Outcome after_trouble(const char* way, double timeout) {
  setenv("DROPLESS_TROUBLE", way, 1);
  std::map<std::string, Outcome> known = outcomes(DROPLESS_TROUBLE_PLUGIN, timeout);
  unsetenv("DROPLESS_TROUBLE");
  EXPECT_EQ(known.size(), 4U);
  for (const char* id : right) {
    EXPECT_EQ(known[id].verdict.status, Status::pass)
        << way << ", " << id << ": " << said(known[id]);
  }
  return known[wrong];
}

class Trouble : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_gpu_because(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(Trouble, AnIllegalAccessLosesTheDeviceForOneCase) {
  const Outcome outcome = after_trouble("illegal", 60);
  EXPECT_EQ(outcome.verdict.status, Status::device_lost) << said(outcome);
  EXPECT_NE(outcome.verdict.reason.find("illegal"), std::string::npos) << said(outcome);
}

TEST_F(Trouble, AKernelThatNeverEndsIsATimeoutOfOneCase) {
  const Outcome outcome = after_trouble("endless", 8);
  EXPECT_EQ(outcome.verdict.status, Status::timeout) << said(outcome);
}

TEST_F(Trouble, AnOperationWithoutMemorySaysSo) {
  const Outcome outcome = after_trouble("memory", 60);
  EXPECT_EQ(outcome.verdict.status, Status::resource) << said(outcome);
  EXPECT_NE(outcome.verdict.reason.find("memory"), std::string::npos) << said(outcome);
}

// Somebody else has all of the memory: whatever the implementation can still do, it says why not.
TEST_F(Trouble, AFullDeviceIsNamed) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  std::vector<void*> held;
  for (std::size_t piece = std::size_t{8} << 30; piece >= std::size_t{2} << 20; piece /= 2) {
    for (void* memory = nullptr; cudaMalloc(&memory, piece) == cudaSuccess;) held.push_back(memory);
    cudaGetLastError();
  }
  try {
    for (const auto& [id, outcome] : outcomes("cuda", 60)) {
      EXPECT_TRUE(outcome.verdict.status == Status::pass ||
                  outcome.verdict.reason.find("memory") != std::string::npos)
          << id << ": " << said(outcome);
    }
  } catch (const UsageError& error) {  // not even a context
    EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos) << error.what();
  }
  for (void* memory : held) cudaFree(memory);
}

}  // namespace
}  // namespace dropless::conformance
