// SPDX-License-Identifier: Apache-2.0
// Memory and calls of the benchmarks: owned tensors filled with random data, one call that must
// succeed, and a loop split over threads for the peers.
#pragma once

#include <dropless/contract.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cases/case_run.h"
#include "conformance/judge/buffers.h"

namespace dropless::conformance {

// A contiguous tensor that owns its memory, without the guards of the conformance buffers.
class BenchTensor {
 public:
  BenchTensor(dropless_dtype dtype, Shape shape) {
    bytes_.resize(static_cast<std::size_t>(element_count(shape)) * dtype_bytes(dtype));
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
    tensor_.data = bytes_.data();
  }
  BenchTensor(const BenchTensor&) = delete;
  BenchTensor& operator=(const BenchTensor&) = delete;

  [[nodiscard]] const dropless_tensor* tensor() const { return &tensor_; }
  template <class T>
  [[nodiscard]] T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  dropless_tensor tensor_{};
};

inline std::shared_ptr<BenchTensor> bench_tensor(dropless_dtype dtype, Shape shape) {
  return std::make_shared<BenchTensor>(dtype, std::move(shape));
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
