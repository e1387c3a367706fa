// SPDX-License-Identifier: Apache-2.0
// Threads, table, and structs of other versions.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "optimized/cpu/reduction.h"
#include "optimized/cpu/threads.h"
#include "tests/cpu/support.h"

namespace dropless::cpu::testing {
namespace {

TEST(Threads, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 3, 16}) {
    for (const Index tasks : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel_for(threads, tasks, [&](Index i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(Threads, RangesCoverEverythingInOrder) {
  std::vector<std::atomic<int>> runs(1001);
  parallel_ranges(3, 1001, 10, [&](Index begin, Index end) {
    EXPECT_EQ(begin % 10, 0);
    EXPECT_LE(end - begin, 10);
    for (Index i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
  });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

// 1/3 + 1/5 + ... in double: the last bits show any other order.
TEST(Threads, SumsOverTokensDoNotKnowTheThreads) {
  const auto sum = [](int threads) {
    return reduce_tokens(threads, 10000, 4096, 1, [](Index begin, Index end, double* total) {
      for (Index i = begin; i < end; ++i) *total += 1.0 / static_cast<double>(2 * i + 3);
    })[0];
  };
  const double once = sum(1);
  for (const int threads : {2, 3, 5, 64, 0}) EXPECT_EQ(sum(threads), once);
}

TEST(Threads, ExceptionsReachTheCaller) {
  EXPECT_THROW(parallel_for(4, 100,
                            [](Index i) {
                              if (i == 37) throw std::runtime_error("task 37");
                            }),
               std::runtime_error);
  std::atomic<int> after{0};
  parallel_for(4, 10, [&](Index) { ++after; });
  EXPECT_EQ(after, 10);
}

TEST(Threads, CallsInsideTasksAreServed) {
  std::atomic<int> runs{0};
  parallel_for(4, 8, [&](Index) { parallel_for(4, 8, [&](Index) { ++runs; }); });
  EXPECT_EQ(runs, 64);
}

// A worker process is forked from one whose pool has threads already; it must not wait for them.
TEST(Threads, ForkedProcessesHaveTheirOwn) {
  parallel_for(3, 30, [](Index) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> runs{0};
    parallel_for(3, 30, [&](Index) { ++runs; });
    _exit(runs == 30 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Table, OffersEveryOperationButTheModel) {
  const dropless_implementation& table = implementation();
  EXPECT_EQ(table.contract_version, DROPLESS_CONTRACT_VERSION);
  EXPECT_EQ(table.memory_space, DROPLESS_HOST);
  ASSERT_NE(table.profile, nullptr);
  EXPECT_EQ(table.profile->determinism, DROPLESS_DETERMINISTIC_ANY_THREADS);
  const std::string build = table.build;
  EXPECT_FALSE(build.empty());
  int offered = 0;
#define DROPLESS_COUNT(entry, args) offered += table.entry != nullptr ? 1 : 0;
  DROPLESS_OPERATIONS(DROPLESS_COUNT)
#undef DROPLESS_COUNT
  EXPECT_EQ(offered, 34);
  EXPECT_NE(table.exchange_plan, nullptr);
  EXPECT_EQ(table.model_step, nullptr);
}

// A caller compiled against an older header hands in shorter structs: what is missing is zero.
TEST(Table, ShorterStructsAreRead) {
  const Array rows = Array(DROPLESS_FP32, {2, 3}).set({1, 2, 3, 4, 5, 6});
  const Array map = Array(DROPLESS_I64, {1, 2}).set({0, 1});
  const Array y(DROPLESS_FP32, {1, 3});
  auto args = make_args<dropless_permute_backward_args>();
  args.row_map = map.get();
  args.d_rows = rows.get();
  args.d_x = y.get();
  const Array beyond(DROPLESS_FP32, {1, 2});
  args.d_weights = beyond.get();  // not part of the struct as far as its size says
  args.struct_size = offsetof(dropless_permute_backward_args, d_row_weights);
  EXPECT_EQ(perform(implementation().permute_backward, args).status, DROPLESS_OK);
  EXPECT_EQ(y.values(), (std::vector<double>{5, 7, 9}));
}

TEST(Table, ShorterCallsAreNotWrittenBeyondTheirEnd) {
  auto call = make_args<dropless_call>();
  call.struct_size = offsetof(dropless_call, message);
  std::memset(call.message, 'm', sizeof call.message);
  std::memset(call.path, 'p', sizeof call.path);
  auto args = make_args<dropless_quantize_args>();
  EXPECT_EQ(implementation().quantize(nullptr, &call, &args), DROPLESS_INVALID_ARGUMENT);
  EXPECT_EQ(call.message[0], 'm');
  EXPECT_EQ(call.path[0], 'p');
}

}  // namespace
}  // namespace dropless::cpu::testing
