// SPDX-License-Identifier: Apache-2.0
// Bytes as the table and the profile of an implementation. Scalars are arbitrary, sizes too;
// pointers are null or lead to memory that is exactly as long as its struct_size says, so that a
// reader that trusts its own sizeof is seen.
#include <dropless/contract.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "conformance/adapters/describe.h"
#include "conformance/adapters/load.h"
#include "conformance/adapters/profile_check.h"
#include "fuzz/bytes/target.h"

namespace {

using namespace dropless::conformance;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint32_t longest = 1u << 16;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  void fill(void* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) static_cast<std::uint8_t*>(to)[i] = byte();
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// A struct of the size that its first field declares, at least that field and at most `longest`.
template <class Struct>
Bytes sized(const Struct& full) {
  const std::size_t size = std::clamp<std::size_t>(full.struct_size, 8, longest);
  Bytes bytes(size, 0);
  std::memcpy(bytes.data(), &full, std::min(size, sizeof full));
  return bytes;
}

std::uint32_t size_from(Input& input, std::uint32_t usual) {
  switch (input.byte() % 4) {
    case 0:
      return usual;
    case 1:
      return usual + input.byte();
    case 2:
      return input.byte();
    default:
      return std::uint32_t{input.byte()} << 24 | input.byte();
  }
}

dropless_profile profile_from(Input& input) {
  dropless_profile profile{};
  profile.struct_size = size_from(input, sizeof profile);
  profile.struct_version = input.byte() % 8 == 7 ? input.byte() : DROPLESS_STRUCT_VERSION;
  for (const ProfileField& field : profile_fields()) {
    const std::uint8_t kind = input.byte();
    if (kind == 255) {
      input.fill(&(profile.*field.member), sizeof(profile.*field.member));
    } else {
      profile.*field.member = kind;
    }
  }
  return profile;
}

void check_tables(Input& input) {
  const Bytes profile = sized(profile_from(input));
  const auto* declared = reinterpret_cast<const dropless_profile*>(profile.data());
  const bool legal = dropless::fuzz::accepted([&] { check_profile(declared, "input"); });
  if (legal) {
    const dropless_profile whole = completed(*declared);
    for (const ProfileField& field : profile_fields()) {
      dropless::fuzz::demand(!word_of(field, whole.*field.member).empty(), "a value has a word");
    }
  }

  dropless_implementation table{};
  table.struct_size = size_from(input, sizeof table);
  table.contract_version =
      input.byte() % 4 == 3 ? input.byte() * 1000u : std::uint32_t{DROPLESS_CONTRACT_VERSION};
  table.memory_space = DROPLESS_HOST;
  if (input.byte() % 4 == 3) table.memory_space = input.byte();
  const Bytes name = {'n', input.byte(), 0};
  const std::uint8_t pointers = input.byte();
  if ((pointers & 1) == 0) table.name = reinterpret_cast<const char*>(name.data());
  if ((pointers & 2) == 0) table.version = "1";
  if ((pointers & 4) == 0) table.build = "test";
  if ((pointers & 24) != 24) table.profile = declared;
  const Bytes bytes = sized(table);
  const auto* offered = reinterpret_cast<const dropless_implementation*>(bytes.data());
  if (dropless::fuzz::accepted([&] { check_table(offered, "input"); })) {
    dropless::fuzz::demand(legal, "an implementation with an illegal profile is refused");
    const LoadedImplementation loaded(*offered, "input", 0);
    dropless::fuzz::demand(loaded.table().struct_size == sizeof table, "the copy has our size");
    dropless::fuzz::demand(!describe(loaded).empty(), "it can be described");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  check_tables(input);
  return 0;
}
