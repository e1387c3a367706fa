// SPDX-License-Identifier: Apache-2.0
// Packs parcels for the wire, or for a receiver that is late.
#include "optimized/cpu/exchange/packing.h"

#include <cstring>

#include "optimized/cpu/exchange/group.h"

namespace dropless::cpu::exchange {

Index packed_bytes(const Parcel& parcel) {
  Index sum = 0;
  for (const Section& section : parcel.sections) {
    sum += align_up(section.bytes(), section_alignment);
  }
  return sum;
}

void point_into(Parcel& parcel, const std::byte* packed) {
  for (Section& section : parcel.sections) {
    section.data = packed;
    section.stride = section.row_bytes;
    section.index = nullptr;
    packed += align_up(section.bytes(), section_alignment);
  }
}

Parcel pack(const Parcel& parcel, std::byte* to) {
  Parcel result = parcel;
  point_into(result, to);
  for (std::size_t s = 0; s < parcel.sections.size(); ++s) {
    const Section& section = parcel.sections[s];
    if (section.bytes() == 0) continue;
    const std::size_t size = static_cast<std::size_t>(section.row_bytes);
    if (section.index == nullptr && section.stride == section.row_bytes) {
      std::memcpy(to, section.data, size * static_cast<std::size_t>(section.rows));
    } else {
      std::byte* out = to;
      for (Index i = 0; i < section.rows; ++i, out += size) {
        std::memcpy(out, section.row(i), size);
      }
    }
    const Index end = align_up(section.bytes(), section_alignment);
    std::memset(to + section.bytes(), 0, static_cast<std::size_t>(end - section.bytes()));
    to += end;
  }
  return result;
}

}  // namespace dropless::cpu::exchange
