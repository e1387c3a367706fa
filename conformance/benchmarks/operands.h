// SPDX-License-Identifier: Apache-2.0
// Memory and calls of the benchmarks: owned tensors filled with random data, one call that must
// succeed, and a loop split over threads for the peers.
#pragma once

#include <dropless/contract.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/judge/buffers.h"

namespace dropless::conformance {

// Pages of 4 KiB cost more than the copies themselves where rows lie apart and a virtual machine
// translates every address twice; who trains asks for huge ones too.
enum class Pages { as_given, huge };

// A contiguous tensor that owns its memory, page-aligned, without the guards of the conformance
// buffers.
class BenchTensor {
 public:
  BenchTensor(dropless_dtype dtype, Shape shape, Pages pages = Pages::as_given)
      : size_(static_cast<std::size_t>(element_count(shape)) * dtype_bytes(dtype)) {
    constexpr std::size_t huge = std::size_t{2} << 20;
    const std::size_t alignment = pages == Pages::huge ? huge : 4096;
    const std::size_t rounded = (std::max<std::size_t>(size_, 1) + alignment - 1) / alignment;
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded * alignment)));
    if (!bytes_) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    // Advice: a system that has none gives small ones.
    if (pages == Pages::huge) madvise(bytes_.get(), rounded * alignment, MADV_HUGEPAGE);
#endif
    std::memset(bytes_.get(), 0, rounded * alignment);
    tensor_.struct_size = sizeof tensor_;
    tensor_.struct_version = DROPLESS_STRUCT_VERSION;
    tensor_.dtype = dtype;
    tensor_.memory_space = DROPLESS_HOST;
    tensor_.rank = static_cast<std::int32_t>(shape.size());
    Index stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      tensor_.shape[i] = shape[i];
      tensor_.strides[i] = stride;
      stride *= shape[i];
    }
    tensor_.data = bytes_.get();
  }
  BenchTensor(const BenchTensor&) = delete;
  BenchTensor& operator=(const BenchTensor&) = delete;

  [[nodiscard]] const dropless_tensor* tensor() const {
    return &tensor_;
  }
  template <class T>
  [[nodiscard]] T* as() {
    return reinterpret_cast<T*>(bytes_.get());
  }
  [[nodiscard]] std::size_t bytes() const {
    return size_;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Free> bytes_;
  dropless_tensor tensor_{};
};

inline std::shared_ptr<BenchTensor> bench_tensor(dropless_dtype dtype, Shape shape,
                                                 Pages pages = Pages::as_given) {
  return std::make_shared<BenchTensor>(dtype, std::move(shape), pages);
}

inline void fill_normal(BenchTensor& tensor, Random random) {
  const Index n = static_cast<Index>(tensor.bytes() / dtype_bytes(tensor.tensor()->dtype));
  // A cycle of a prime length keeps the set-up short without making neighbouring blocks alike.
  std::vector<float> cycle(65521);
  for (float& x : cycle) x = static_cast<float>(random.normal());
  for (Index i = 0; i < n; ++i) {
    const float x = cycle[static_cast<std::size_t>(i) % cycle.size()];
    if (tensor.tensor()->dtype == DROPLESS_FP32) {
      tensor.as<float>()[i] = x;
    } else {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &x, sizeof bits);
      tensor.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

template <class Args>
void call_operation(const dropless_implementation& implementation, int threads,
                    dropless_status (*entry)(void*, dropless_call*, Args*), Args& args) {
  dropless_call call{};
  call.struct_size = sizeof call;
  call.struct_version = DROPLESS_STRUCT_VERSION;
  call.threads = threads;
  if (entry(implementation.context, &call, &args) != DROPLESS_OK) {
    throw std::runtime_error(std::string(call.message));
  }
}

// body(first, last) on `threads` threads over [0, n).
template <class Body>
void split(Index n, int threads, Body body) {
  if (threads <= 1) {
    body(Index{0}, n);
    return;
  }
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([=] { body(n * i / threads, n * (i + 1) / threads); });
  }
}

}  // namespace dropless::conformance
