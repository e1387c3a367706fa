// SPDX-License-Identifier: Apache-2.0
// Copies of tensors, and zones.
#include "tests/faults/tensors.h"

namespace dropless::faults {

bool is_readable(const dropless_tensor* tensor) {
  if (tensor == nullptr || tensor->struct_size < sizeof(dropless_tensor)) return false;
  if (tensor->memory_space != DROPLESS_HOST || element_bytes(tensor->dtype) == 0) return false;
  if (tensor->rank < 0 || tensor->rank > DROPLESS_MAX_RANK) return false;
  Index size = 1;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    if (tensor->shape[axis] < 0 || tensor->shape[axis] > Index{1} << 31) return false;
    size *= tensor->shape[axis];
  }
  return size == 0 || tensor->data != nullptr;
}

std::vector<double> values_of(const dropless_tensor* tensor) {
  std::vector<double> values;
  if (!is_readable(tensor)) return values;
  const TensorView elements(*tensor);
  for (Index i = 0; i < elements.size(); ++i) values.push_back(elements.load_flat(i));
  return values;
}

std::vector<Index> integers_of(const dropless_tensor* tensor) {
  std::vector<Index> values;
  if (!is_readable(tensor)) return values;
  const TensorView elements(*tensor);
  for (Index i = 0; i < elements.size(); ++i) values.push_back(elements.load_integer_flat(i));
  return values;
}

Copy::Copy(const dropless_tensor* source) : Copy(source, source == nullptr ? 0 : source->dtype) {}

Copy::Copy(const dropless_tensor* source, dropless_dtype dtype)
    : source_(source), readable_(is_readable(source) && element_bytes(dtype) > 0) {
  if (!readable_) return;
  copy_ = *source;
  copy_.dtype = dtype;
  Index stride = 1;
  for (int axis = copy_.rank - 1; axis >= 0; --axis) {
    copy_.strides[axis] = stride;
    stride *= copy_.shape[axis];
  }
  bytes_.resize(static_cast<std::size_t>(stride * element_bytes(dtype)) + 1);
  copy_.data = bytes_.data();
  const TensorView from(*source), to(copy_);
  for (Index i = 0; i < to.size(); ++i) {
    if (dtype == source->dtype) {
      to.store_integer_flat(from.load_integer_flat(i), i);
    } else {
      to.store_flat(from.load_flat(i), i);
    }
  }
}

void Copy::write_to(const dropless_tensor* target) const {
  if (!readable_ || !is_readable(target)) return;
  const TensorView from(copy_), to(*target);
  for (Index i = 0; i < from.size(); ++i) {
    if (copy_.dtype == target->dtype) {
      to.store_integer_flat(from.load_integer_flat(i), i);
    } else {
      to.store_flat(from.load_flat(i), i);
    }
  }
}

dropless_operand with_values(const dropless_operand& operand, const dropless_tensor* values) {
  dropless_operand changed = operand;
  changed.values = values;
  return changed;
}

dropless_operand with_scales(const dropless_operand& operand, const dropless_tensor* scales) {
  dropless_operand changed = operand;
  changed.scales = scales;
  return changed;
}

std::vector<Zone> zones_of(const dropless_tensor* offsets, const dropless_tensor* counts,
                           Index rows) {
  if (!is_readable(offsets)) return {{0, rows, rows}};
  const std::vector<Index> ends = integers_of(offsets), real = integers_of(counts);
  std::vector<Zone> zones;
  for (std::size_t g = 0; g + 1 < ends.size(); ++g) {
    zones.push_back({ends[g], g < real.size() ? ends[g] + real[g] : ends[g + 1], ends[g + 1]});
  }
  return zones;
}

double bf16(double value) {
  return round_to(DROPLESS_BF16, value);
}

const dropless_tensor* Remembered::of(const dropless_tensor* tensor) {
  if (!has_elements(tensor)) return tensor;
  const dropless_tensor* copy = copies_.try_emplace(tensor->data, tensor).first->second.tensor();
  bool same = copy->dtype == tensor->dtype && copy->rank == tensor->rank;
  for (int axis = 0; same && axis < copy->rank; ++axis) {
    same = copy->shape[axis] == tensor->shape[axis];
  }
  return same ? copy : anew(tensor);
}

const dropless_tensor* Remembered::anew(const dropless_tensor* tensor) {
  copies_.erase(tensor->data);
  return copies_.try_emplace(tensor->data, tensor).first->second.tensor();
}

}  // namespace dropless::faults
