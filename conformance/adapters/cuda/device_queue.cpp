// SPDX-License-Identifier: Apache-2.0
// The stop-watch on CUDA: cudaMalloc, events, graphs.
#include "conformance/adapters/device_queue.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <new>
#include <stdexcept>

#include "conformance/adapters/cuda/check.h"
#include "conformance/adapters/device_memory.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

class CudaQueue : public DeviceQueue {
 public:
  CudaQueue() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU");
    name_ = properties.name;
    cache_bytes_ = static_cast<std::size_t>(properties.l2CacheSize);
    // Not the default stream, so that work of a call that ignores its stream is not ordered with
    // the events and is found out.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check(cudaEventCreate(&begin_), "making an event");
    check(cudaEventCreate(&end_), "making an event");
  }
  ~CudaQueue() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  std::string device_name() const override { return name_; }
  dropless_memory_space space() const override { return DROPLESS_CUDA_DEVICE; }
  std::size_t cache_bytes() const override { return cache_bytes_; }
  void* stream() override { return stream_; }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "allocating device memory");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void copy_in(void* to, const void* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the device");
    finish();
  }
  void copy_out(void* host, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "copying from the device");
    finish();
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
          "copying on the device");
  }
  void set_bytes(void* to, int byte, std::size_t bytes) override {
    check(cudaMemsetAsync(to, byte, bytes, stream_), "filling device memory");
  }

  void wait() override { check(cudaDeviceSynchronize(), "waiting for the device"); }

  Interval timed(const std::function<void()>& enqueue) override {
    check(cudaEventRecord(begin_, stream_), "recording an event");
    enqueue();
    check(cudaEventRecord(end_, stream_), "recording an event");
    check(cudaEventSynchronize(end_), "waiting for the stream");
    const auto ended = std::chrono::steady_clock::now();
    wait();
    const std::chrono::duration<double> after = std::chrono::steady_clock::now() - ended;
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading a time");
    return {static_cast<double>(milliseconds) * 1e-3, after.count()};
  }

  std::function<void()> captured(const std::function<void()>& enqueue) override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      cudaGetLastError();
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    if (const cudaError_t error = cudaStreamEndCapture(stream_, &graph); error != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error(cudaGetErrorString(error));
    }
    const std::shared_ptr<CUgraph_st> recorded(graph, cudaGraphDestroy);
    std::size_t nodes = 0;
    check(cudaGraphGetNodes(graph, nullptr, &nodes), "counting what was captured");
    if (nodes == 0) throw std::runtime_error("nothing was enqueued on the stream");
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph, 0), "instantiating a graph");
    const std::shared_ptr<CUgraphExec_st> runnable(made, cudaGraphExecDestroy);
    return
        [this, runnable] { check(cudaGraphLaunch(runnable.get(), stream_), "replaying a graph"); };
  }

 private:
  void finish() { check(cudaStreamSynchronize(stream_), "waiting for the stream"); }

  std::string name_;
  std::size_t cache_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceQueue> open_device_queue() {
  provide_device_memory();
  return std::make_unique<CudaQueue>();
}

}  // namespace dropless::conformance
