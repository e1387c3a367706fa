// SPDX-License-Identifier: Apache-2.0
// Frames and the parcels inside them.
#include "optimized/cpu/exchange/frame.h"

#include <cstring>

#include "optimized/cpu/exchange/packing.h"

namespace dropless::cpu::exchange {
namespace {

void set_tag(FrameHeader& header, const Tag& tag) {
  header.handle = tag.handle, header.call = tag.call, header.generation = tag.generation;
  header.phase = static_cast<std::uint32_t>(tag.phase);
  header.source = tag.source;
}

}  // namespace

void make_frame(const Parcel& parcel, Frame& frame) {
  frame.header = FrameHeader{};
  set_tag(frame.header, parcel.tag);
  for (std::size_t s = 0; s < parcel.sections.size(); ++s) {
    frame.header.rows[s] = parcel.sections[s].rows;
    frame.header.row_bytes[s] = parcel.sections[s].row_bytes;
  }
  frame.header.payload_bytes = packed_bytes(parcel);
  pack(parcel, frame.payload.reserve(frame.header.payload_bytes));
}

void make_text_frame(FrameKind kind, const Tag& tag, const Refusal& why, Frame& frame) {
  frame.header = FrameHeader{};
  set_tag(frame.header, tag);
  frame.header.kind = kind;
  frame.header.status = static_cast<std::uint32_t>(why.status);
  frame.header.payload_bytes = static_cast<Index>(why.message.size());
  std::byte* text = frame.payload.reserve(frame.header.payload_bytes);
  if (!why.message.empty()) std::memcpy(text, why.message.data(), why.message.size());
}

std::string frame_text(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.data()),
          static_cast<std::size_t>(frame.header.payload_bytes)};
}

Parcel frame_parcel(const Frame& frame) {
  Parcel parcel;
  const FrameHeader& h = frame.header;
  parcel.tag = {h.handle, h.call, h.generation, static_cast<Phase>(h.phase), h.source};
  for (std::size_t s = 0; s < parcel.sections.size(); ++s) {
    parcel.sections[s].rows = h.rows[s];
    parcel.sections[s].row_bytes = h.row_bytes[s];
  }
  point_into(parcel, frame.payload.data());
  return parcel;
}

bool is_sound(const FrameHeader& h) {
  if (h.magic != FrameHeader::expected_magic || h.payload_bytes < 0) return false;
  if (h.kind != FrameKind::rows) return h.payload_bytes < (1 << 16);
  Parcel parcel;
  for (std::size_t s = 0; s < parcel.sections.size(); ++s) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (h.rows[s] < 0 || h.rows[s] > most || h.row_bytes[s] < 0 || h.row_bytes[s] > most) {
      return false;
    }
    Index product = 0;
    if (__builtin_mul_overflow(h.rows[s], h.row_bytes[s], &product) || product > most) return false;
    parcel.sections[s].rows = h.rows[s];
    parcel.sections[s].row_bytes = h.row_bytes[s];
  }
  return packed_bytes(parcel) == h.payload_bytes;
}

}  // namespace dropless::cpu::exchange
