// SPDX-License-Identifier: Apache-2.0
// Runs a byte-level target over files, where there is no libFuzzer: replay FILE_OR_FOLDER...
// Beside each file, its beginnings and single changed bytes are tried too.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include "fuzz/bytes/target.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t changes_per_file = 128;

Bytes contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(const Bytes& bytes) {
  // A copy of its own: a sanitizer sees a read beyond the end.
  const Bytes exact(bytes);
  (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void run_around(const Bytes& bytes) {
  run(bytes);
  const std::size_t step = bytes.size() / changes_per_file + 1;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    run(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at)));
    Bytes changed = bytes;
    changed[at] = static_cast<std::uint8_t>(changed[at] ^ (1u << (at % 8)));
    run(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) run_around(contents(file));
  std::cout << files.size() << " files\n";
  return files.empty() ? 1 : 0;
}
