// SPDX-License-Identifier: Apache-2.0
// What the byte-level targets share. Each target defines LLVMFuzzerTestOneInput: arbitrary bytes
// must be read or refused with a UsageError, and nothing else may happen.
//
// Built twice: with replay.cpp as an ordinary test over the files of corpus/<target>/, and, where
// clang has libFuzzer, as a fuzzer.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "conformance/cases/case_id.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace dropless::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A broken property, in a form that libFuzzer and ctest both see.
inline void demand(bool met, const char* what) {
  if (met) return;
  std::fprintf(stderr, "property broken: %s\n", what);
  std::abort();
}

// Runs `read`; true when it accepted its input. A refusal must be one line of text.
template <class Read>
bool accepted(Read read) {
  try {
    read();
    return true;
  } catch (const conformance::UsageError& refusal) {
    demand(*refusal.what() != '\0', "a refusal says something");
    return false;
  }
}

// A file that lives in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view contents) : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    demand(descriptor_ >= 0, "memory for the input");
    for (std::size_t done = 0; done < contents.size();) {
      const ssize_t count = write(descriptor_, contents.data() + done, contents.size() - done);
      demand(count > 0, "memory for the input");
      done += static_cast<std::size_t>(count);
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace dropless::fuzz
