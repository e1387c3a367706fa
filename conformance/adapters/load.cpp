// SPDX-License-Identifier: Apache-2.0
// Built-in implementations and dlopen: every way in which loading fails has its own sentence.
#include "conformance/adapters/load.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "conformance/adapters/device_memory.h"
#include "conformance/adapters/fingerprint.h"
#include "conformance/adapters/profile_check.h"
#include "conformance/adapters/sources.h"
#include "conformance/cases/case_id.h"
#include "optimized/cpu/implementation.h"
#include "reference/implementation.h"

namespace dropless::conformance {
namespace {

constexpr std::uint32_t largest_plausible_struct = 1u << 16;

dropless_implementation copied(const dropless_implementation& source) {
  dropless_implementation table{};
  std::memcpy(&table, &source, std::min<std::size_t>(source.struct_size, sizeof table));
  table.struct_size = sizeof table;
  return table;
}

// ELF magic; tells a text file or an object of another kind from a library that fails to link.
bool looks_like_elf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, 4) && std::memcmp(magic, "\177ELF", 4) == 0;
}

void check_file(const std::string& argument) {
  struct stat info {};
  if (stat(argument.c_str(), &info) != 0) {
    const std::string known = fmt::format("{}", fmt::join(built_in_implementations(), ", "));
    throw UsageError(fmt::format(
        "implementation '{}' is neither built in ({}) nor a file ({}); give the path of a shared "
        "library",
        argument, known, std::strerror(errno)));
  }
  // dlopen looks for names without a slash in the system's folders, not in this one.
  if (argument.find('/') == std::string::npos) {
    throw UsageError(
        fmt::format("'{0}' has no slash, so the loader would search the system's folders for it; "
                    "write ./{0}",
                    argument));
  }
  if (!S_ISREG(info.st_mode)) {
    throw UsageError(fmt::format("{} is not a file; give the path of a shared library", argument));
  }
  std::ifstream readable(argument);
  if (!readable) {
    throw UsageError(fmt::format("{} cannot be read ({}); change its permissions", argument,
                                 std::strerror(errno)));
  }
  if (!looks_like_elf(argument)) {
    throw UsageError(fmt::format(
        "{} is not a shared library; build it with -shared -fPIC and give the .so", argument));
  }
}

const dropless_implementation* open_library(const std::string& argument) {
  void* library = dlopen(argument.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw UsageError(fmt::format(
        "{} cannot be loaded ({}); link it with everything it needs, with -shared -fPIC", argument,
        dlerror()));
  }
  void* symbol = dlsym(library, DROPLESS_ENTRY_SYMBOL);
  if (symbol == nullptr) {
    throw UsageError(
        fmt::format("{} lacks the symbol {}; define it with C linkage and default visibility "
                    "(include/dropless/contract/implementation.h shows how)",
                    argument, DROPLESS_ENTRY_SYMBOL));
  }
  const auto entry = reinterpret_cast<dropless_get_implementation_fn>(symbol);
  const dropless_implementation* table = entry(DROPLESS_CONTRACT_VERSION);
  if (table == nullptr) {
    throw UsageError(fmt::format(
        "{} cannot serve contract version {}.{} ({} returned null); rebuild it against this "
        "suite's headers",
        argument, DROPLESS_CONTRACT_MAJOR, DROPLESS_CONTRACT_MINOR, DROPLESS_ENTRY_SYMBOL));
  }
  return table;
}

void check_sizes(const dropless_implementation* table, std::string_view origin) {
  const std::size_t needed =
      offsetof(dropless_implementation, profile) + sizeof(dropless_implementation::profile);
  if (table->struct_size < needed || table->struct_size > largest_plausible_struct) {
    throw UsageError(
        fmt::format("{} declares struct_size {}, but a table has {} to {} bytes; set it to "
                    "sizeof(dropless_implementation)",
                    origin, table->struct_size, needed, largest_plausible_struct));
  }
}

void check_version(const dropless_implementation* table, std::string_view origin) {
  const std::uint32_t major = table->contract_version / 1000;
  if (major != DROPLESS_CONTRACT_MAJOR) {
    throw UsageError(fmt::format(
        "{} was built against contract version {}.{}, this suite judges {}.x; rebuild it against "
        "this suite's headers",
        origin, major, table->contract_version % 1000, DROPLESS_CONTRACT_MAJOR));
  }
}

}  // namespace

LoadedImplementation::LoadedImplementation(const dropless_implementation& table,
                                           std::string argument, std::uint64_t fingerprint)
    : table_(copied(table)), argument_(std::move(argument)), fingerprint_(fingerprint) {}

const std::vector<std::string>& built_in_implementations() {
  static const std::vector<std::string> names{"cpu", "reference", "cuda"};
  return names;
}

void check_table(const dropless_implementation* table, std::string_view origin) {
  check_sizes(table, origin);
  check_version(table, origin);
  if (table->name == nullptr || *table->name == '\0') {
    throw UsageError(fmt::format("{} has no name; set .name in its table", origin));
  }
  if (table->memory_space != DROPLESS_HOST && table->memory_space != DROPLESS_CUDA_DEVICE) {
    throw UsageError(fmt::format("{} declares memory_space {}; it is 0 (host) or 1 (CUDA device)",
                                 origin, table->memory_space));
  }
  check_profile(table->profile, origin);
}

namespace {

// A table whose memory this process can reach.
LoadedImplementation reachable(const dropless_implementation& table, const std::string& argument,
                               std::uint64_t fingerprint) {
  if (table.memory_space == DROPLESS_CUDA_DEVICE) {
    if (const std::string why = no_gpu_because(); !why.empty()) {
      throw UsageError(
          fmt::format("{} declares memory_space 1 (CUDA device), but {}; run it on a machine with "
                      "a GPU, or offer operations on host memory (0)",
                      argument, why));
    }
    provide_device_memory();
  }
  return {table, argument, fingerprint};
}

}  // namespace

LoadedImplementation load_implementation(const std::string& argument) {
  if (argument == "reference" || argument == "cpu" || argument == "cuda") {
    const dropless_implementation& table = argument == "cuda"  ? cuda_implementation()
                                           : argument == "cpu" ? cpu::implementation()
                                                               : reference::implementation();
    check_table(&table, argument);
    return reachable(table, argument, 0);
  }
  if (const dropless_implementation* table = table_from_source(argument)) {
    check_table(table, argument);
    return reachable(*table, argument, 0);
  }
  check_file(argument);
  const std::uint64_t fingerprint = fingerprint_of_file(argument);
  const dropless_implementation* table = open_library(argument);
  check_table(table, argument);
  return reachable(*table, argument, fingerprint);
}

}  // namespace dropless::conformance
