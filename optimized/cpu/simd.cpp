// SPDX-License-Identifier: Apache-2.0
// Detection of the instruction set, once per process.
#include "optimized/cpu/simd.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

namespace dropless::cpu {
namespace {

Isa detect() {
#if DROPLESS_CPU_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::scalar;
#else
  return Isa::scalar;
#endif
}

// DROPLESS_CPU_ISA=scalar|avx2 lowers the choice, to look for a difference between the paths.
Isa wanted() {
  const char* text = std::getenv("DROPLESS_CPU_ISA");
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "scalar") return Isa::scalar;
  if (name == "avx2") return std::min(detect(), Isa::avx2);
  return detect();
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> value{wanted()};
  return value;
}

}  // namespace

Isa isa() {
  return chosen().load(std::memory_order_relaxed);
}

const char* isa_name() {
  switch (isa()) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    default:
      return "scalar";
  }
}

void limit_isa(Isa most) {
  chosen().store(std::min(detect(), most), std::memory_order_relaxed);
}

}  // namespace dropless::cpu
