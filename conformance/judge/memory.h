// SPDX-License-Identifier: Apache-2.0
// How Buffers reaches the memory of an implementation: host memory is built in, an adapter brings
// the memory of its device.
//
//     class CudaMemory : public Memory { ... };          in the adapter's file
//     provide_memory(DROPLESS_CUDA_DEVICE, std::make_shared<CudaMemory>());
#pragma once

#include <dropless/contract.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>

namespace dropless::conformance {

// The device of a memory space is gone for this process.
struct DeviceFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Pointers are in the implementation's space; arithmetic on them in bytes is meaningful. What was
// copied in is there for all that is enqueued afterwards, and the host's bytes are free again;
// what is copied out has seen everything that was enqueued before.
class Memory {
 public:
  virtual ~Memory() = default;
  // Aligned to at least 256 bytes. Throws std::bad_alloc when there is no more.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  // A memory with a queue enqueues the copy; a small one (a few MiB) is not waited for.
  virtual void copy_in(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* from, std::size_t bytes) = 0;
  // Very many bytes of which few will be used, aligned like the others; null where there is no
  // room.
  virtual void* allocate_span(std::size_t /*bytes*/) { return nullptr; }
  virtual void release_span(void* /*pointer*/, std::size_t /*bytes*/) noexcept {}
  // The queue on which the copies are ordered; becomes dropless_call::stream. Fetched anew before
  // every call: what is known of the memory's contents ends here.
  virtual void* stream() { return nullptr; }
  // A copy costs much more than its bytes.
  [[nodiscard]] virtual bool prefers_few_copies() const { return false; }

  // What only a queue can do (GENERAL-7). On a host everything is finished when a call returns.
  // What follows waits for so long; false: there is no queue.
  virtual bool hold(int /*milliseconds*/) { return false; }
  virtual void wait() {}
  // Calls are recorded from now on and do not run; false: they cannot be recorded.
  virtual bool begin_capture() { return false; }
  // Ends the recording. What comes back enqueues the recorded work, as often as it is called.
  // Throws std::runtime_error with the reason when the recording was broken.
  virtual std::function<void()> end_capture() { return {}; }
};

// Replaces the access to one memory space; thread-safe. Buffers keep the access they started with.
void provide_memory(dropless_memory_space space, std::shared_ptr<Memory> memory);
// Throws std::logic_error when nobody provided the space.
std::shared_ptr<Memory> memory_of(dropless_memory_space space);

}  // namespace dropless::conformance
