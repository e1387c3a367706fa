// SPDX-License-Identifier: Apache-2.0
// Which instruction set runs: chosen once at run time, never at build time, so that one binary runs
// on any x86-64 (and, with the scalar code, elsewhere).
//
//     DROPLESS_INLINE void scale(float* x, Index n, float by) { for (...) x[i] *= by; }
//     with_simd([=]() DROPLESS_INLINE_LAMBDA { scale(x, n, by); });
//
// compiles the loop three times, for AVX-512, AVX2 and the baseline, and runs the best allowed one.
// Kernels must be DROPLESS_INLINE all the way down, or the baseline version of them is called.
#pragma once

#include <utility>

#if defined(__x86_64__) && defined(__GNUC__)
#define DROPLESS_CPU_X86 1
#if defined(__clang__)  // knows the width from the other options
#define DROPLESS_WIDE
#else
#define DROPLESS_WIDE ",prefer-vector-width=512"
#endif
#define DROPLESS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define DROPLESS_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c" DROPLESS_WIDE)))
#else
#define DROPLESS_CPU_X86 0
#define DROPLESS_AVX2
#define DROPLESS_AVX512
#endif

#define DROPLESS_INLINE inline __attribute__((always_inline))
#define DROPLESS_INLINE_LAMBDA __attribute__((always_inline))

namespace dropless::cpu {

enum class Isa { scalar = 0, avx2 = 1, avx512 = 2 };

// The best instruction set of this machine, or less if limit_isa says so.
[[nodiscard]] Isa isa();
// "scalar", "avx2" or "avx512".
[[nodiscard]] const char* isa_name();
// For tests: use nothing beyond `most` from now on. Not to be called during an operation.
void limit_isa(Isa most);

template <class Body>
DROPLESS_AVX512 void run_avx512(Body& body) {
  body();
}
template <class Body>
DROPLESS_AVX2 void run_avx2(Body& body) {
  body();
}

template <class Body>
void with_simd(Body body) {
  switch (isa()) {
    case Isa::avx512:
      return run_avx512(body);
    case Isa::avx2:
      return run_avx2(body);
    default:
      return body();
  }
}

}  // namespace dropless::cpu
