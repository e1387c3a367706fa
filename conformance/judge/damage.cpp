// SPDX-License-Identifier: Apache-2.0
// What a call did outside its outputs: canaries, row gaps, inputs.
#include <fmt/format.h>

#include <cstring>

#include "conformance/judge/buffer_state.h"
#include "conformance/judge/elements.h"

namespace dropless::conformance {

namespace {

struct Changes {
  std::size_t bytes = 0;
  std::size_t first = 0;  // position in the allocation
  std::size_t last = 0;
};

using Image = std::vector<std::uint8_t>;

void compare(const Image& before, const Image& now, std::size_t from, std::size_t to,
             Changes& changes) {
  if (std::memcmp(before.data() + from, now.data() + from, to - from) == 0) return;
  for (std::size_t i = from; i < to; ++i) {
    if (before[i] == now[i]) continue;
    if (changes.bytes++ == 0) changes.first = i;
    changes.last = i;
  }
}

}  // namespace

std::vector<Buffers::Damage> Buffers::damage() const {
  std::vector<Damage> found;
  for (const auto& buffer : buffers_) {
    const Buffer::State& state = *buffer->state_;
    if (state.size == 0) continue;
    const Image now = state.now();
    const Image& before = state.before;
    if (state.is_input && now == before) continue;

    Changes ahead, behind, gap;
    compare(before, now, 0, state.front, ahead);
    compare(before, now, state.end, before.size(), behind);
    const std::size_t row_bytes = state.row * state.element;
    for (std::size_t row = state.front; row < state.end; row += state.pitch) {
      compare(before, now, row + row_bytes, row + state.pitch, gap);
    }
    if (ahead.bytes != 0) {
      found.push_back({state.label, fmt::format("{} bytes written before the start, nearest at -{}",
                                                ahead.bytes, state.front - ahead.last)});
    }
    if (behind.bytes != 0) {
      found.push_back({state.label, fmt::format("{} bytes written after the end, first at +{}",
                                                behind.bytes, behind.first - state.end)});
    }
    if (gap.bytes != 0) {
      const std::size_t inside = gap.first - state.front;
      found.push_back(
          {state.label,
           fmt::format("{} bytes of the row gaps written, first after row {} at +{}", gap.bytes,
                       inside / state.pitch, inside % state.pitch - row_bytes)});
    }
    if (!state.is_input) continue;
    Index changed = 0, first = -1;
    const std::vector<bool> same = buffer->untouched();
    for (Index i = 0; i < state.size; ++i) {
      if (same[static_cast<std::size_t>(i)]) continue;
      if (changed++ == 0) first = i;
    }
    if (changed != 0) {
      const std::size_t at = state.position(first);
      found.push_back(
          {state.label, fmt::format("input changed at {}: {} became {} ({} elements in all)",
                                    element_name(state.shape, first),
                                    print(state.tensor.dtype, before.data() + at),
                                    print(state.tensor.dtype, now.data() + at), changed)});
    }
  }
  return found;
}

}  // namespace dropless::conformance
