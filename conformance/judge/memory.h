// SPDX-License-Identifier: Apache-2.0
// How Buffers reaches the memory of an implementation: host memory is built in, an adapter brings
// the memory of its device.
//
//     class CudaMemory : public Memory { ... };          in the adapter's file
//     provide_memory(DROPLESS_CUDA_DEVICE, std::make_shared<CudaMemory>());
#pragma once

#include <dropless/contract.h>

#include <cstddef>
#include <memory>
#include <stdexcept>

namespace dropless::conformance {

// The device of a memory space is gone for this process.
struct DeviceFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Pointers are in the implementation's space; arithmetic on them in bytes is meaningful. The copies
// return when they are complete, and see everything that was enqueued before.
class Memory {
 public:
  virtual ~Memory() = default;
  // Aligned to at least 256 bytes. Throws std::bad_alloc when there is no more.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  virtual void copy_in(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* from, std::size_t bytes) = 0;
  // The queue on which the copies are ordered; becomes dropless_call::stream.
  virtual void* stream() { return nullptr; }
  // A copy costs much more than its bytes.
  [[nodiscard]] virtual bool prefers_few_copies() const { return false; }
};

// Replaces the access to one memory space; thread-safe. Buffers keep the access they started with.
void provide_memory(dropless_memory_space space, std::shared_ptr<Memory> memory);
// Throws std::logic_error when nobody provided the space.
std::shared_ptr<Memory> memory_of(dropless_memory_space space);

}  // namespace dropless::conformance
