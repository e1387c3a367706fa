// SPDX-License-Identifier: Apache-2.0
// Host memory, and the table of memory spaces.
#include "conformance/judge/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

namespace dropless::conformance {

namespace {

constexpr std::align_val_t alignment{256};

class HostMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new(bytes, alignment); }
  void release(void* pointer) noexcept override { ::operator delete(pointer, alignment); }
  // Only touched pages cost memory.
  void* allocate_span(std::size_t bytes) override {
    void* span = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return span == MAP_FAILED ? nullptr : span;
  }
  void release_span(void* pointer, std::size_t bytes) noexcept override { munmap(pointer, bytes); }
  void copy_in(void* to, const void* host, std::size_t bytes) override {
    std::memcpy(to, host, bytes);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) override {
    std::memcpy(host, from, bytes);
  }
};

struct Spaces {
  std::mutex mutex;
  std::map<dropless_memory_space, std::shared_ptr<Memory>> memory{
      {DROPLESS_HOST, std::make_shared<HostMemory>()}};
};

Spaces& spaces() {
  static Spaces all;
  return all;
}

}  // namespace

void provide_memory(dropless_memory_space space, std::shared_ptr<Memory> memory) {
  const std::lock_guard lock(spaces().mutex);
  spaces().memory[space] = std::move(memory);
}

std::shared_ptr<Memory> memory_of(dropless_memory_space space) {
  const std::lock_guard lock(spaces().mutex);
  const auto found = spaces().memory.find(space);
  if (found == spaces().memory.end() || !found->second) {
    throw std::logic_error("memory_of: no access to this memory space was provided");
  }
  return found->second;
}

}  // namespace dropless::conformance
