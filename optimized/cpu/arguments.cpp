// SPDX-License-Identifier: Apache-2.0
// Checks of tensors and zones, with messages that name the argument.
#include "optimized/cpu/arguments.h"

#include <dropless/formats/dtype.h>

namespace dropless::cpu {
namespace {

std::string shape_text(const Index* extents, std::size_t rank) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (axis != 0) text += ", ";
    text += extents[axis] == any ? "*" : std::to_string(extents[axis]);
  }
  return text + "]";
}

[[noreturn]] void refuse_tensor(const char* name, const std::string& why) {
  refuse(std::string(name) + ": " + why);
}

}  // namespace

void refuse(std::string message) {
  throw Refusal{DROPLESS_INVALID_ARGUMENT, std::move(message)};
}

Tensor tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
              std::initializer_list<Index> shape) {
  const dropless_tensor source = read_struct(given, name);
  if (source.memory_space != DROPLESS_HOST) refuse_tensor(name, "not in host memory");
  if (source.rank != static_cast<std::int32_t>(shape.size())) {
    refuse_tensor(
        name, "rank " + std::to_string(source.rank) + ", expected " + std::to_string(shape.size()));
  }
  Tensor result;
  result.data = static_cast<std::byte*>(source.data);
  result.dtype = source.dtype;
  result.rank = source.rank;
  result.element = element_bytes(source.dtype);
  result.given = true;
  if (result.element == 0 || (dtypes.size() != 0 && std::find(dtypes.begin(), dtypes.end(),
                                                              source.dtype) == dtypes.end())) {
    refuse_tensor(name, "dtype " + std::to_string(source.dtype) + " is not allowed here");
  }
  std::size_t axis = 0;
  for (const Index expected : shape) {
    const Index extent = source.shape[axis];
    if (extent < 0 || (expected != any && extent != expected)) {
      refuse_tensor(name, "shape " + shape_text(source.shape, shape.size()) + ", expected " +
                              shape_text(shape.begin(), shape.size()));
    }
    result.shape[axis] = extent;
    result.strides[axis] = source.strides[axis];
    ++axis;
  }
  if (result.size() > 0 && result.data == nullptr) refuse_tensor(name, "null data");
  return result;
}

Tensor optional_tensor(const dropless_tensor* given, const char* name, Dtypes dtypes,
                       std::initializer_list<Index> shape) {
  return given == nullptr ? Tensor{} : tensor(given, name, dtypes, shape);
}

std::vector<Index> integer_values(const Tensor& vector) {
  std::vector<Index> values(static_cast<std::size_t>(vector.shape[0]));
  for (Index i = 0; i < vector.shape[0]; ++i) {
    values[static_cast<std::size_t>(i)] = vector.integer(i);
  }
  return values;
}

Zones read_zones(const dropless_tensor* offsets, const dropless_tensor* counts, Index rows,
                 Index groups) {
  Zones zones;
  if (offsets == nullptr) {
    zones.offsets = {0, rows};
  } else {
    const Index length = groups == any ? any : groups + 1;
    const Tensor given = tensor(offsets, "offsets", {DROPLESS_I64}, {length});
    refuse_if(given.shape[0] < 1, "offsets: empty");
    zones.offsets = integer_values(given);
  }
  const Index count = static_cast<Index>(zones.offsets.size()) - 1;
  refuse_if(zones.offsets[0] != 0, "offsets: do not begin at 0");
  for (Index g = 0; g < count; ++g) refuse_if(zones.end(g) < zones.first(g), "offsets: falling");
  refuse_if(zones.rows() > rows, "offsets: beyond the buffer");
  zones.real_end.assign(zones.offsets.begin() + 1, zones.offsets.end());
  if (counts != nullptr) {
    const std::vector<Index> real =
        integer_values(tensor(counts, "counts", {DROPLESS_I64}, {count}));
    for (Index g = 0; g < count; ++g) {
      const Index here = real[static_cast<std::size_t>(g)];
      refuse_if(here < 0 || here > zones.end(g) - zones.first(g), "counts: outside their zone");
      zones.real_end[static_cast<std::size_t>(g)] = zones.first(g) + here;
    }
  }
  return zones;
}

}  // namespace dropless::cpu
