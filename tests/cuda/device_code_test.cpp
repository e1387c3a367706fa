// SPDX-License-Identifier: Apache-2.0
// Which machine code of a build a GPU runs, for GPUs and builds that are not here.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "optimized/cuda/device.h"
#include "optimized/cuda/status.h"

namespace dropless::cuda {
namespace {

struct Choice {
  int major, minor;
  const char* built;
  const char* code;
};
std::ostream& operator<<(std::ostream& stream, const Choice& row) {
  return stream << row.major << "." << row.minor << " with " << row.built;
}
class Runs : public testing::TestWithParam<Choice> {};

std::string label(const testing::TestParamInfo<Choice>& row) {
  std::string text = std::to_string(row.param.major) + "_" + std::to_string(row.param.minor) +
                     "_with_" + row.param.built;
  for (char& c : text) c = c == ' ' ? '_' : c;
  return text;
}

TEST_P(Runs, TheBestCodeOfTheBuild) {
  const Choice& row = GetParam();
  try {
    EXPECT_EQ(code_for(row.major, row.minor, row.built), row.code);
  } catch (const Refusal& refusal) {
    FAIL() << refusal.message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    DeviceCode, Runs,
    testing::Values(
        // Their own kind, wherever it stands in the list.
        Choice{8, 0, "sm_80", "sm80"}, Choice{9, 0, "sm_80 sm_90a", "sm90a"},
        Choice{9, 0, "sm_90a", "sm90a"}, Choice{9, 0, "sm_80 sm_90a sm_100a", "sm90a"},
        Choice{10, 0, "sm_80 sm_90a sm_100a", "sm100a"}, Choice{10, 0, "sm_100a sm_80", "sm100a"},
        // A later minor of 8 runs the machine code of 8.0.
        Choice{8, 6, "sm_80", "sm80"}, Choice{8, 9, "sm_80 sm_90a", "sm80"},
        // The rest compiles the PTX of 8.0: "a" code has no later GPU.
        Choice{9, 0, "sm_80 sm_100a", "sm80"}, Choice{10, 0, "sm_80 sm_90a", "sm80"},
        Choice{10, 3, "sm_80 sm_90a sm_100a", "sm80"},
        Choice{11, 0, "sm_80 sm_90a sm_100a", "sm80"}, Choice{12, 0, "sm_80 sm_100a", "sm80"},
        Choice{12, 1, "sm_80", "sm80"}),
    label);

class Refuses : public testing::TestWithParam<Choice> {};

TEST_P(Refuses, WithTheReasonAndTheRemedy) {
  const Choice& row = GetParam();
  try {
    FAIL() << "runs " << code_for(row.major, row.minor, row.built);
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status, DROPLESS_NOT_SUPPORTED);
    EXPECT_EQ(refusal.message, row.code);
    // It reaches the caller whole.
    EXPECT_LT(refusal.message.size(), sizeof(dropless_call{}.message));
  }
}

#define CONFIGURE " alone: configure it with -DDROPLESS_CUDA_WANTED='80;90a;100a'"
INSTANTIATE_TEST_SUITE_P(
    DeviceCode, Refuses,
    testing::Values(
        // Too old, whatever the build holds.
        Choice{7, 5, "sm_80 sm_90a sm_100a", "compute capability 7.5; this build runs from 8.0 on"},
        Choice{7, 0, "sm_80", "compute capability 7.0; this build runs from 8.0 on"},
        Choice{6, 1, "sm_100a", "compute capability 6.1; this build runs from 8.0 on"},
        // Not built for it.
        Choice{9, 0, "sm_100a",
               "compute capability 9.0; this build holds machine code for sm_100a" CONFIGURE},
        Choice{
            8, 0, "sm_90a sm_100a",
            "compute capability 8.0; this build holds machine code for sm_90a sm_100a" CONFIGURE},
        Choice{8, 6, "sm_90a",
               "compute capability 8.6; this build holds machine code for sm_90a" CONFIGURE},
        Choice{10, 0, "sm_90a",
               "compute capability 10.0; this build holds machine code for sm_90a" CONFIGURE},
        Choice{10, 3, "sm_100a",
               "compute capability 10.3; this build holds machine code for sm_100a" CONFIGURE},
        Choice{
            12, 0, "sm_90a sm_100a",
            "compute capability 12.0; this build holds machine code for sm_90a sm_100a" CONFIGURE}),
    label);
#undef CONFIGURE

}  // namespace
}  // namespace dropless::cuda
