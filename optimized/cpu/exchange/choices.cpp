// SPDX-License-Identifier: Apache-2.0
// Reads the choices of the exchange out of a profile.
#include "optimized/cpu/exchange/choices.h"

#include "optimized/cpu/arguments.h"

namespace dropless::cpu::exchange {
namespace {

void check(int value, int last, const char* name) {
  if (value < 0 || value > last) {
    refuse(std::string("profile: ") + name + " " + std::to_string(value) + " is not listed");
  }
}

}  // namespace

Choices read_choices(const dropless_profile& given) {
  const dropless_profile p = read_struct(&given, "profile");
  check(p.dispatch_layout, DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR, "dispatch_layout");
  check(p.flat_ids, DROPLESS_FLAT_IDS_IN_PLACE, "flat_ids");
  check(p.combine_weighting, DROPLESS_COMBINE_WEIGHTED, "combine_weighting");
  check(p.combine_rounding, DROPLESS_COMBINE_ROUNDS_PER_NODE, "combine_rounding");
  check(p.overflow_policy, DROPLESS_OVERFLOW_RETRY, "overflow_policy");
  check(p.replica_map, DROPLESS_REPLICA_DECLARED, "replica_map");
  check(p.tail_rows, DROPLESS_TAIL_ZERO, "tail_rows");
  const Index a = p.alignment;
  refuse_if(a != 0 && a != 1 && a != 16 && a != 32 && a != 128 && a != 256,
            "profile: alignment is not listed");
  refuse_if(p.replica_map == DROPLESS_REPLICA_DECLARED && p.replica_copy == nullptr,
            "profile: a declared replica map without its function");
  Choices c;
  c.expert_major = p.dispatch_layout == DROPLESS_DISPATCH_EXPERT_MAJOR ||
                   p.dispatch_layout == DROPLESS_DISPATCH_UNORDERED_EXPERT_MAJOR;
  c.ids_in_place = p.flat_ids == DROPLESS_FLAT_IDS_IN_PLACE;
  c.weighted = c.expert_major && p.combine_weighting == DROPLESS_COMBINE_WEIGHTED;
  c.rounding = p.combine_rounding;
  c.overflow = p.overflow_policy;
  c.alignment = c.expert_major && a > 0 ? a : 1;
  c.zero_tail = p.tail_rows == DROPLESS_TAIL_ZERO;
  if (p.replica_map == DROPLESS_REPLICA_DECLARED) c.replica_copy = p.replica_copy;
  return c;
}

}  // namespace dropless::cpu::exchange
