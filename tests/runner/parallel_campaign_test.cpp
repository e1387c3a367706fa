// SPDX-License-Identifier: Apache-2.0
// A campaign does everything once, tells it in order, and stops at the first exception.
#include "conformance/runner/parallel_campaign.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace dropless::conformance {
namespace {

TEST(ParallelCampaign, EveryIndexOnceAndToldInOrder) {
  for (const int jobs : {0, 1, 3, 64}) {
    std::vector<std::atomic<int>> worked(50);
    std::vector<std::size_t> told;
    parallel_campaign(
        worked.size(), jobs, [&](std::size_t i) { ++worked[i]; },
        [&](std::size_t i) {
          EXPECT_EQ(worked[i], 1);
          told.push_back(i);
        });
    std::vector<std::size_t> all(worked.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(told, all) << jobs;
  }
}

TEST(ParallelCampaign, NothingToDo) {
  parallel_campaign(0, 2, [](std::size_t) { FAIL(); });
}

TEST(ParallelCampaign, TheFirstExceptionEndsIt) {
  std::atomic<int> begun = 0;
  const auto work = [&](std::size_t i) {
    ++begun;
    if (i == 3) throw std::runtime_error("the fourth");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_THROW(parallel_campaign(1000, 2, work), std::runtime_error);
  EXPECT_LT(begun, 1000);
  std::vector<std::size_t> told;
  const auto tell = [&](std::size_t i) {
    told.push_back(i);
    if (i == 2) throw std::logic_error("told enough");
  };
  EXPECT_THROW(parallel_campaign(
                   10, 4, [](std::size_t) {}, tell),
               std::logic_error);
  EXPECT_EQ(told, (std::vector<std::size_t>{0, 1, 2}));
}

}  // namespace
}  // namespace dropless::conformance
