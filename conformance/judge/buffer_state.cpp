// SPDX-License-Identifier: Apache-2.0
// The guarded allocation behind one Buffer.
#include "conformance/judge/buffer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "conformance/judge/elements.h"

namespace dropless::conformance {

namespace {

// Far enough for a vector store or a mis-indexed row of a small matrix, and for any alignment.
constexpr std::size_t red_zone = 1024;

// Depends on the position, so that a shifted copy of canaries is seen; never 0x00 and never 0xFF,
// which are what broken code writes most often.
std::uint8_t canary(std::size_t position) {
  const auto mixed = static_cast<std::uint8_t>((position + 1) * 0x9E3779B97F4A7C15ull >> 56);
  return mixed == 0x00 ? 0xA5 : mixed == 0xFF ? 0x5A : mixed;
}

}  // namespace

Buffer::State::State(std::string buffer_label, dropless_dtype dtype, Shape buffer_shape,
                     const Layout& buffer_layout, dropless_memory_space space)
    : label(std::move(buffer_label)),
      shape(std::move(buffer_shape)),
      layout(buffer_layout),
      size(element_count(shape)),
      element(dtype_bytes(dtype)),
      memory(memory_of(space)) {
  if (shape.size() > DROPLESS_MAX_RANK) throw std::logic_error(label + ": rank above 4");
  if (layout.row_gap < 0 || layout.offset_bytes < 0 ||
      layout.offset_bytes % static_cast<Index>(element) != 0) {
    throw std::logic_error(label + ": impossible row gap or offset");
  }
  if (shape.size() < 2) layout.row_gap = 0;
  row = shape.empty() ? 1 : static_cast<std::size_t>(shape.back());
  pitch = (row + static_cast<std::size_t>(layout.row_gap)) * element;

  tensor.struct_size = sizeof tensor;
  tensor.struct_version = DROPLESS_STRUCT_VERSION;
  tensor.dtype = dtype;
  tensor.memory_space = space;
  tensor.rank = static_cast<std::int32_t>(shape.size());
  Index stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = stride;
    stride *= d + 1 == shape.size() ? shape[d] + layout.row_gap : shape[d];
  }
  if (size == 0) return;

  front = red_zone + static_cast<std::size_t>(layout.offset_bytes);
  end = front + static_cast<std::size_t>(size) / row * pitch;
  before.resize(end + red_zone);
  const auto guard = [this](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) before[i] = canary(i);
  };
  guard(0, front), guard(end, before.size());
  for (std::size_t place = front; row * element < pitch && place < end; place += pitch) {
    guard(place + row * element, place + pitch);
  }
  allocation = static_cast<std::uint8_t*>(memory->allocate(before.size()));
  tensor.data = allocation + front;
}

Buffer::State::~State() {
  if (allocation != nullptr) memory->release(allocation);
}

std::vector<std::uint8_t> Buffer::State::now() const {
  std::vector<std::uint8_t> image(before.size());
  if (size != 0) memory->copy_out(image.data(), allocation, image.size());
  return image;
}

void Buffer::State::fill(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != static_cast<std::size_t>(size) * element) {
    throw std::logic_error(fmt::format("{}: {} bytes given for {} elements of {}", label,
                                       bytes.size(), size, dtype_name(tensor.dtype)));
  }
  if (size == 0) return;
  if (!is_filled) {  // with the canaries, by one copy
    for (std::size_t from = 0, to = front; from < bytes.size(); to += pitch) {
      std::copy_n(bytes.data() + from, row * element, before.data() + to);
      from += row * element;
    }
    memory->copy_in(allocation, before.data(), before.size());
    is_filled = true;
    return;
  }
  // Row by row: gaps and red zones in memory keep whatever damage they have.
  std::vector<std::uint8_t> image;
  const bool at_once = row * element != pitch && memory->prefers_few_copies();
  if (at_once) image = now();
  const std::size_t piece = row * element == pitch ? bytes.size() : row * element;
  for (std::size_t from = 0, to = front; from < bytes.size(); from += piece, to += pitch) {
    std::copy_n(bytes.data() + from, piece, before.data() + to);
    if (at_once) {
      std::copy_n(bytes.data() + from, piece, image.data() + to);
    } else {
      memory->copy_in(allocation + to, bytes.data() + from, piece);
    }
  }
  if (at_once) memory->copy_in(allocation, image.data(), image.size());
}

void Buffer::State::poison() {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size) * element, 0xFF);
  if (layout.poison == Poison::plausible) {
    std::uint8_t one[8] = {};
    if (tensor.dtype == DROPLESS_U8) {
      one[0] = 127;  // a scale byte
    } else {
      encode(tensor.dtype, 1.0, one);
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = one[i % element];
  }
  fill(bytes);
}

}  // namespace dropless::conformance
