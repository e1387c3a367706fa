// SPDX-License-Identifier: Apache-2.0
// Tensors of our own and views of the caller's, for operations that are made of other operations.
#pragma once

#include <memory>

#include "optimized/cpu/arguments.h"

namespace dropless::cpu {

// A dense descriptor over memory of somebody else.
[[nodiscard]] dropless_tensor describe(void* data, dropless_dtype dtype,
                                       std::initializer_list<Index> shape);
// The descriptor of a checked tensor.
[[nodiscard]] dropless_tensor describe(const Tensor& tensor);
// The same elements as one group of a stack: [rows, columns] becomes [1, rows, columns].
[[nodiscard]] dropless_tensor stacked(const Tensor& tensor);

// A dense tensor that owns its memory. The descriptor moves with the object.
class Buffer {
 public:
  Buffer() = default;
  Buffer(dropless_dtype dtype, std::initializer_list<Index> shape);

  [[nodiscard]] const dropless_tensor* get() const { return &tensor_; }
  [[nodiscard]] const dropless_tensor& operator*() const { return tensor_; }
  template <class T>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  [[nodiscard]] Index size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  dropless_tensor tensor_ = {};
  Index size_ = 0;
};

}  // namespace dropless::cpu
