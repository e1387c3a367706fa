// SPDX-License-Identifier: Apache-2.0
// Device tensors of random data, and calls that must succeed.
#include "conformance/benchmarks/device/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "conformance/cases/random.h"
#include "reference/mxfp8.h"

namespace dropless::conformance {
namespace {

// Blocks of a scale keep together, and 132081 = 3 * 7 * 19 * 331 blocks are no whole number of rows
// of any power of two.
constexpr std::size_t block = 32, cycle_blocks = 132081, cycle_length = block * cycle_blocks;
constexpr std::size_t blocks_between_starts = 1021;

std::uint16_t bf16_of(float x) {  // finite, to nearest even
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

std::string failure_of(const char* operation, dropless_status status, const char* message) {
  static constexpr const char* names[] = {
      "OK",           "INVALID_ARGUMENT", "NOT_SUPPORTED", "OVERFLOW",       "OUT_OF_MEMORY",
      "DEVICE_ERROR", "TIMEOUT",          "PEER_LOST",     "INTERNAL_ERROR", "WORKSPACE_TOO_SMALL"};
  const bool known = status >= 0 && static_cast<std::size_t>(status) < std::size(names);
  const std::string_view said(message, strnlen(message, DROPLESS_MESSAGE_BYTES));
  return fmt::format("{}: {}{}{}", operation,
                     known ? names[status] : fmt::format("status {}", status),
                     said.empty() ? "" : ", ", said);
}

}  // namespace

DeviceArray::DeviceArray(DeviceQueue& queue, dropless_dtype dtype, const Shape& shape)
    : queue_(queue), size_(element_count(shape)) {
  tensor_.struct_size = sizeof tensor_;
  tensor_.struct_version = DROPLESS_STRUCT_VERSION;
  tensor_.dtype = dtype;
  tensor_.memory_space = queue.space();
  tensor_.rank = static_cast<std::int32_t>(shape.size());
  Index stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    tensor_.shape[axis] = shape[axis];
    tensor_.strides[axis] = stride;
    stride *= shape[axis];
  }
  tensor_.data = queue_.allocate(std::max<std::size_t>(bytes(), 1));
}

DeviceArray::~DeviceArray() {
  queue_.release(tensor_.data);
}

std::size_t DeviceArray::bytes() const {
  return static_cast<std::size_t>(size_) * dtype_bytes(tensor_.dtype);
}

DeviceBench::DeviceBench(DeviceQueue& queue, const dropless_implementation& table, int threads)
    : queue_(queue), table_(table), threads_(threads) {}

DeviceBench::~DeviceBench() = default;

DeviceTensor DeviceBench::tensor(dropless_dtype dtype, const Shape& shape) {
  auto made = std::make_shared<DeviceArray>(queue_, dtype, shape);
  allocated_bytes_ += made->bytes();
  return made;
}

DeviceTensor DeviceBench::normal(dropless_dtype dtype, const Shape& shape, double deviation) {
  const DeviceTensor& cycle = cycle_of(dtype, deviation);
  const DeviceTensor made = tensor(dtype, shape);
  repeat_cycle(*made, *cycle, next_block() * block * dtype_bytes(dtype));
  return made;
}

DeviceTensor DeviceBench::integers(const Shape& shape, const std::vector<Index>& values) {
  const DeviceTensor made = tensor(DROPLESS_I64, shape);
  if (static_cast<Index>(values.size()) != made->size()) {
    throw std::logic_error("integers: values do not fill the shape");
  }
  queue_.copy_in(made->get()->data, values.data(), made->bytes());
  return made;
}

DeviceCodes DeviceBench::codes(const Shape& shape) {
  if (!code_cycle_.values) {
    cycle_of(DROPLESS_FP32, 1);  // makes the numbers
    std::vector<std::uint8_t> values(cycle_length), scales(cycle_blocks);
    for (std::size_t b = 0; b < cycle_blocks; ++b) {
      const std::span<const float> in(&numbers_[b * block], block);
      double amax = 0;
      for (const float x : in) amax = std::max(amax, std::abs(static_cast<double>(x)));
      scales[b] = reference::scale_byte(amax, DROPLESS_E4M3, DROPLESS_SCALE_RCEIL);
      for (std::size_t i = 0; i < block; ++i) {
        // The numbers of fp32: what bf16 rounds away is far below a step of a code.
        values[b * block + i] =
            reference::encode(static_cast<double>(in[i]), scales[b], DROPLESS_E4M3);
      }
    }
    code_cycle_.values = std::make_shared<DeviceArray>(queue_, DROPLESS_E4M3,
                                                       Shape{static_cast<Index>(cycle_length)});
    code_cycle_.scales = std::make_shared<DeviceArray>(queue_, DROPLESS_E8M0,
                                                       Shape{static_cast<Index>(cycle_blocks)});
    queue_.copy_in(code_cycle_.values->get()->data, values.data(), values.size());
    queue_.copy_in(code_cycle_.scales->get()->data, scales.data(), scales.size());
  }
  Shape blocks = shape;
  if (blocks.back() % static_cast<Index>(block) != 0) {
    throw std::logic_error("codes: rows that are not whole blocks");
  }
  blocks.back() /= static_cast<Index>(block);
  DeviceCodes made{tensor(DROPLESS_E4M3, shape), tensor(DROPLESS_E8M0, blocks)};
  const std::size_t first = next_block();
  repeat_cycle(*made.values, *code_cycle_.values, first * block);
  repeat_cycle(*made.scales, *code_cycle_.scales, first);
  return made;
}

void DeviceBench::settle() {
  dropless_call record = begin_call();
  dropless_status status = DROPLESS_OK;
  if (table_.synchronize != nullptr) {
    dropless_synchronize_args args{};
    args.struct_size = sizeof args;
    args.struct_version = DROPLESS_STRUCT_VERSION;
    status = table_.synchronize(table_.context, &record, &args);
  }
  queue_.wait();  // a lost device is told apart from a refusal
  if (status != DROPLESS_OK) {
    throw OperationFailed(failure_of("reported by synchronize", status, record.message));
  }
}

dropless_call DeviceBench::begin_call() {
  dropless_call record{};
  record.struct_size = sizeof record;
  record.struct_version = DROPLESS_STRUCT_VERSION;
  record.stream = queue_.stream();
  record.threads = threads_;
  if (workspace_) {
    record.workspace = workspace_->get()->data;
    record.workspace_bytes = workspace_->bytes();
  }
  return record;
}

bool DeviceBench::grow_workspace(dropless_call& record) {
  if (record.workspace_required <= record.workspace_bytes) return false;
  if (workspace_) former_workspaces_.push_back(workspace_);
  workspace_ = std::make_shared<DeviceArray>(queue_, DROPLESS_U8,
                                             Shape{static_cast<Index>(record.workspace_required)});
  record = begin_call();
  return true;
}

void DeviceBench::end_call(const char* operation, const dropless_call& record,
                           dropless_status status) {
  if (status != DROPLESS_OK) throw OperationFailed(failure_of(operation, status, record.message));
  const std::string path(record.path, strnlen(record.path, sizeof record.path));
  if (!path.empty() && std::find(paths_.begin(), paths_.end(), path) == paths_.end()) {
    paths_.push_back(path);
  }
}

void DeviceBench::repeat_cycle(const DeviceArray& to, const DeviceArray& cycle,
                               std::size_t first_byte) {
  auto* data = static_cast<std::byte*>(to.get()->data);
  const auto* from = static_cast<const std::byte*>(cycle.get()->data);
  std::size_t at = first_byte;
  for (std::size_t done = 0; done < to.bytes();) {
    const std::size_t piece = std::min(to.bytes() - done, cycle.bytes() - at);
    queue_.copy_within(data + done, from + at, piece);
    done += piece;
    at = 0;
  }
}

std::size_t DeviceBench::next_block() {
  return ++tensors_ * blocks_between_starts % cycle_blocks;
}

const DeviceTensor& DeviceBench::cycle_of(dropless_dtype dtype, double deviation) {
  if (dtype != DROPLESS_FP32 && dtype != DROPLESS_BF16) {
    throw std::logic_error("normal: neither fp32 nor bf16");
  }
  if (numbers_.empty()) {
    Random random(Random::key_of("bench in device memory"));
    numbers_.resize(cycle_length);
    for (float& x : numbers_) x = static_cast<float>(random.normal());
  }
  DeviceTensor& made = cycles_[{dtype, deviation}];
  if (made) return made;
  made = std::make_shared<DeviceArray>(queue_, dtype, Shape{static_cast<Index>(cycle_length)});
  std::vector<float> scaled(numbers_);
  for (float& x : scaled) x *= static_cast<float>(deviation);
  if (dtype == DROPLESS_FP32) {
    queue_.copy_in(made->get()->data, scaled.data(), made->bytes());
    return made;
  }
  std::vector<std::uint16_t> halves;
  for (const float x : scaled) halves.push_back(bf16_of(x));
  queue_.copy_in(made->get()->data, halves.data(), made->bytes());
  return made;
}

}  // namespace dropless::conformance
