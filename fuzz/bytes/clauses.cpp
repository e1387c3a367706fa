// SPDX-License-Identifier: Apache-2.0
// Bytes as a file of clauses: refused, or clauses that are complete.
#include "conformance/clauses/clauses.h"

#include <set>
#include <stdexcept>

#include "fuzz/bytes/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dropless::fuzz::demand;
  std::vector<dropless::conformance::Clause> clauses;
  try {
    clauses =
        dropless::conformance::parse_clauses("routing.md", dropless::fuzz::text_of(data, size));
  } catch (const std::invalid_argument&) {
    return 0;
  }
  demand(!clauses.empty(), "an accepted file has a clause");
  std::set<std::string> ids;
  for (const auto& clause : clauses) {
    demand(ids.insert(clause.id).second, "ids are unique");
    demand(clause.id.starts_with("ROUTING-"), "ids belong to the file");
    demand(!clause.title.empty() && !clause.text.empty() && !clause.source.empty(),
           "a clause is complete");
  }
  return 0;
}
