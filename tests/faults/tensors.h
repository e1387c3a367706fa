// SPDX-License-Identifier: Apache-2.0
// What faults do with tensors: change them in place, or hand in a changed copy instead. Anything
// that is no readable host tensor is passed on as it is, so that refusals stay refusals.
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/tensor_view.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace dropless::faults {

using Index = std::int64_t;

// A host tensor with a known dtype, a sane shape and data wherever it has elements.
bool is_readable(const dropless_tensor* tensor);
// A tensor by which something can be read or written: elements or not.
inline TensorView view(const dropless_tensor* tensor) {
  return TensorView(*tensor);
}
inline bool has_elements(const dropless_tensor* tensor) {
  return is_readable(tensor) && view(tensor).size() > 0;
}

// value = change(value, row-major index), for every element; nothing for what is not readable.
template <class Change>
void each(const dropless_tensor* tensor, Change change) {
  if (!is_readable(tensor)) return;
  const TensorView elements(*tensor);
  for (Index i = 0; i < elements.size(); ++i) {
    elements.store_flat(change(elements.load_flat(i), i), i);
  }
}
// The same with raw bits or integers.
template <class Change>
void each_integer(const dropless_tensor* tensor, Change change) {
  if (!is_readable(tensor)) return;
  const TensorView elements(*tensor);
  for (Index i = 0; i < elements.size(); ++i) {
    elements.store_integer_flat(change(elements.load_integer_flat(i), i), i);
  }
}

std::vector<double> values_of(const dropless_tensor* tensor);
std::vector<Index> integers_of(const dropless_tensor* tensor);

// A contiguous copy of a tensor, to be changed and handed in (or written to) instead of it.
class Copy {
 public:
  explicit Copy(const dropless_tensor* source);
  // The same values as another dtype; floating-point formats only.
  Copy(const dropless_tensor* source, dropless_dtype dtype);
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  // The copy; the source itself where it could not be read.
  [[nodiscard]] const dropless_tensor* tensor() const { return readable_ ? &copy_ : source_; }
  [[nodiscard]] bool readable() const { return readable_; }
  [[nodiscard]] TensorView elements() const { return TensorView(copy_); }
  // Writes the copy's values into the source, or somewhere else of the same shape.
  void write_back() const { write_to(source_); }
  void write_to(const dropless_tensor* target) const;

 private:
  const dropless_tensor* source_;
  bool readable_;
  dropless_tensor copy_{};
  std::vector<std::byte> bytes_;
};

// A cache by address: what was first seen there, as long as shape and dtype stay the same. Another
// tensor at the address takes the entry over.
class Remembered {
 public:
  // The tensor itself where it has no elements.
  const dropless_tensor* of(const dropless_tensor* tensor);
  const dropless_tensor* anew(const dropless_tensor* tensor);

 private:
  std::map<const void*, Copy> copies_;
};

// An operand with other values or scales.
dropless_operand with_values(const dropless_operand& operand, const dropless_tensor* values);
dropless_operand with_scales(const dropless_operand& operand, const dropless_tensor* scales);

// Rows of a group: first .. real_end hold data, real_end .. end is padding.
struct Zone {
  Index first, real_end, end;
};
// Of a call that succeeded. Null offsets: all rows are one group.
std::vector<Zone> zones_of(const dropless_tensor* offsets, const dropless_tensor* counts,
                           Index rows);

double bf16(double value);

}  // namespace dropless::faults
