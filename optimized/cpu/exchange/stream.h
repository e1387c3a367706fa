// SPDX-License-Identifier: Apache-2.0
// Copies of rows into buffers that no cache holds: stores go past the caches, so that memory is not
// read first only to be overwritten.
#pragma once

#include <cstdint>
#include <cstring>

#include "optimized/cpu/threads.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dropless::cpu::exchange {

// From this many bytes on, a receive buffer is written past the caches.
inline constexpr Index streaming_bytes = Index{4} << 20;

// memcpy; streams whole cache lines where the destination allows. End a run of copies with
// finish_streaming(), before anybody else is told of them.
inline void stream_copy(std::byte* to, const std::byte* from, Index bytes) {
#if defined(__SSE2__)
  if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
      const __m128i* in = reinterpret_cast<const __m128i*>(from);
      __m128i* out = reinterpret_cast<__m128i*>(to);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
      const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
  }
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace dropless::cpu::exchange
