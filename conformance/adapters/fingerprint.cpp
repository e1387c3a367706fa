// SPDX-License-Identifier: Apache-2.0
// FNV-1a (Fowler, Noll, Vo), 64 bits.
#include "conformance/adapters/fingerprint.h"

#include <fmt/format.h>

#include <fstream>
#include <vector>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

constexpr std::uint64_t offset_basis = 0xcbf29ce484222325u;
constexpr std::uint64_t prime = 0x100000001b3u;

std::uint64_t continued(std::uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= prime;
  }
  return hash;
}

}  // namespace

std::uint64_t fingerprint_of(std::string_view bytes) {
  return continued(offset_basis, bytes);
}

std::uint64_t fingerprint_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("{} cannot be read; change its permissions", path));
  std::vector<char> chunk(1 << 16);
  std::uint64_t hash = offset_basis;
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    hash = continued(hash, {chunk.data(), static_cast<std::size_t>(file.gcount())});
  }
  return hash;
}

std::string hexadecimal(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace dropless::conformance
