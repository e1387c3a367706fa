// SPDX-License-Identifier: Apache-2.0
// A device as a stop-watch sees it: plain memory, one stream, times between two events on it, and
// calls recorded once and replayed. Apart from Memory (judge/memory.h), whose arena, mirror and
// canaries serve the judge and would be in the way of a measurement.
//
//     const std::unique_ptr<DeviceQueue> queue = open_device_queue();   // UsageError: none here
//     const std::function<void()> replay = queue->captured([&] { enqueue(queue->stream()); });
//     const Interval time = queue->timed(replay);
#pragma once

#include <dropless/contract.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace dropless::conformance {

struct Interval {
  double seconds = 0;        // between the events around the work
  double after_seconds = 0;  // host time from the second event until the whole device was idle
};

// Throws DeviceFailure (judge/memory.h) when the device is lost for this process.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  [[nodiscard]] virtual std::string device_name() const = 0;
  [[nodiscard]] virtual dropless_memory_space space() const = 0;
  [[nodiscard]] virtual std::size_t cache_bytes() const = 0;
  [[nodiscard]] virtual void* stream() = 0;  // for dropless_call::stream

  // Aligned to at least 256 bytes. Throws std::bad_alloc when there is no more.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Both wait, and are ordered with what is on the stream.
  virtual void copy_in(void* to, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* from, std::size_t bytes) = 0;
  // Both are enqueued.
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  virtual void set_bytes(void* to, int byte, std::size_t bytes) = 0;

  // Waits for the whole device.
  virtual void wait() = 0;
  virtual Interval timed(const std::function<void()>& enqueue) = 0;
  // What `enqueue` puts on the stream, without running it; the result enqueues it again and again.
  // Throws std::runtime_error with the reason where it cannot be recorded; what `enqueue` throws
  // ends the recording and passes.
  virtual std::function<void()> captured(const std::function<void()>& enqueue) = 0;
};

// The CUDA device that provide_device_memory() chose. Throws UsageError where there is none.
std::unique_ptr<DeviceQueue> open_device_queue();

}  // namespace dropless::conformance
