// SPDX-License-Identifier: Apache-2.0
// Bytes as a results file: refused, or read without losing anything that counts.
#include "conformance/report/results.h"

#include "fuzz/bytes/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dropless::conformance;
  using dropless::fuzz::accepted;
  using dropless::fuzz::demand;
  const dropless::fuzz::MemoryFile file(dropless::fuzz::text_of(data, size));
  Results results;
  if (!accepted([&] { results = read_results(file.path()); })) return 0;
  demand(results.sound_bytes <= size, "no more is sound than there is");
  demand(!results.complete || results.sound_bytes == size, "nothing stands behind the footer");
  for (const Outcome& outcome : results.outcomes) {
    const auto json = to_json(outcome);
    demand(to_json(outcome_from(json)) == json, "an outcome is read back as it was");
    demand(one_line(json).find('\n') == std::string::npos, "a record is one line");
  }
  // A resumed run compares the header with its own; here with a header that is as it should be.
  const auto header = header_of({nlohmann::ordered_json::object(),
                                 nlohmann::ordered_json::object(),
                                 nlohmann::ordered_json::object(),
                                 nlohmann::ordered_json::object(),
                                 {"a.b:c=d"}});
  (void)accepted([&] { check_resumable(file.path(), results, header); });
  return 0;
}
