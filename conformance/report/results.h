// SPDX-License-Identifier: Apache-2.0
// The results file: JSON lines, only ever appended to.
//
//   {"record":"header", "schema":1, suite, machine, implementation, selection, cases, case_list...}
//   {"record":"case", id, stage, model, status, reason, checks, failures[], attempts[], ...}  each
//   {"record":"resumed", machine, at}                                           after a break
//   {"record":"footer", cases, counts{}, exit_code, seconds, ended}             last
//
// A file without a footer is an interrupted run and can be resumed. The last line may be cut off
// by the interruption and is then dropped; any other damage is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/runner/outcome.h"

namespace dropless::conformance {

struct Results {
  nlohmann::ordered_json header;
  std::vector<Outcome> outcomes;  // in the order of the file
  bool complete = false;          // the footer is there
  std::size_t sound_bytes = 0;    // length without a cut-off last line
};

// Throws UsageError that names file, line and damage.
Results read_results(const std::string& path);

// Header of a new run: everything that has to be the same for a resumed one.
struct RunIdentity {
  nlohmann::ordered_json suite, implementation, selection, settings;
  std::vector<std::string> case_ids;
};
nlohmann::ordered_json header_of(const RunIdentity& identity);
// Throws UsageError when `results` belong to another suite, implementation or list of cases.
void check_resumable(const std::string& path, const Results& results,
                     const nlohmann::ordered_json& header);

// One process writes at a time; a second one gets a UsageError.
class ResultsWriter {
 public:
  // A new file, with missing folders made. Throws UsageError when it exists or can't be written.
  static ResultsWriter create(const std::string& path, const nlohmann::ordered_json& header);
  // An existing file, locked before it is read and not changed yet.
  static ResultsWriter reopen(const std::string& path);
  ResultsWriter(ResultsWriter&& other) noexcept;
  ResultsWriter& operator=(ResultsWriter&&) = delete;
  ~ResultsWriter();

  // After reopen: cuts an unfinished last line off and notes that the run goes on.
  void go_on_after(const Results& results);
  // Each record is one write; throws UsageError when it doesn't fit on the disk.
  void append(const nlohmann::ordered_json& record);
  // Appends and waits until the disk has everything.
  void finish(const nlohmann::ordered_json& footer);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  ResultsWriter(std::string path, int descriptor);
  std::string path_;
  int descriptor_;
};

std::string utc_now();  // 2026-01-31T12:00:00Z

}  // namespace dropless::conformance
