// SPDX-License-Identifier: Apache-2.0
// 64-bit FNV-1a: tells whether a file or a list is still the one it was. Not a signature.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dropless::conformance {

std::uint64_t fingerprint_of(std::string_view bytes);
std::uint64_t fingerprint_of_file(const std::string& path);  // throws UsageError

std::string hexadecimal(std::uint64_t value);  // 16 digits

}  // namespace dropless::conformance
