// SPDX-License-Identifier: Apache-2.0
// Faults about what an operation refuses and what it reports, the same for every operation.
#pragma once

#include "tests/faults/planted.h"
#include "tests/faults/tensors.h"

namespace dropless::faults {

// The check is gone: what should have been refused counts as done.
template <auto entry>
void swallow_refusals(Planted& planted) {
  planted.around<entry>([](const auto& next, auto& args) -> dropless_status {
    const dropless_status status = next(args);
    return status == DROPLESS_INVALID_ARGUMENT ? DROPLESS_OK : status;
  });
}

// The output is cleared before the arguments are looked at. `output` picks it from the arguments.
template <auto entry, class Output>
void clear_before_checks(Planted& planted, Output output) {
  planted.around<entry>([output](const auto& next, auto& args) -> dropless_status {
    const dropless_status status = next(args);
    if (status == DROPLESS_INVALID_ARGUMENT) {
      each_integer(output(args), [](Index, Index) { return Index{0}; });
    }
    return status;
  });
}

// Nothing to do is taken for a mistake. `input` picks the tensor that may be empty.
template <auto entry, class Input>
void refuse_empty(Planted& planted, Input input) {
  planted.around<entry>([input](const auto& next, auto& args) -> dropless_status {
    const dropless_tensor* tensor = input(args);
    if (is_readable(tensor) && view(tensor).size() == 0) {
      std::strncpy(next.call()->message, "empty input", sizeof next.call()->message - 1);
      return DROPLESS_INVALID_ARGUMENT;
    }
    return next(args);
  });
}

// Row-major without gaps is assumed, whatever the strides say.
inline dropless_tensor without_strides(const dropless_tensor& tensor) {
  dropless_tensor dense = tensor;
  std::int64_t stride = 1;
  for (int axis = dense.rank - 1; axis >= 0 && axis < DROPLESS_MAX_RANK; --axis) {
    dense.strides[axis] = stride;
    stride *= dense.shape[axis];
  }
  return dense;
}

}  // namespace dropless::faults
