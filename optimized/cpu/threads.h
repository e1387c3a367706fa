// SPDX-License-Identifier: Apache-2.0
// A small thread pool. Work is cut into tasks whose number depends on the problem alone, never on
// the number of threads, so that results cannot depend on it either.
//
//     parallel_ranges(call.threads(), rows, 64, [&](Index begin, Index end) { ... });
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace dropless::cpu {

using Index = std::int64_t;

// Runs task(0) .. task(tasks - 1), each once, on at most `threads` host threads (0: one per
// processor), the caller being one of them. Returns when all are done; the first exception of a
// task is thrown again. A call from inside a task runs its tasks one after the other.
void parallel_for(int threads, Index tasks, const std::function<void(Index)>& task);

// Host threads that `threads` stands for.
[[nodiscard]] int thread_count(int threads);

// Runs body(begin, end) over consecutive ranges of `grain` indices (the last one may be shorter).
template <class Body>
void parallel_ranges(int threads, Index count, Index grain, const Body& body) {
  if (count <= 0) return;
  grain = std::max<Index>(grain, 1);
  if (count <= grain) return body(Index{0}, count);
  parallel_for(threads, (count + grain - 1) / grain,
               [&](Index task) { body(task * grain, std::min(count, (task + 1) * grain)); });
}

// A grain that makes a range of rows of `row_bytes` bytes worth handing to another thread.
[[nodiscard]] inline Index rows_per_task(Index row_bytes, Index target_bytes = 128 * 1024) {
  return std::max<Index>(1, target_bytes / std::max<Index>(row_bytes, 1));
}

}  // namespace dropless::cpu
