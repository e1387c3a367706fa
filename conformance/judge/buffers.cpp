// SPDX-License-Identifier: Apache-2.0
// Making and reading the buffers of a case.
#include "conformance/judge/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "conformance/judge/buffer_state.h"
#include "conformance/judge/elements.h"
#include "tolerances/interval.h"

namespace dropless::conformance {

namespace {

void check_count(const std::string& label, const Shape& shape, std::size_t given) {
  if (static_cast<Index>(given) != element_count(shape)) {
    throw std::logic_error(
        fmt::format("{}: {} values given for {} elements", label, given, element_count(shape)));
  }
}

std::vector<std::uint8_t> bytes_of(const std::string& label, dropless_dtype dtype,
                                   const Shape& shape, std::span<const double> values) {
  check_count(label, shape, values.size());
  std::vector<std::uint8_t> bytes(values.size() * dtype_bytes(dtype));
  encode(dtype, values, bytes.data());
  return bytes;
}

std::vector<std::uint8_t> bytes_of(const std::string& label, dropless_dtype dtype,
                                   const Shape& shape, std::span<const Index> values) {
  check_count(label, shape, values.size());
  const std::size_t element = dtype_bytes(dtype);
  std::vector<std::uint8_t> bytes(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i) {
    encode_integer(dtype, values[i], bytes.data() + i * element);
  }
  return bytes;
}

}  // namespace

Index element_count(const Shape& shape) {
  Index count = 1;
  for (const Index dimension : shape) {
    if (dimension < 0) throw std::logic_error("element_count: a dimension is negative");
    count *= dimension;
  }
  return count;
}

std::string element_name(const Shape& shape, Index flat) {
  std::string name = "]";
  for (std::size_t d = shape.size(); d-- > 0;) {
    name = fmt::format("{}{}{}", d == 0 ? "[" : ",", flat % shape[d], name);
    flat /= shape[d];
  }
  return shape.empty() ? "[]" : name;
}

bool representable(dropless_dtype dtype, std::span<const double> values) {
  return std::ranges::all_of(values, [dtype](double value) {
    if (is_float(dtype)) return std::isnan(value) || tolerances::round_to(dtype, value) == value;
    try {
      std::uint8_t element[8];
      encode(dtype, value, element);
      return true;
    } catch (const std::logic_error&) {
      return false;
    }
  });
}

const std::string& Buffer::label() const {
  return state_->label;
}
const dropless_tensor* Buffer::tensor() const {
  return &state_->tensor;
}
dropless_dtype Buffer::dtype() const {
  return state_->tensor.dtype;
}
const Shape& Buffer::shape() const {
  return state_->shape;
}
Index Buffer::size() const {
  return state_->size;
}

std::vector<double> Buffer::values() const {
  const auto image = state_->now();
  std::vector<double> all(static_cast<std::size_t>(size()));
  for (std::size_t i = 0; i < all.size(); i += state_->row) {
    decode(dtype(), image.data() + state_->position(static_cast<Index>(i)),
           std::span(all).subspan(i, state_->row));
  }
  return all;
}

std::vector<Index> Buffer::integers() const {
  const auto image = state_->now();
  std::vector<Index> all;
  all.reserve(static_cast<std::size_t>(size()));
  for (Index i = 0; i < size(); ++i) {
    all.push_back(decode_integer(dtype(), image.data() + state_->position(i)));
  }
  return all;
}

std::vector<std::uint8_t> Buffer::bytes() const {
  const auto image = state_->now();
  const std::size_t row_bytes = state_->row * state_->element;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(size()) * state_->element);
  for (std::size_t to = 0, from = state_->front; to < all.size(); to += row_bytes) {
    std::copy_n(image.data() + from, row_bytes, all.data() + to);
    from += state_->pitch;
  }
  return all;
}

std::vector<bool> Buffer::untouched() const {
  const auto image = state_->now();
  const auto same = [&](std::size_t place, std::size_t bytes) {
    return std::memcmp(image.data() + place, state_->before.data() + place, bytes) == 0;
  };
  std::vector<bool> all(static_cast<std::size_t>(size()), true);
  for (std::size_t i = 0; i < all.size(); i += state_->row) {
    const std::size_t place = state_->position(static_cast<Index>(i));
    if (same(place, state_->row * state_->element)) continue;
    for (std::size_t j = 0; j < state_->row; ++j) {
      all[i + j] = same(place + j * state_->element, state_->element);
    }
  }
  return all;
}

void Buffer::overwrite(std::span<const std::uint8_t> bytes) {
  state_->fill(bytes);
}

Buffers::Buffers(dropless_memory_space space) : space_(space) {}

Buffer& Buffers::add(std::string label, dropless_dtype dtype, Shape shape, Layout layout, Role role,
                     std::span<const std::uint8_t> bytes) {
  auto buffer = std::make_unique<Buffer>();
  buffer->state_ =
      std::make_shared<Buffer::State>(std::move(label), dtype, std::move(shape), layout, space_);
  buffer->state_->is_input = role == Role::input;
  buffer->state_->is_output = role == Role::output;
  if (role == Role::output) {
    buffer->state_->poison();
  } else {
    buffer->state_->fill(bytes);
  }
  buffers_.push_back(std::move(buffer));
  return *buffers_.back();
}

Buffer& Buffers::input(std::string label, dropless_dtype dtype, Shape shape,
                       std::span<const double> values, Layout layout) {
  const auto bytes = bytes_of(label, dtype, shape, values);
  return add(std::move(label), dtype, std::move(shape), layout, Role::input, bytes);
}

Buffer& Buffers::input(std::string label, dropless_dtype dtype, Shape shape,
                       std::span<const Index> values, Layout layout) {
  const auto bytes = bytes_of(label, dtype, shape, values);
  return add(std::move(label), dtype, std::move(shape), layout, Role::input, bytes);
}

Buffer& Buffers::input(std::string label, dropless_dtype dtype, Shape shape,
                       std::span<const std::uint8_t> bytes, Layout layout) {
  return add(std::move(label), dtype, std::move(shape), layout, Role::input, bytes);
}

Buffer& Buffers::output(std::string label, dropless_dtype dtype, Shape shape, Layout layout) {
  return add(std::move(label), dtype, std::move(shape), layout, Role::output, {});
}

Buffer& Buffers::in_out(std::string label, dropless_dtype dtype, Shape shape,
                        std::span<const double> values, Layout layout) {
  const auto bytes = bytes_of(label, dtype, shape, values);
  return add(std::move(label), dtype, std::move(shape), layout, Role::in_out, bytes);
}

Buffer& Buffers::in_out(std::string label, dropless_dtype dtype, Shape shape,
                        std::span<const Index> values, Layout layout) {
  const auto bytes = bytes_of(label, dtype, shape, values);
  return add(std::move(label), dtype, std::move(shape), layout, Role::in_out, bytes);
}

void Buffers::poison_outputs() {
  for (const auto& buffer : buffers_) {
    if (buffer->state_->is_output) buffer->state_->poison();
  }
}

std::vector<const Buffer*> Buffers::outputs() const {
  std::vector<const Buffer*> all;
  for (const auto& buffer : buffers_) {
    if (!buffer->state_->is_input) all.push_back(buffer.get());
  }
  return all;
}

}  // namespace dropless::conformance
