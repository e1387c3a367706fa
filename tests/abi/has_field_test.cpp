// SPDX-License-Identifier: Apache-2.0
// DROPLESS_HAS_FIELD: a field counts only when the writer's declared size contains all of it.
#include <dropless/contract.h>
#include <gtest/gtest.h>

namespace {

bool has_counts(std::uint32_t declared) {
  dropless_dequantize_args args{};
  args.struct_size = declared;
  return DROPLESS_HAS_FIELD(&args, dropless_dequantize_args, counts);
}

TEST(HasField, NeedsEveryByteOfTheField) {
  constexpr std::uint32_t begin = offsetof(dropless_dequantize_args, counts);
  constexpr std::uint32_t end = begin + sizeof(void*);
  EXPECT_FALSE(has_counts(0));
  EXPECT_FALSE(has_counts(begin));
  EXPECT_FALSE(has_counts(begin + 1));
  EXPECT_FALSE(has_counts(end - 1));
  EXPECT_TRUE(has_counts(end));
  EXPECT_TRUE(has_counts(sizeof(dropless_dequantize_args)));
}

TEST(HasField, AcceptsALongerStructOfANewerWriter) {
  EXPECT_TRUE(has_counts(sizeof(dropless_dequantize_args) + 64));
  EXPECT_TRUE(has_counts(0xFFFFFFFFu));
}

// A library built when the table ended before `model_open` offers nothing from there on.
TEST(HasField, OlderTableEndsWhereItsAuthorCompiledIt) {
  dropless_implementation table{};
  table.struct_size = offsetof(dropless_implementation, model_open);
  EXPECT_TRUE(DROPLESS_HAS_FIELD(&table, dropless_implementation, exchange_close));
  EXPECT_FALSE(DROPLESS_HAS_FIELD(&table, dropless_implementation, model_open));
  EXPECT_FALSE(DROPLESS_HAS_FIELD(&table, dropless_implementation, synchronize));
}

TEST(HasField, ArraysCountAsAWhole) {
  dropless_call call{};
  call.struct_size = offsetof(dropless_call, message) + DROPLESS_MESSAGE_BYTES - 1;
  EXPECT_FALSE(DROPLESS_HAS_FIELD(&call, dropless_call, message));
  ++call.struct_size;
  EXPECT_TRUE(DROPLESS_HAS_FIELD(&call, dropless_call, message));
  EXPECT_FALSE(DROPLESS_HAS_FIELD(&call, dropless_call, path));
}

TEST(HasField, ReadsThroughPointersToConst) {
  dropless_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  const dropless_tensor* reader = &tensor;
  EXPECT_TRUE(DROPLESS_HAS_FIELD(reader, dropless_tensor, strides));
}

TEST(ContractVersion, IsMajorTimesThousandPlusMinor) {
  EXPECT_EQ(DROPLESS_CONTRACT_VERSION / 1000, std::uint32_t{DROPLESS_CONTRACT_MAJOR});
  EXPECT_EQ(DROPLESS_CONTRACT_VERSION % 1000, std::uint32_t{DROPLESS_CONTRACT_MINOR});
  EXPECT_STREQ(DROPLESS_ENTRY_SYMBOL, "dropless_get_implementation");
}

}  // namespace
