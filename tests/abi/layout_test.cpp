// SPDX-License-Identifier: Apache-2.0
// Structs, enumerators and the table of operations have the binary layout that was once published:
// libraries built against an older contract stay loadable.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/abi/measured.h"

namespace {

static_assert(sizeof(void*) == 8 && sizeof(long) == 8, "the table is written for LP64 machines");

#define STRUCT(type, bytes) \
  static_assert(std::is_standard_layout_v<type> && std::is_trivially_copyable_v<type>);
#define FIELD(type, field, offset, bytes)
#define ENUMERATOR(name, value)
#include "tests/abi/layout/all.inc"
#undef STRUCT
#undef FIELD
#undef ENUMERATOR

#define STRUCT ABI_STRUCT_ROW
#define FIELD ABI_FIELD_ROW
#define ENUMERATOR ABI_ENUMERATOR_ROW
constexpr abi_row rows_of_cpp[] = {
#include "tests/abi/layout/all.inc"
};

std::span<const abi_row> rows() {
  return rows_of_cpp;
}

std::string label(const abi_row& row) {
  std::string text = row.type != nullptr ? row.type : "";
  if (row.name != nullptr) text += (text.empty() ? "" : ".") + std::string(row.name);
  return text;
}

void expect_as_written(std::span<const abi_row> measured) {
  for (const abi_row& row : measured) {
    EXPECT_EQ(row.offset, row.expected_offset) << label(row);
    EXPECT_EQ(row.bytes, row.expected_bytes) << label(row);
  }
}

// What a pattern's first group matches in the text of all contract headers.
std::set<std::string> names_in_headers(const std::string& pattern) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(DROPLESS_CONTRACT_FOLDER)) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::regex expression(pattern);
    for (std::sregex_iterator i(text.begin(), text.end(), expression), end; i != end; ++i) {
      found.insert((*i)[1]);
    }
  }
  return found;
}

TEST(Layout, CppCompilerAgreesWithTheTable) {
  expect_as_written(rows());
}

TEST(Layout, CCompilerAgreesWithTheTable) {
  ASSERT_EQ(abi_row_count_of_c, rows().size());
  expect_as_written({abi_rows_of_c, abi_row_count_of_c});
}

TEST(Layout, TableListsEveryStructAndEnumerator) {
  std::set<std::string> structs;
  std::set<std::string> enumerators;
  for (const abi_row& row : rows()) {
    if (row.type == nullptr) enumerators.insert(row.name);
    if (row.name == nullptr) structs.insert(row.type);
  }
  EXPECT_EQ(structs, names_in_headers(R"(typedef struct (dropless_\w+) \{)"));
  EXPECT_EQ(enumerators, names_in_headers(R"(\b(DROPLESS_[A-Z0-9_]+) = [0-9])"));
  EXPECT_GE(structs.size(), 40u);
}

// The listed fields cover every byte of their struct: none is missing from the table, and the
// compiler put no padding between or behind them, whose bytes nobody would ever set.
TEST(Layout, NoPaddingAndNoUnlistedField) {
  std::size_t bytes = 0;
  std::size_t covered = 0;
  std::string type;
  const auto finish = [&] { EXPECT_EQ(covered, bytes) << type << ": padding or a missing row"; };
  for (const abi_row& row : rows()) {
    if (row.type == nullptr) continue;
    if (row.name == nullptr) {
      finish();
      type = row.type;
      bytes = row.bytes;
      covered = 0;
    } else {
      ASSERT_EQ(type, row.type) << "rows of a struct belong together";
      EXPECT_EQ(row.offset, covered) << label(row) << ": padding or a missing row before it";
      covered = row.offset + row.bytes;
    }
  }
  finish();
}

TEST(Layout, EveryStructBeginsWithItsSizeAndVersion) {
  for (std::size_t i = 0; i < rows().size(); ++i) {
    const abi_row& row = rows()[i];
    if (row.type == nullptr || row.name != nullptr) continue;
    ASSERT_LT(i + 2, rows().size());
    const bool is_table = std::string(row.type) == "dropless_implementation";
    EXPECT_STREQ(rows()[i + 1].name, "struct_size") << row.type;
    EXPECT_STREQ(rows()[i + 2].name, is_table ? "contract_version" : "struct_version") << row.type;
    EXPECT_EQ(rows()[i + 1].bytes, 4u);
    EXPECT_EQ(rows()[i + 2].bytes, 4u);
  }
}

TEST(Layout, OperationsFollowEachOtherFromByte56) {
  std::vector<std::size_t> offsets;
#define OFFSET(name, args) offsets.push_back(offsetof(dropless_implementation, name));
  DROPLESS_OPERATIONS(OFFSET)
#undef OFFSET
  ASSERT_GE(offsets.size(), 39u);  // what contract version 1000 has
  for (std::size_t i = 0; i < offsets.size(); ++i) EXPECT_EQ(offsets[i], 56 + 8 * i);
  EXPECT_EQ(sizeof(dropless_implementation), 56 + 8 * offsets.size());
}

TEST(Layout, EveryOperationTakesAStructOfTheTable) {
  std::set<std::string> structs;
  for (const abi_row& row : rows()) {
    if (row.type != nullptr && row.name == nullptr) structs.insert(row.type);
  }
#define EXPECT_LISTED(name, args) EXPECT_TRUE(structs.contains(#args)) << #name;
  DROPLESS_OPERATIONS(EXPECT_LISTED)
#undef EXPECT_LISTED
}

}  // namespace
