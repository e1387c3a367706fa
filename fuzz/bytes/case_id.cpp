// SPDX-License-Identifier: Apache-2.0
// Bytes as a case id: what is accepted has one spelling, and resolves to itself.
#include "conformance/cases/family.h"
#include "fuzz/bytes/target.h"

namespace {

using namespace dropless::conformance;

// Small, so that an id can be guessed: words, an integer, a list, and an objection.
const Registry& small_registry() {
  static const Registry built = [] {
    Registry registry;
    const auto nothing = [](CaseRun&) {};
    const auto none = [](Tier) { return std::vector<Values>{}; };
    registry.add({"a.b",
                  "purpose",
                  {"GENERAL-1"},
                  {word_parameter("w", {"x", "y"}, "a word"), integer_parameter("n", -3, 300, "n"),
                   list_parameter("l", 0, 20, 4, "a list")},
                  none,
                  nothing,
                  [](const Values& values) {
                    return values[0].second == "y" && values[1].second == "0" ? "no" : "";
                  }});
    registry.add({"a.c", "purpose", {"GENERAL-1"}, {}, none, nothing});
    return registry;
  }();
  return built;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dropless::fuzz::accepted;
  using dropless::fuzz::demand;
  const std::string_view text = dropless::fuzz::text_of(data, size);
  CaseId id;
  if (accepted([&] { id = parse_case_id(text); })) {
    demand(id.text() == text, "an id has one spelling");
    demand(parse_case_id(id.text()) == id, "an id is read back as it was");
  }
  if (accepted([&] { id = small_registry().resolve(text); })) {
    demand(small_registry().resolve(id.text()) == id, "a resolved id resolves to itself");
  }
  return 0;
}
