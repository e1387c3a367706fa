// SPDX-License-Identifier: Apache-2.0
// What stands behind one Buffer: its guarded allocation and the image of it before the call.
//
//   | red zone + offset | row 0 | gap | row 1 | gap | ... | red zone |
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/judge/buffers.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {

struct Buffer::State {
  State(std::string buffer_label, dropless_dtype dtype, Shape buffer_shape,
        const Layout& buffer_layout, dropless_memory_space space);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string label;
  Shape shape;
  Layout layout;
  bool is_input = false;   // must not change
  bool is_output = false;  // poisoned before every call
  bool is_filled = false;  // canaries and elements have reached the memory
  dropless_tensor tensor{};

  Index size = 0;                    // elements
  std::size_t element = 0;           // bytes of one
  std::size_t row = 0;               // elements of one row
  std::size_t pitch = 0;             // bytes from row to row
  std::size_t front = 0;             // bytes before the first element
  std::size_t end = 0;               // first byte of the red zone behind
  std::vector<std::uint8_t> before;  // the whole allocation as it was before the call

  [[nodiscard]] std::vector<std::uint8_t> now() const;  // the whole allocation
  [[nodiscard]] std::size_t position(Index flat) const {
    return front + static_cast<std::size_t>(flat) / row * pitch +
           static_cast<std::size_t>(flat) % row * element;
  }
  // Writes all elements, row-major, and remembers them.
  void fill(std::span<const std::uint8_t> bytes);
  void poison();

  std::shared_ptr<Memory> memory;
  std::uint8_t* allocation = nullptr;  // in the memory space
};

}  // namespace dropless::conformance
