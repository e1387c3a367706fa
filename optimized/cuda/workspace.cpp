// SPDX-License-Identifier: Apache-2.0
// Handing out and growing scratch memory.
#include "optimized/cuda/workspace.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "optimized/cuda/status.h"

namespace dropless::cuda {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t smallest_chunk = std::size_t{4} << 20;

}  // namespace

void* Workspace::allocate(std::size_t bytes, cudaStream_t stream) {
  refuse_while_captured(stream, "scratch memory has to grow");
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "allocating scratch memory");
  return memory;
}

void* Workspace::take(std::size_t bytes, cudaStream_t stream) {
  bytes = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) {
    // Half of what is there already: few chunks, and no more than half of them unused.
    const std::size_t grown = std::max({bytes, smallest_chunk, allocated() / 2});
    chunks_.push_back({static_cast<std::byte*>(allocate(grown, stream)), grown});
    used_ = 0;
  }
  std::byte* memory = chunks_[chunk_].memory + used_;
  used_ += bytes;
  return memory;
}

int* Workspace::refusal_word(cudaStream_t stream) {
  if (refusal_word_ == nullptr) {
    auto* word = static_cast<int*>(allocate(alignment, stream));
    check(cudaMemsetAsync(word, 0, alignment, stream), "clearing the refusal word");
    refusal_word_ = word;
  }
  return refusal_word_;
}

std::size_t Workspace::allocated() const {
  std::size_t total = 0;
  for (const Chunk& chunk : chunks_) total += chunk.bytes;
  return total;
}

Workspace& workspace_of(int device, cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Workspace>> all;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Workspace>& found = all[{device, stream}];
  if (!found) found = std::make_unique<Workspace>();
  return *found;
}

}  // namespace dropless::cuda
