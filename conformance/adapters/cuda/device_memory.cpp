// SPDX-License-Identifier: Apache-2.0
// Device memory through the CUDA runtime: plain allocations, never managed ones.
#include "conformance/adapters/device_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "conformance/adapters/cuda/check.h"
#include "conformance/cases/case_id.h"
#include "conformance/judge/memory.h"
#include "optimized/cuda/implementation.h"

namespace dropless::conformance {
namespace {

constexpr int device = 0;
constexpr std::size_t alignment = 256;
constexpr std::size_t staging_bytes = std::size_t{4} << 20;  // to the device
constexpr std::size_t mirror_bytes = std::size_t{4} << 20;   // from the device
constexpr std::size_t arena_chunk = std::size_t{64} << 20;

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Chunks that are handed out from the front; when nothing is in use any more they begin anew, in
// the order of the stream.
//
// Workers share one GPU and take turns on it, so that a wait costs far more than the bytes of a
// small case. Copies to the device go through pinned memory and wait for nothing. The first copy
// from it after a call brings everything that is in use into a mirror; the others read there, until
// the stream is handed out for the next call.
class CudaMemory : public Memory {
 public:
  CudaMemory() {
    const char* arena = std::getenv("DROPLESS_DEVICE_ARENA");
    has_arena_ = arena == nullptr || std::string_view(arena) != "0";
    // Before the first use: waiting workers leave the cores to those that judge.
    const char* wait = std::getenv("DROPLESS_DEVICE_WAIT");
    const bool spin = wait != nullptr && std::string_view(wait) == "spin";
    check(cudaSetDeviceFlags(spin ? cudaDeviceScheduleSpin : cudaDeviceScheduleBlockingSync),
          "choosing how to wait");
    check(cudaSetDevice(device), "choosing the GPU");
    check(cudaMallocHost(reinterpret_cast<void**>(&staging_), staging_bytes), "pinning memory");
    check(cudaMallocHost(reinterpret_cast<void**>(&mirror_), mirror_bytes), "pinning memory");
    // Not the default stream: an implementation that ignores dropless_call::stream is not ordered
    // with the copies and is found out.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }

  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!has_arena_) return fresh(bytes);
    bytes = (bytes + alignment - 1) / alignment * alignment;
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes) ++chunk_, used_ = 0;
    if (chunk_ == chunks_.size()) {
      const std::size_t grown = std::max(bytes, arena_chunk);
      chunks_.push_back({static_cast<std::byte*>(fresh(grown)), grown});
      used_ = 0;
    }
    std::byte* memory = chunks_[chunk_].memory + used_;
    used_ += bytes;
    ++in_use_;
    return memory;
  }

  void release(void* pointer) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!has_arena_) {
      cudaFree(pointer);
    } else if (--in_use_ == 0) {
      chunk_ = 0, used_ = 0;
    }
  }

  // Outside of the arena, which keeps what it has.
  void* allocate_span(std::size_t bytes) override {
    void* span = nullptr;
    if (cudaMalloc(&span, bytes) == cudaSuccess) return span;
    cudaGetLastError();
    return nullptr;
  }
  void release_span(void* pointer, std::size_t /*bytes*/) noexcept override { cudaFree(pointer); }

  void copy_in(void* to, const void* host, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (staged_ + bytes > staging_bytes) finish();
    if (bytes > staging_bytes) {
      mirrored_ = 0;
      check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_),
            "copying to the device");
      return finish();
    }
    stage(to, host, bytes);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!is_mirrored(from, bytes)) bring_mirror();
    if (is_mirrored(from, bytes)) {
      std::memcpy(host, mirror_ + place_of(from), bytes);
      return;
    }
    check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "copying from the device");
    finish();
  }
  void* stream() override {
    const std::lock_guard lock(mutex_);
    mirrored_ = 0;
    return stream_;
  }

  bool hold(int milliseconds) override {
    const auto sleep = [](void* time) {
      std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(time)));
    };
    check(cudaLaunchHostFunc(stream_, sleep,
                             reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds))),
          "holding the stream");
    return true;
  }
  void wait() override {
    const std::lock_guard lock(mutex_);
    finish();
  }

  bool begin_capture() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    return true;
  }
  std::function<void()> end_capture() override {
    cudaGraph_t graph = nullptr;
    if (const cudaError_t error = cudaStreamEndCapture(stream_, &graph); error != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error(cudaGetErrorString(error));
    }
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
    const std::shared_ptr<CUgraphExec_st> runnable(made, cudaGraphExecDestroy);
    return [this, runnable] {
      check(cudaGraphLaunch(runnable.get(), static_cast<cudaStream_t>(stream())),
            "launching a graph");
    };
  }
  bool prefers_few_copies() const override { return true; }

 private:
  struct Chunk {
    std::byte* memory;
    std::size_t bytes;
  };

  static void* fresh(std::size_t bytes) {
    check(cudaSetDevice(device), "choosing the GPU");
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "allocating device memory");
    return memory;
  }
  void finish() {
    check(cudaStreamSynchronize(stream_), "waiting for the device");
    staged_ = 0;
  }
  // Out of pinned memory, without which the copy would wait.
  void stage(void* to, const void* host, std::size_t bytes) {
    std::memcpy(staging_ + staged_, host, bytes);
    check(cudaMemcpyAsync(to, staging_ + staged_, bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the device");
    staged_ += bytes;
    note(static_cast<const std::byte*>(to), host, bytes);
  }
  // What is copied in right behind what the mirror knows makes it longer: a new allocation, whole
  // (pieces of one lie further inside). The bytes between two allocations are never read.
  void note(const std::byte* to, const void* host, std::size_t bytes) {
    if (chunks_.empty() || to < chunks_[0].memory) return;
    const std::size_t place = place_of(to), end = place + bytes;
    if (place >= mirrored_ + alignment) return;
    if (end > mirror_bytes) {
      mirrored_ = std::min(mirrored_, place);
      return;
    }
    std::memcpy(mirror_ + place, host, bytes);
    mirrored_ = std::max(mirrored_, end);
  }

  // In the first chunk, which holds all of a small case.
  [[nodiscard]] std::size_t place_of(const void* pointer) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - chunks_[0].memory);
  }
  [[nodiscard]] bool is_mirrored(const void* from, std::size_t bytes) const {
    if (mirrored_ == 0 || from < chunks_[0].memory) return false;
    const std::size_t place = place_of(from);
    return place <= mirrored_ && bytes <= mirrored_ - place;
  }
  // Leaves it empty where more is in use than it can hold.
  void bring_mirror() {
    mirrored_ = 0;
    if (!has_arena_ || chunks_.empty() || chunk_ != 0 || used_ > mirror_bytes) return;
    check(cudaMemcpyAsync(mirror_, chunks_[0].memory, used_, cudaMemcpyDeviceToHost, stream_),
          "copying from the device");
    finish();
    mirrored_ = used_;
  }

  std::mutex mutex_;
  bool has_arena_ = true;
  cudaStream_t stream_ = nullptr;
  std::byte* staging_ = nullptr;
  std::size_t staged_ = 0;
  std::byte* mirror_ = nullptr;
  std::size_t mirrored_ = 0;  // bytes of the first chunk that the mirror knows
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0, used_ = 0, in_use_ = 0;
};

}  // namespace

std::string no_gpu_because() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return driver == 0
               ? "no NVIDIA driver is installed"
               : fmt::format(
                     "the NVIDIA driver serves CUDA {}, this suite needs {}; update the driver",
                     version_text(driver), version_text(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return "no NVIDIA GPU is visible";
  }
  return error == cudaSuccess ? "" : fmt::format("CUDA says {}", cudaGetErrorString(error));
}

void provide_device_memory() {
  static std::mutex mutex;
  static std::shared_ptr<CudaMemory> memory;
  const std::lock_guard lock(mutex);
  if (memory) return;
  if (const std::string why = no_gpu_because(); !why.empty()) throw UsageError(why);
  try {
    memory = std::make_shared<CudaMemory>();
  } catch (const std::bad_alloc&) {
    throw UsageError(
        "the GPU has not enough free memory for the buffers of a case; see nvidia-smi for who "
        "holds "
        "it, or choose another one with CUDA_VISIBLE_DEVICES");
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("the GPU cannot be used ({})", error.what()));
  }
  provide_memory(DROPLESS_CUDA_DEVICE, memory);
}

nlohmann::ordered_json describe_device() {
  cudaDeviceProp properties{};
  int driver = 0;
  if (!no_gpu_because().empty() || cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess) {
    return nullptr;
  }
  return {{"gpu", properties.name},
          {"compute_capability", fmt::format("{}.{}", properties.major, properties.minor)},
          {"multiprocessors", properties.multiProcessorCount},
          {"memory_mib", properties.totalGlobalMem >> 20},
          {"driver_serves_cuda", version_text(driver)},
          {"cuda_runtime", version_text(CUDART_VERSION)}};
}

const dropless_implementation& cuda_implementation() {
  if (const std::string why = no_gpu_because(); !why.empty()) {
    throw UsageError(fmt::format("implementation 'cuda' cannot run here: {}", why));
  }
  return cuda::implementation();
}

}  // namespace dropless::conformance
