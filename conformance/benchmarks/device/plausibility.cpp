// SPDX-License-Identifier: Apache-2.0
// Did what was timed do anything? Whether it is right, the cases judge.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/judge/elements.h"

namespace dropless::conformance {
namespace {

// Larger outputs are looked at in pieces, evenly spread, the first and the last one among them.
constexpr Index whole_elements = Index{1} << 22;
constexpr Index pieces = 256, piece_elements = Index{1} << 12;

struct Seen {
  Index elements = 0, written = 0;
  double first = 0;
  bool differ = false;
};

void look(dropless_dtype dtype, const std::vector<std::uint8_t>& bytes, Seen& seen) {
  const std::size_t width = dtype_bytes(dtype);
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    ++seen.elements;
    const std::uint8_t* element = &bytes[at];
    if (!is_float(dtype)) {
      if (!std::all_of(element, element + width, [](std::uint8_t b) { return b == 0xFF; })) {
        ++seen.written;
      }
      continue;
    }
    const double value = decode(dtype, element);
    if (!std::isfinite(value)) continue;
    if (seen.written++ == 0) seen.first = value;
    seen.differ = seen.differ || value != seen.first;
  }
}

Seen seen_of(DeviceQueue& queue, const TimedOutput& output) {
  const DeviceArray& array = *output.tensor;
  const dropless_tensor& tensor = *array.get();
  const auto* data = static_cast<const std::byte*>(tensor.data);
  const auto width = static_cast<Index>(dtype_bytes(tensor.dtype));
  Seen seen;
  const bool whole = array.size() <= whole_elements || output.least_written < array.size();
  const Index count = whole ? 1 : pieces, length = whole ? array.size() : piece_elements;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(length * width));
  for (Index i = 0; i < count && length > 0; ++i) {
    const Index first = whole ? 0 : (array.size() - length) * i / (count - 1);
    queue.copy_out(bytes.data(), data + first * width, bytes.size());
    look(tensor.dtype, bytes, seen);
  }
  return seen;
}

}  // namespace

std::string implausible(DeviceQueue& queue, const std::vector<TimedOutput>& outputs) {
  for (const TimedOutput& output : outputs) {
    const Seen seen = seen_of(queue, output);
    const Index needed = std::min(output.least_written, seen.elements);
    if (seen.written < needed) {
      return fmt::format(
          "of {} elements of {} that were looked at, {} were written with a finite "
          "value: the time is not that of the operation",
          seen.elements, output.name, seen.written);
    }
    if (is_float(output.tensor->get()->dtype) && seen.elements > 1 && !seen.differ) {
      return fmt::format("all elements of {} are {}: the time is not that of the operation",
                         output.name, seen.first);
    }
  }
  return "";
}

}  // namespace dropless::conformance
