// SPDX-License-Identifier: Apache-2.0
// Calls through the contract for tests: tensors that own their memory, with canaries around every
// row, and checks that every operation has to pass.
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/tensor_view.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <string>

#include "reference/implementation.h"
#include "tests/reference/route_setup.h"

namespace dropless::reference::testing {

inline constexpr std::byte kCanary{0xA5};

// A host tensor with `gap` canary elements after every row of the last axis.
class HostTensor {
 public:
  HostTensor(std::string label, dropless_dtype dtype, std::vector<Index> shape, bool is_output,
             Index gap)
      : name(std::move(label)), is_output_(is_output) {
    tensor.struct_size = sizeof tensor;
    tensor.struct_version = DROPLESS_STRUCT_VERSION;
    tensor.dtype = dtype;
    tensor.rank = static_cast<std::int32_t>(shape.size());
    Index stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      tensor.shape[i] = shape[i];
      tensor.strides[i] = stride;
      stride *= shape[i];
      if (i + 1 == shape.size()) stride += gap;
    }
    memory_.assign(at(stride) * static_cast<std::size_t>(element_bytes(dtype)), kCanary);
    tensor.data = view().size() == 0 ? nullptr : memory_.data();
  }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  [[nodiscard]] TensorView view() const { return TensorView(tensor); }
  operator const dropless_tensor*() const { return &tensor; }  // NOLINT: reads like an argument
  [[nodiscard]] bool is_output() const { return is_output_; }

  HostTensor& set(Input values) {
    EXPECT_EQ(static_cast<Index>(values.size()), view().size()) << name;
    for (Index i = 0; i < view().size(); ++i) {
      if (is_integer(tensor.dtype) || tensor.dtype == DROPLESS_E8M0) {
        view().store_integer_flat(static_cast<Index>(values[at(i)]), i);
      } else {
        view().store_flat(values[at(i)], i);
      }
    }
    return *this;
  }
  HostTensor& set(std::initializer_list<double> values) {
    return set(Input(values.begin(), values.size()));
  }
  [[nodiscard]] Doubles values() const {
    Doubles result;
    for (Index i = 0; i < view().size(); ++i) result.push_back(view().load_flat(i));
    return result;
  }
  // Raw elements: ids, codes, or the bits of floating-point values.
  [[nodiscard]] std::vector<Index> integers() const {
    std::vector<Index> result;
    for (Index i = 0; i < view().size(); ++i) result.push_back(view().load_integer_flat(i));
    return result;
  }
  [[nodiscard]] const std::vector<std::byte>& memory() const { return memory_; }

  dropless_tensor tensor{};
  std::string name;

 private:
  bool is_output_;
  std::vector<std::byte> memory_;
};

// One operation with a legal set of arguments. A test spoils it by name.
class Fixture {
 public:
  explicit Fixture(Index gap) : gap_(gap) {
    call.struct_size = sizeof call;
    call.struct_version = DROPLESS_STRUCT_VERSION;
  }
  virtual ~Fixture() = default;
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  virtual dropless_status run() = 0;

  [[nodiscard]] const dropless_implementation& table() const { return implementation(profile); }
  [[nodiscard]] HostTensor& operator[](const std::string& name) {
    for (HostTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::logic_error("no tensor " + name);
  }
  [[nodiscard]] std::string message() const { return call.message; }

  dropless_profile profile = default_profile();
  dropless_call call{};
  std::deque<HostTensor> tensors;

 protected:
  HostTensor& input(const std::string& name, dropless_dtype dtype, std::vector<Index> shape,
                    Input values) {
    return tensors.emplace_back(name, dtype, std::move(shape), false, gap_).set(values);
  }
  HostTensor& input(const std::string& name, dropless_dtype dtype, std::vector<Index> shape,
                    std::initializer_list<double> values) {
    return input(name, dtype, std::move(shape), Input(values.begin(), values.size()));
  }
  HostTensor& output(const std::string& name, dropless_dtype dtype, std::vector<Index> shape) {
    return tensors.emplace_back(name, dtype, std::move(shape), true, gap_);
  }
  HostTensor& in_out(const std::string& name, dropless_dtype dtype, std::vector<Index> shape,
                     std::initializer_list<double> values) {
    return output(name, dtype, std::move(shape)).set(values);
  }
  template <typename Args>
  static Args arguments() {
    Args args{};
    args.struct_size = sizeof args;
    args.struct_version = DROPLESS_STRUCT_VERSION;
    return args;
  }

 private:
  Index gap_;
};

// `spoil` makes a legal call illegal: it is refused with a message that names the culprit, and no
// byte of any tensor changes. The same call before spoiling is the control.
template <typename Operation>
void expect_spoiled_is_refused(const std::function<void(Operation&)>& spoil,
                               const std::string& culprit) {
  Operation control(0);
  ASSERT_EQ(control.run(), DROPLESS_OK) << culprit << ": " << control.message();
  Operation spoiled(0);
  spoil(spoiled);
  std::vector<std::vector<std::byte>> before;
  for (const HostTensor& tensor : spoiled.tensors) before.push_back(tensor.memory());
  EXPECT_EQ(spoiled.run(), DROPLESS_INVALID_ARGUMENT) << culprit;
  EXPECT_NE(spoiled.message().find(culprit), std::string::npos)
      << "message '" << spoiled.message() << "' does not name '" << culprit << "'";
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(spoiled.tensors[i].memory(), before[i])
        << spoiled.tensors[i].name << " changed although the call was refused: " << culprit;
  }
}

// Every tensor: another dtype, rank, a shorter axis, no data, device memory, a short struct are all
// refused. `free_axes` lists "name:axis" where a shorter axis is legal.
template <typename Operation>
void expect_tensors_are_checked(const std::vector<std::string>& free_axes = {}) {
  const std::size_t count = Operation(0).tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = Operation(0).tensors[i].name;
    const auto spoiled = [&](const std::function<void(dropless_tensor&)>& change,
                             const std::string& culprit) {
      SCOPED_TRACE(name + " " + culprit);
      expect_spoiled_is_refused<Operation>([&](Operation& o) { change(o.tensors[i].tensor); },
                                           culprit);
    };
    spoiled([](dropless_tensor& t) { t.dtype = 99; }, name);
    spoiled([](dropless_tensor& t) { t.dtype = DROPLESS_FP16; }, "dtype");
    spoiled([](dropless_tensor& t) { t.rank = 0; }, name);
    spoiled([](dropless_tensor& t) { t.data = nullptr; }, name);
    spoiled([](dropless_tensor& t) { t.memory_space = DROPLESS_CUDA_DEVICE; }, name);
    spoiled([](dropless_tensor& t) { t.struct_size = 40; }, name);
    spoiled([](dropless_tensor& t) { t.shape[0] = -5; }, "");
    for (int axis = 0; axis < Operation(0).tensors[i].tensor.rank; ++axis) {
      const std::string label = name + ":" + std::to_string(axis);
      if (std::find(free_axes.begin(), free_axes.end(), label) != free_axes.end()) continue;
      spoiled([&](dropless_tensor& t) { --t.shape[axis]; }, "");
    }
  }
}

// GENERAL-6: gaps between rows change no bit of the results, and are not written.
template <typename Operation>
void expect_strides_are_honoured() {
  Operation dense(0), gapped(3);
  std::vector<std::vector<std::byte>> before;
  for (const HostTensor& t : gapped.tensors) before.push_back(t.memory());
  ASSERT_EQ(dense.run(), DROPLESS_OK) << dense.message();
  ASSERT_EQ(gapped.run(), DROPLESS_OK) << gapped.message();
  EXPECT_STREQ(dense.call.path, "reference");
  EXPECT_STREQ(dense.call.message, "");
  for (std::size_t i = 0; i < dense.tensors.size(); ++i) {
    EXPECT_EQ(dense.tensors[i].integers(), gapped.tensors[i].integers()) << dense.tensors[i].name;
    const HostTensor& t = gapped.tensors[i];
    EXPECT_TRUE(t.is_output() || t.memory() == before[i]) << "input " << t.name << " changed";
    const TensorView view = t.view();
    const Index last = view.size() == 0 ? 1 : view.shape(view.rank() - 1);
    const Index rows = view.size() / last;
    const Index gap_bytes = 3 * element_bytes(view.dtype());
    for (Index row = 0; row < rows; ++row) {
      const std::byte* const gap =
          view.address_flat((row + 1) * last - 1) + element_bytes(view.dtype());
      EXPECT_EQ(std::count(gap, gap + gap_bytes, kCanary), gap_bytes)
          << t.name << ": the gap after row " << row << " was written";
    }
  }
}

}  // namespace dropless::reference::testing
