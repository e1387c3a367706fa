// SPDX-License-Identifier: Apache-2.0
// The profile as a list of fields: which values each may declare, and what they are called.
#pragma once

#include <dropless/contract.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dropless::conformance {

// One allowed value of a field; for fields that are plain numbers the word is the number.
struct ProfileValue {
  std::int32_t value;
  std::string word;
};

struct ProfileField {
  std::string name;
  std::string clause;
  std::int32_t dropless_profile::*member;
  std::vector<ProfileValue> allowed;
};

// Every integer field of the profile, in the order of the struct.
const std::vector<ProfileField>& profile_fields();

// Fields beyond the declared struct_size read as zero, their default; an alignment of 0 means 1.
dropless_profile completed(const dropless_profile& declared);

// The word for a declared value, the number itself where there is none.
std::string word_of(const ProfileField& field, std::int32_t value);

// A declaration outside the allowed set is refused: UsageError with field, value and allowed ones.
void check_profile(const dropless_profile* declared, std::string_view origin);

}  // namespace dropless::conformance
