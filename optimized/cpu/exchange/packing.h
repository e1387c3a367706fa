// SPDX-License-Identifier: Apache-2.0
// A parcel as one run of bytes: its sections one after the other, each densely packed and aligned.
#pragma once

#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

inline constexpr Index section_alignment = 64;

[[nodiscard]] Index packed_bytes(const Parcel& parcel);
// Copies the rows to `to` [packed_bytes] and returns the parcel that reads them from there.
Parcel pack(const Parcel& parcel, std::byte* to);
// Points the sections (whose rows and row_bytes are known) into packed bytes.
void point_into(Parcel& parcel, const std::byte* packed);

}  // namespace dropless::cpu::exchange
