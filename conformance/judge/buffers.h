// SPDX-License-Identifier: Apache-2.0
// Buffers handed to the code under test: guarded by canaries on both sides, outputs poisoned,
// inputs remembered so that any change is seen, rows optionally strided.
//
//     Buffers buffers;
//     Buffer& x = buffers.input("x", DROPLESS_BF16, {tokens, hidden}, values);
//     Buffer& y = buffers.output("y", DROPLESS_BF16, {tokens, hidden});
//     args.x = x.tensor(), args.y = y.tensor();
//     ... call ...
//     buffers.damage();      // canaries hit, inputs changed: one sentence each
//     y.values();            // doubles, row-major, without the row padding
#pragma once

#include <dropless/contract.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dropless::conformance {

using Index = std::int64_t;
using Shape = std::vector<Index>;

std::size_t dtype_bytes(dropless_dtype dtype);
std::string_view dtype_name(dropless_dtype dtype);  // "fp32", "bf16", ...
Index element_count(const Shape& shape);
std::string element_name(const Shape& shape, Index flat);  // "[2,17]"

// What an output holds before the call. Every byte 0xFF is NaN in every float format, -1 as an id;
// `plausible` is a valid-looking value, different from zero (1.0, id 1, scale byte 127).
enum class Poison { all_ones, plausible };

struct Layout {
  // Unused elements after every row; the stride of the last dimension stays 1. They hold canaries,
  // so that reading them changes results and writing them is seen. Ignored below rank 2.
  Index row_gap = 0;
  // Shift of the start from 256-byte alignment, a multiple of the element size.
  Index offset_bytes = 0;
  Poison poison = Poison::all_ones;
};

// A handle: copies refer to the same memory. A buffer without elements has a null data pointer.
class Buffer {
 public:
  [[nodiscard]] const std::string& label() const;
  [[nodiscard]] const dropless_tensor* tensor() const;  // valid as long as the Buffers
  [[nodiscard]] dropless_dtype dtype() const;
  [[nodiscard]] const Shape& shape() const;
  [[nodiscard]] Index size() const;  // elements

  // Contents after the call, row-major. values() decodes any float format (e8m0 as 2^(b-127)) and
  // integers of moderate size; integers() throws std::logic_error for anything but i32, i64, u8.
  [[nodiscard]] std::vector<double> values() const;
  [[nodiscard]] std::vector<Index> integers() const;
  [[nodiscard]] std::vector<std::uint8_t> bytes() const;  // raw, row-major, no gaps
  // Per element: the bytes are those from before the call (poison, input or overwrite).
  [[nodiscard]] std::vector<bool> untouched() const;
  // New contents before another call: row-major bytes of all elements.
  void overwrite(std::span<const std::uint8_t> bytes);

 private:
  friend class Buffers;
  struct State;
  std::shared_ptr<State> state_;
};

// Every member function throws std::logic_error when the suite itself is wrong: a shape that does
// not match the values, an integer that does not fit, an offset that is not a multiple of the
// element size, a memory space without access.
class Buffers {
 public:
  // memory_space decides where buffers live; host memory is built in, CUDA comes with its adapter.
  explicit Buffers(dropless_memory_space space = DROPLESS_HOST);

  // Values are rounded to nearest even on the way in; a case that needs exact data checks that
  // nothing was lost with `representable`.
  Buffer& input(std::string label, dropless_dtype dtype, Shape shape,
                std::span<const double> values, Layout layout = {});
  Buffer& input(std::string label, dropless_dtype dtype, Shape shape, std::span<const Index> values,
                Layout layout = {});
  Buffer& input(std::string label, dropless_dtype dtype, Shape shape,
                std::span<const std::uint8_t> bytes, Layout layout = {});
  Buffer& output(std::string label, dropless_dtype dtype, Shape shape, Layout layout = {});
  // Starts with contents and may be changed.
  Buffer& in_out(std::string label, dropless_dtype dtype, Shape shape,
                 std::span<const double> values, Layout layout = {});
  Buffer& in_out(std::string label, dropless_dtype dtype, Shape shape,
                 std::span<const Index> values, Layout layout = {});

  // Poisons every output again, before a repeated call.
  void poison_outputs();
  // Every output and in_out buffer in order of creation: a refusal must leave all of them alone.
  [[nodiscard]] std::vector<const Buffer*> outputs() const;

  // What the calls so far did outside their outputs; at most one entry per buffer and region.
  struct Damage {
    std::string label;  // buffer
    std::string what;   // "3 bytes written after the end, first at +0", "input changed at [2,5]"
  };
  [[nodiscard]] std::vector<Damage> damage() const;

 private:
  enum class Role { input, output, in_out };
  Buffer& add(std::string label, dropless_dtype dtype, Shape shape, Layout layout, Role role,
              std::span<const std::uint8_t> bytes);
  std::vector<std::unique_ptr<Buffer>> buffers_;
  dropless_memory_space space_;
};

bool representable(dropless_dtype dtype, std::span<const double> values);

}  // namespace dropless::conformance
