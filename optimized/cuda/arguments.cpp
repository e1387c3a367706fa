// SPDX-License-Identifier: Apache-2.0
// Checks of tensors, with messages that name the argument.
#include "optimized/cuda/arguments.h"

#include <dropless/formats/dtype.h>

namespace dropless::cuda {
namespace {

std::string shape_text(const Index* extents, std::size_t rank) {
  std::string text;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    text += (axis == 0 ? "" : ", ") + (extents[axis] == any ? "*" : std::to_string(extents[axis]));
  }
  return "[" + text + "]";
}

}  // namespace

bool Tensor::rows_aligned_to(Index bytes) const {
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) != 0)
    return false;
  for (int axis = 0; axis + 1 < rank; ++axis) {
    if (shape[axis] > 1 && strides[axis] * element % bytes != 0) return false;
  }
  return has_dense_rows();
}

Tensor tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
              std::initializer_list<Index> shape) {
  const dropless_tensor source = read_struct(given, name);
  const auto wrong = [&](const std::string& why) { refuse(std::string(name) + ": " + why); };
  if (source.memory_space != DROPLESS_CUDA_DEVICE) wrong("not in device memory");
  if (source.rank != static_cast<std::int32_t>(shape.size())) {
    wrong("rank " + std::to_string(source.rank) + ", expected " + std::to_string(shape.size()));
  }
  Tensor result;
  result.given = true;
  result.data = static_cast<std::byte*>(source.data);
  result.dtype = source.dtype;
  result.rank = source.rank;
  result.element = element_bytes(source.dtype);
  const bool known = result.element != 0;
  const bool allowed =
      dtypes.size() == 0 || std::find(dtypes.begin(), dtypes.end(), source.dtype) != dtypes.end();
  if (!known || !allowed) wrong("dtype " + std::to_string(source.dtype) + " is not allowed here");
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const Index extent = source.shape[axis], expected = shape.begin()[axis];
    if (extent < 0 || (expected != any && extent != expected)) {
      wrong("shape " + shape_text(source.shape, shape.size()) + ", expected " +
            shape_text(shape.begin(), shape.size()));
    }
    result.shape[axis] = extent;
    result.strides[axis] = source.strides[axis];
  }
  if (result.size() > 0 && result.data == nullptr) wrong("null data");
  return result;
}

Tensor optional_tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
                       std::initializer_list<Index> shape) {
  return given == nullptr ? Tensor{} : tensor(given, name, dtypes, shape);
}

dropless_tensor describe(void* data, dropless_dtype dtype, std::initializer_list<Index> shape) {
  dropless_tensor dense = {};
  dense.struct_size = sizeof dense;
  dense.struct_version = DROPLESS_STRUCT_VERSION;
  dense.data = data;
  dense.dtype = dtype;
  dense.memory_space = DROPLESS_CUDA_DEVICE;
  dense.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dense.shape);
  Index stride = 1;
  for (std::int32_t axis = dense.rank; axis-- > 0;) {
    dense.strides[axis] = stride;
    stride *= dense.shape[axis];
  }
  return dense;
}

}  // namespace dropless::cuda
