// SPDX-License-Identifier: Apache-2.0
// The group of the calling thread.
#include "conformance/ranks/rank_group.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace dropless::conformance {
namespace {

thread_local RankGroup* group_of_thread = nullptr;

}  // namespace

bool RankGroup::meet() {
  const std::uint8_t here = 1;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(ranks()));
  return all_gather(&here, all.data(), 1);
}

std::int32_t all_gather_of_group(void* group, const void* sent, void* received, std::size_t bytes) {
  return static_cast<RankGroup*>(group)->all_gather(sent, received, bytes) ? 0 : 1;
}

RankGroup& this_group() {
  if (group_of_thread == nullptr) throw std::logic_error("this case runs in a group of ranks only");
  return *group_of_thread;
}

RankGroup* current_group() {
  return group_of_thread;
}

InGroup::InGroup(RankGroup& group) {
  group_of_thread = &group;
}
InGroup::~InGroup() {
  group_of_thread = nullptr;
}

bool is_collective(const Family& family) {
  return std::any_of(family.parameters.begin(), family.parameters.end(),
                     [](const Parameter& parameter) { return parameter.name == "ranks"; });
}

}  // namespace dropless::conformance
