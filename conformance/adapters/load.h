// SPDX-License-Identifier: Apache-2.0
// Where an implementation comes from: built in ("cpu", "reference") or a shared library.
//
//     const LoadedImplementation mine = load_implementation("./libmine.so");
//     run_case(mine.table(), family, id);
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

class LoadedImplementation {
 public:
  LoadedImplementation(const dropless_implementation& table, std::string argument,
                       std::uint64_t fingerprint);

  // A copy as long as our own struct: entries that its author did not know are null.
  [[nodiscard]] const dropless_implementation& table() const { return table_; }
  [[nodiscard]] const std::string& argument() const { return argument_; }  // as the user wrote it
  // Hash of the library file, 0 for built-in implementations.
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  dropless_implementation table_{};
  std::string argument_;
  std::uint64_t fingerprint_;
};

// The names that need no file.
const std::vector<std::string>& built_in_implementations();

// Throws UsageError: one line that names the file, symbol, version or profile field, and the
// remedy. A shared library is loaded into this process and stays: call it in a worker only.
LoadedImplementation load_implementation(const std::string& argument);

// The checks that every table has to pass, wherever it comes from. `origin` names it in messages.
void check_table(const dropless_implementation* table, std::string_view origin);

}  // namespace dropless::conformance
