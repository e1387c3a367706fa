// SPDX-License-Identifier: Apache-2.0
// What goes over a wire: a header that says which round it belongs to, then packed rows or a text.
#pragma once

#include "optimized/cpu/exchange/bytes.h"
#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

enum class FrameKind : std::uint32_t { rows = 1, goodbye, gave_up };

// All fields are 8-byte aligned and the same on every machine of one byte order.
struct FrameHeader {
  std::uint64_t magic = expected_magic;
  FrameKind kind = FrameKind::rows;
  std::uint32_t status = 0;  // gave_up
  std::uint64_t handle = 0, call = 0, generation = 0;
  std::uint32_t phase = 0;
  std::int32_t source = 0;
  std::int64_t rows[3] = {}, row_bytes[3] = {};
  std::int64_t payload_bytes = 0;

  static constexpr std::uint64_t expected_magic = 0x31454752'504F5244;  // "DROPRGE1"
};
static_assert(sizeof(FrameHeader) == 104 && std::is_trivially_copyable_v<FrameHeader>);

struct Frame {
  FrameHeader header;
  Bytes payload;
};

// The parcel's rows, copied. `frame` keeps its memory for the next time.
void make_frame(const Parcel& parcel, Frame& frame);
void make_text_frame(FrameKind kind, const Tag& tag, const Refusal& why, Frame& frame);
[[nodiscard]] std::string frame_text(const Frame& frame);
// The parcel that reads from the frame.
[[nodiscard]] Parcel frame_parcel(const Frame& frame);
// False when this cannot be a header of ours: foreign bytes, or sizes that do not agree.
[[nodiscard]] bool is_sound(const FrameHeader& header);

}  // namespace dropless::cpu::exchange
