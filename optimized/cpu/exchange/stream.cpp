// SPDX-License-Identifier: Apache-2.0
// Stores past the caches, a cache line at a time: a line that is written by one store leaves at
// once, one that is put together of several may leave in parts.
#include "optimized/cpu/exchange/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "optimized/cpu/simd.h"

#if DROPLESS_CPU_X86
#include <immintrin.h>
#endif

namespace dropless::cpu::exchange {

#if DROPLESS_CPU_X86
namespace {

constexpr Index line = 64;

DROPLESS_AVX512 void stream_lines_avx512(std::byte* to, const std::byte* from, Index lines) {
  for (Index i = 0; i < lines; ++i, to += line, from += line) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

void stream_lines(std::byte* to, const std::byte* from, Index lines) {
  for (Index i = 0; i < lines; ++i, to += line, from += line) {
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

}  // namespace

void stream_copy(std::byte* to, const std::byte* from, Index bytes) {
  const Index past = static_cast<Index>(reinterpret_cast<std::uintptr_t>(to) % line);
  const Index head = std::min(bytes, past == 0 ? 0 : line - past);
  const Index lines = (bytes - head) / line, middle = lines * line;
  std::memcpy(to, from, static_cast<std::size_t>(head));
  if (isa() == Isa::avx512) {
    stream_lines_avx512(to + head, from + head, lines);
  } else {
    stream_lines(to + head, from + head, lines);
  }
  std::memcpy(to + head + middle, from + head + middle,
              static_cast<std::size_t>(bytes - head - middle));
}

void finish_streaming() {
  _mm_sfence();
}
#else
void stream_copy(std::byte* to, const std::byte* from, Index bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void finish_streaming() {}
#endif

}  // namespace dropless::cpu::exchange
