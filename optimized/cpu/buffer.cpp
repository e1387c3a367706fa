// SPDX-License-Identifier: Apache-2.0
// Descriptors of tensors and their memory.
#include "optimized/cpu/buffer.h"

#include <dropless/formats/dtype.h>

namespace dropless::cpu {

dropless_tensor describe(void* data, dropless_dtype dtype, std::initializer_list<Index> shape) {
  dropless_tensor tensor = {};
  tensor.struct_size = sizeof tensor;
  tensor.struct_version = DROPLESS_STRUCT_VERSION;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.memory_space = DROPLESS_HOST;
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  Index stride = 1;
  for (std::int32_t axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

dropless_tensor describe(const Tensor& tensor) {
  dropless_tensor result = describe(tensor.data, tensor.dtype, {});
  result.rank = tensor.rank;
  std::copy_n(tensor.shape, tensor.rank, result.shape);
  std::copy_n(tensor.strides, tensor.rank, result.strides);
  return result;
}

dropless_tensor stacked(const Tensor& tensor) {
  dropless_tensor result = describe(tensor.data, tensor.dtype, {});
  result.rank = tensor.rank + 1;
  result.shape[0] = 1;
  result.strides[0] = tensor.shape[0] * tensor.strides[0];
  std::copy_n(tensor.shape, tensor.rank, result.shape + 1);
  std::copy_n(tensor.strides, tensor.rank, result.strides + 1);
  return result;
}

Buffer::Buffer(dropless_dtype dtype, std::initializer_list<Index> shape) : size_(1) {
  for (const Index extent : shape) size_ *= extent;
  const std::size_t bytes = static_cast<std::size_t>(size_ * element_bytes(dtype));
  memory_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1));
  tensor_ = describe(memory_.get(), dtype, shape);
}

}  // namespace dropless::cpu
