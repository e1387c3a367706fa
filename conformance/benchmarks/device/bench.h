// SPDX-License-Identifier: Apache-2.0
// What benchmarks in device memory are made of: tensors of random data on the device and calls of
// the contract's table, which must succeed, now and when the device is waited for.
//
//     DeviceBench bench(*queue, table, 0);
//     const DeviceTensor x = bench.normal(DROPLESS_BF16, {rows, hidden});
//     args.x = x->get();
//     bench.call("activation_forward", table.activation_forward, args);
//     bench.settle();
#pragma once

#include <dropless/contract.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "conformance/adapters/device_queue.h"
#include "conformance/judge/buffers.h"

namespace dropless::conformance {

// An operation did not do what it was asked for; the message says which and why.
struct OperationFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Contiguous, and owns its memory.
class DeviceArray {
 public:
  DeviceArray(DeviceQueue& queue, dropless_dtype dtype, const Shape& shape);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] const dropless_tensor* get() const { return &tensor_; }
  [[nodiscard]] Index size() const { return size_; }  // elements
  [[nodiscard]] std::size_t bytes() const;

 private:
  DeviceQueue& queue_;
  Index size_;
  dropless_tensor tensor_{};
};
using DeviceTensor = std::shared_ptr<DeviceArray>;

// Codes and row-wise scales in linear order (MXFP8-6) of the numbers that `normal` gives.
struct DeviceCodes {
  DeviceTensor values, scales;
};

class DeviceBench {
 public:
  // `threads` becomes dropless_call::threads. All three outlive this object.
  DeviceBench(DeviceQueue& queue, const dropless_implementation& table, int threads);
  ~DeviceBench();
  DeviceBench(const DeviceBench&) = delete;
  DeviceBench& operator=(const DeviceBench&) = delete;

  [[nodiscard]] DeviceQueue& queue() { return queue_; }
  [[nodiscard]] const dropless_implementation& table() const { return table_; }
  // Of the tensors below, ever.
  [[nodiscard]] std::size_t allocated_bytes() const { return allocated_bytes_; }

  DeviceTensor tensor(dropless_dtype dtype, const Shape& shape);  // contents undefined
  // fp32 or bf16, mean 0. Every tensor gets another part of one cycle of numbers, whose length
  // shares no large factor with rows of any width.
  DeviceTensor normal(dropless_dtype dtype, const Shape& shape, double deviation = 1);
  DeviceTensor integers(const Shape& shape, const std::vector<Index>& values);  // i64
  DeviceCodes codes(const Shape& shape);  // E4M3, of normal(DROPLESS_BF16, shape)

  // Throws OperationFailed unless it returns OK, which may need a workspace.
  template <class Args>
  void call(const char* operation, dropless_status (*entry)(void*, dropless_call*, Args*),
            Args& args) {
    dropless_call record = begin_call();
    dropless_status status = entry(table_.context, &record, &args);
    if (status == DROPLESS_WORKSPACE_TOO_SMALL && grow_workspace(record)) {
      status = entry(table_.context, &record, &args);
    }
    end_call(operation, record, status);
  }
  // Waits for the device. Throws OperationFailed for what was refused only there (GENERAL-3).
  void settle();
  // What the calls since the last time said about their code path, each once.
  std::vector<std::string> take_paths() { return std::exchange(paths_, {}); }

 private:
  dropless_call begin_call();
  bool grow_workspace(dropless_call& record);
  void end_call(const char* operation, const dropless_call& record, dropless_status status);
  void repeat_cycle(const DeviceArray& to, const DeviceArray& cycle, std::size_t first_byte);
  std::size_t next_block();
  const DeviceTensor& cycle_of(dropless_dtype dtype, double deviation);

  DeviceQueue& queue_;
  const dropless_implementation& table_;
  int threads_;
  std::size_t allocated_bytes_ = 0;
  std::vector<float> numbers_;  // the cycle, made when it is first needed
  std::map<std::pair<dropless_dtype, double>, DeviceTensor> cycles_;
  DeviceCodes code_cycle_;
  std::size_t tensors_ = 0;
  DeviceTensor workspace_;
  std::vector<DeviceTensor> former_workspaces_;  // recorded calls still point to them
  std::vector<std::string> paths_;
};

}  // namespace dropless::conformance
