// SPDX-License-Identifier: Apache-2.0
// A change is small, stays in its place and says when it changed nothing.
#include "tests/sensitivity/edits.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace dropless::sensitivity {
namespace {

template <class Value>
dropless_tensor matrix(std::vector<Value>& values, dropless_dtype dtype, std::int64_t rows) {
  dropless_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.data = values.data(), tensor.dtype = dtype, tensor.rank = 2;
  tensor.shape[0] = rows, tensor.shape[1] = static_cast<std::int64_t>(values.size()) / rows;
  tensor.strides[0] = tensor.shape[1], tensor.strides[1] = 1;
  return tensor;
}

const Edit& named(Role role, const std::string& name) {
  for (const Edit& edit : edits_of(role)) {
    if (edit.name == name) return edit;
  }
  throw std::logic_error("no edit " + name);
}

template <class Value>
std::size_t differences(const std::vector<Value>& a, const std::vector<Value>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST(Edits, OneElementChangesItsSign) {
  const std::vector<float> before = {1, -2, 3, -8, 5, 6};
  std::vector<float> after = before;
  EXPECT_TRUE(named(Role::values, "negate largest").apply(matrix(after, DROPLESS_FP32, 2)));
  EXPECT_EQ(after[3], 8.0f);
  EXPECT_EQ(differences(before, after), 1u);
}

TEST(Edits, EveryEditThatSaysSoChangesSomething) {
  const std::vector<std::int64_t> before = {0, 2, 2, 5, 7, 9};
  for (const Role role : {Role::ids, Role::labels, Role::mask, Role::counts, Role::totals,
                          Role::offsets, Role::map}) {
    for (const Edit& edit : edits_of(role)) {
      std::vector<std::int64_t> after = before;
      const bool changed = edit.apply(matrix(after, DROPLESS_I64, 3));
      EXPECT_EQ(changed, differences(before, after) > 0) << edit.name;
    }
  }
}

TEST(Edits, IdsOfATokenStayDifferent) {
  std::vector<std::int64_t> ids = {0, 3, 2, 1, 3, 0};
  EXPECT_TRUE(named(Role::ids, "another expert first").apply(matrix(ids, DROPLESS_I64, 3)));
  EXPECT_EQ(ids, (std::vector<std::int64_t>{1, 3, 2, 1, 3, 0}));
}

TEST(Edits, BordersOfZonesStayInOrder) {
  for (const Edit& edit : edits_of(Role::offsets)) {
    std::vector<std::int64_t> offsets = {0, 4, 4, 9};
    edit.apply(matrix(offsets, DROPLESS_I64, 1));
    for (std::size_t i = 1; i < offsets.size(); ++i) EXPECT_LE(offsets[i - 1], offsets[i]);
    EXPECT_EQ(offsets[0], 0) << edit.name;
  }
}

TEST(Edits, NothingIsChangedWhereThereIsNothing) {
  std::vector<float> zeros(4, 0.0f);
  EXPECT_FALSE(named(Role::values, "negate largest").apply(matrix(zeros, DROPLESS_FP32, 2)));
  EXPECT_FALSE(named(Role::values, "swap rows first").apply(matrix(zeros, DROPLESS_FP32, 2)));
}

}  // namespace
}  // namespace dropless::sensitivity
