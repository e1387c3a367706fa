// SPDX-License-Identifier: Apache-2.0
// What the tests of the CPU implementation share: tensors with memory, calls, random numbers.
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/dtype.h>
#include <dropless/formats/tensor_view.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "optimized/cpu/implementation.h"
#include "optimized/cpu/simd.h"

namespace dropless::cpu::testing {

using Index = std::int64_t;
using Shape = std::vector<Index>;

// A dense tensor; `gap` elements between rows of the last axis belong to nobody.
class Array {
 public:
  Array(dropless_dtype dtype, const Shape& shape, Index gap = 0) {
    tensor_.struct_size = sizeof tensor_;
    tensor_.struct_version = DROPLESS_STRUCT_VERSION;
    tensor_.dtype = dtype;
    tensor_.rank = static_cast<std::int32_t>(shape.size());
    Index stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      tensor_.shape[axis] = shape[axis];
      tensor_.strides[axis] = stride;
      stride *= shape[axis] + (axis + 1 == shape.size() ? gap : 0);
    }
    bytes_.assign(static_cast<std::size_t>(stride * element_bytes(dtype)), std::byte{0xA5});
    tensor_.data = bytes_.data();
  }
  Array(Array&& other) noexcept : bytes_(std::move(other.bytes_)), tensor_(other.tensor_) {}
  Array(const Array& other) : bytes_(other.bytes_), tensor_(other.tensor_) {
    tensor_.data = bytes_.data();
  }
  Array& operator=(const Array& other) {
    bytes_ = other.bytes_;
    tensor_ = other.tensor_;
    tensor_.data = bytes_.data();
    return *this;
  }

  const dropless_tensor* get() const { return &tensor_; }
  dropless_tensor& raw() { return tensor_; }
  TensorView view() const { return TensorView(tensor_); }
  Index size() const { return view().size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  Array& set(const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (is_floating_point(tensor_.dtype)) {
        view().store_flat(values[i], static_cast<Index>(i));
      } else {
        view().store_integer_flat(static_cast<Index>(values[i]), static_cast<Index>(i));
      }
    }
    return *this;
  }
  Array& fill(double value) {
    return set(std::vector<double>(static_cast<std::size_t>(size()), value));
  }
  Array& random(unsigned seed, double scale = 1) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0, scale);
    std::vector<double> values(static_cast<std::size_t>(size()));
    for (double& value : values) value = normal(engine);
    return set(values);
  }
  Array& random_bytes(unsigned seed, int below = 256) {
    std::mt19937 engine(seed);
    std::uniform_int_distribution<int> any(0, below - 1);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(any(engine));
    return *this;
  }
  double at(Index flat) const { return view().load_flat(flat); }
  std::vector<double> values() const {
    std::vector<double> all;
    for (Index i = 0; i < size(); ++i) all.push_back(at(i));
    return all;
  }

 private:
  std::vector<std::byte> bytes_;
  dropless_tensor tensor_ = {};
};

template <class Args>
Args make_args() {
  Args args = {};
  args.struct_size = sizeof args;
  args.struct_version = DROPLESS_STRUCT_VERSION;
  return args;
}

struct Outcome {
  dropless_status status;
  std::string message, path;
};

// Calls an operation of the table.
template <class Args>
Outcome perform(dropless_status (*operation)(void*, dropless_call*, Args*), Args& args,
                int threads = 2) {
  auto call = make_args<dropless_call>();
  call.threads = threads;
  const dropless_status status = operation(implementation().context, &call, &args);
  return {status, call.message, call.path};
}

inline dropless_operand operand(const Array& values) {
  auto result = make_args<dropless_operand>();
  result.values = values.get();
  return result;
}

inline dropless_route_settings route_settings(Index experts, Index top_k, int score) {
  auto s = make_args<dropless_route_settings>();
  s.num_experts = experts;
  s.top_k = top_k;
  s.score_function = score;
  s.renormalize_eps = 1e-20;
  s.scaling_factor = 1;
  return s;
}

// Random ids, K different ones in each token.
inline Array random_ids(Index tokens, Index top_k, Index experts, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<double> values;
  std::vector<Index> all;
  for (Index e = 0; e < experts; ++e) all.push_back(e);
  for (Index t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), engine);
    values.insert(values.end(), all.begin(), all.begin() + top_k);
  }
  Array ids(DROPLESS_I32, {tokens, top_k});
  return ids.set(values);
}

// Restores the instruction set at the end of a test.
class WithIsa {
 public:
  explicit WithIsa(Isa most) { limit_isa(most); }
  ~WithIsa() { limit_isa(Isa::avx512); }
  WithIsa(const WithIsa&) = delete;
  WithIsa& operator=(const WithIsa&) = delete;
};

}  // namespace dropless::cpu::testing
