// SPDX-License-Identifier: Apache-2.0
// Copies of rows into buffers that no cache holds: stores go past the caches, so that memory is not
// read first only to be overwritten.
#pragma once

#include <cstddef>

#include "optimized/cpu/threads.h"

namespace dropless::cpu::exchange {

// From this many bytes on, a receive buffer is written past the caches.
inline constexpr Index streaming_bytes = Index{4} << 20;

// memcpy; streams the whole cache lines of the destination. End a run of copies with
// finish_streaming(), before anybody else is told of them.
void stream_copy(std::byte* to, const std::byte* from, Index bytes);
void finish_streaming();

}  // namespace dropless::cpu::exchange
