// SPDX-License-Identifier: Apache-2.0
// The grammar of case ids.
#include "conformance/cases/case_id.h"

#include <fmt/format.h>

#include <algorithm>

namespace dropless::conformance {
namespace {

constexpr std::size_t longest_id = 1024;

bool lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

void check_characters(std::string_view part, std::string_view extra, std::string_view what,
                      std::string_view text) {
  if (part.empty()) throw UsageError(fmt::format("case id '{}': empty {}", text, what));
  for (const char c : part) {
    if (lower_or_digit(c) || extra.find(c) != std::string_view::npos) continue;
    throw UsageError(fmt::format("case id '{}': {} '{}' may only hold a-z, 0-9 and '{}'", text,
                                 what, part, extra));
  }
}

}  // namespace

std::string CaseId::text() const {
  std::string out = family;
  char separator = ':';
  for (const auto& [key, value] : values) {
    out += separator;
    out += key + "=" + value;
    separator = ',';
  }
  return out;
}

CaseId parse_case_id(std::string_view text) {
  if (text.size() > longest_id) {
    throw UsageError(
        fmt::format("case id of {} bytes: at most {} are allowed", text.size(), longest_id));
  }
  CaseId id;
  const std::size_t colon = text.find(':');
  const std::string_view family = text.substr(0, colon);
  check_characters(family, "_.", "family", text);
  id.family = family;
  if (colon == std::string_view::npos) return id;

  std::string_view rest = text.substr(colon + 1);
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view pair = rest.substr(0, comma);
    rest = more ? rest.substr(comma + 1) : std::string_view{};

    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      throw UsageError(fmt::format("case id '{}': '{}' is not key=value", text, pair));
    }
    const std::string key(pair.substr(0, equals));
    const std::string value(pair.substr(equals + 1));
    check_characters(key, "_", "key", text);
    check_characters(value, "._+-", "value", text);
    const auto same_key = [&](const auto& known) { return known.first == key; };
    if (std::any_of(id.values.begin(), id.values.end(), same_key)) {
      throw UsageError(fmt::format("case id '{}': key '{}' is given twice", text, key));
    }
    id.values.emplace_back(key, value);
  }
  return id;
}

}  // namespace dropless::conformance
