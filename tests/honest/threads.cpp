// SPDX-License-Identifier: Apache-2.0
// Variants of the CPU implementation: its own number of threads, whatever the caller asks for.
#include "tests/honest/variant.h"

namespace dropless::honest {
namespace {

template <int threads, auto entry>
void fix_threads(Planted& variant) {
  variant.around<entry>([](const auto& next, auto& args) {
    dropless_call* call = next.call();
    if (call == nullptr || call->struct_size < sizeof *call) return next(args);
    const std::int32_t asked = call->threads;
    call->threads = threads;
    const dropless_status status = next(args);
    call->threads = asked;
    return status;
  });
}

template <int threads>
void plant_threads(Planted& variant) {
#define DROPLESS_FIX_THREADS(name, args) fix_threads<threads, &Table::name>(variant);
  DROPLESS_OPERATIONS(DROPLESS_FIX_THREADS)
#undef DROPLESS_FIX_THREADS
}

}  // namespace

void add_threads(std::vector<Variant>& variants) {
  variants.push_back(
      {"cpu-1", "the CPU implementation on one thread", plant_threads<1>, Base::cpu});
  variants.push_back(
      {"cpu-2", "the CPU implementation on two threads", plant_threads<2>, Base::cpu});
  variants.push_back(
      {"cpu-3", "the CPU implementation on three threads", plant_threads<3>, Base::cpu});
}

}  // namespace dropless::honest
