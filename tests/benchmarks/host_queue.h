// SPDX-License-Identifier: Apache-2.0
// A queue that is the host: everything has happened when a call returns. It can behave like a
// device whose work goes on elsewhere, and record calls like a graph.
#pragma once

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "conformance/adapters/device_queue.h"

namespace dropless::conformance {

class HostQueue : public DeviceQueue {
 public:
  double after_seconds = 0;  // every interval says so
  bool has_graphs = true;
  std::size_t cache = 1 << 16;
  std::size_t in_use = 0;  // allocations
  int waits = 0;

  std::string device_name() const override { return "host"; }
  dropless_memory_space space() const override { return DROPLESS_HOST; }
  std::size_t cache_bytes() const override { return cache; }
  void* stream() override { return nullptr; }
  void* allocate(std::size_t bytes) override {
    ++in_use;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void release(void* memory) noexcept override {
    --in_use;
    std::free(memory);
  }
  void copy_in(void* to, const void* host, std::size_t bytes) override {
    std::memcpy(to, host, bytes);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) override {
    std::memcpy(host, from, bytes);
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void set_bytes(void* to, int byte, std::size_t bytes) override { std::memset(to, byte, bytes); }
  void wait() override { ++waits; }
  Interval timed(const std::function<void()>& enqueue) override {
    const auto begin = std::chrono::steady_clock::now();
    enqueue();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return {took.count(), after_seconds};
  }
  std::function<void()> captured(const std::function<void()>& enqueue) override {
    if (!has_graphs) throw std::runtime_error("a host records nothing");
    return enqueue;
  }
};

}  // namespace dropless::conformance
