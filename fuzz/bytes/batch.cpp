// SPDX-License-Identifier: Apache-2.0
// Bytes as a batch file: refused, or a choice of legal cases without repetition.
#include <set>

#include "conformance/runner/chosen.h"
#include "fuzz/bytes/target.h"

namespace {

using namespace dropless::conformance;

const Registry& small_registry() {
  static const Registry built = [] {
    Registry registry;
    registry.add({"a.b",
                  "purpose",
                  {"GENERAL-1"},
                  {integer_parameter("n", 0, 9, "a number")},
                  [](Tier tier) {
                    return tier == Tier::smoke ? std::vector<Values>{{{"n", "1"}}, {{"n", "2"}}}
                                               : std::vector<Values>{};
                  },
                  [](CaseRun&) {}});
    return registry;
  }();
  return built;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dropless::fuzz::demand;
  const dropless::fuzz::MemoryFile file(dropless::fuzz::text_of(data, size));
  Wishes wishes;
  wishes.batch = file.path();
  std::vector<CaseId> cases;
  if (!dropless::fuzz::accepted([&] { cases = chosen_cases(small_registry(), wishes); })) return 0;
  demand(!cases.empty(), "an accepted batch names a case");
  std::set<std::string> seen;
  for (const CaseId& id : cases) {
    demand(seen.insert(id.text()).second, "no case twice");
    demand(small_registry().resolve(id.text()) == id, "every case is legal");
  }
  return 0;
}
