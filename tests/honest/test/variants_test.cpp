// SPDX-License-Identifier: Apache-2.0
// Honest variants load, and they do differ: one that computes the reference's bits under the
// default profile would prove nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "conformance/adapters/load.h"
#include "conformance/adapters/profile_check.h"
#include "conformance/adapters/sources.h"
#include "tests/honest/variant.h"

namespace dropless::honest {
namespace {

const dropless_implementation& table_named(const std::string& name) {
  static const bool registered = [] {
    conformance::register_honest_variants();
    return true;
  }();
  EXPECT_TRUE(registered);
  return *conformance::table_from_source("honest:" + name);
}

TEST(Honest, EveryVariantIsLoadedByName) {
  ASSERT_GE(all_variants().size(), 40u);
  for (const Variant& variant : all_variants()) {
    const dropless_implementation& table = table_named(variant.name);
    EXPECT_NO_THROW(conformance::check_table(&table, variant.name)) << variant.name;
    EXPECT_EQ(table.name, "honest " + variant.name);
    EXPECT_FALSE(variant.difference.empty());
  }
}

bool declares_something(const dropless_profile& profile) {
  const dropless_profile mine = conformance::completed(profile);
  const dropless_profile standard = conformance::completed(*faults::correct().profile);
  for (const conformance::ProfileField& field : conformance::profile_fields()) {
    if (mine.*field.member != standard.*field.member) return true;
  }
  return false;
}

// Every value that the profile allows on one rank is declared by one of the variants.
TEST(Honest, EveryChoiceOfTheProfileIsDeclaredBySomebody) {
  for (const conformance::ProfileField& field : conformance::profile_fields()) {
    const bool elsewhere = field.clause.starts_with("EXCHANGE") || field.name == "device_values" ||
                           field.name == "scale_padding_byte" || field.name == "gemm_alignment";
    if (elsewhere || field.allowed.empty()) continue;
    for (const conformance::ProfileValue& value : field.allowed) {
      bool declared = value.value == 0;  // the default
      for (const Variant& variant : all_variants()) {
        const dropless_profile profile = conformance::completed(*table_named(variant.name).profile);
        declared = declared || profile.*field.member == value.value;
      }
      EXPECT_TRUE(declared) << field.name << " = " << value.word;
    }
  }
}

struct Tensor {
  std::vector<float> values;
  dropless_tensor tensor{};

  Tensor(std::initializer_list<Index> shape, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    tensor.struct_size = sizeof tensor, tensor.struct_version = DROPLESS_STRUCT_VERSION;
    tensor.dtype = DROPLESS_FP32, tensor.rank = static_cast<std::int32_t>(shape.size());
    Index size = 1;
    std::copy(shape.begin(), shape.end(), tensor.shape);
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      tensor.strides[axis] = size;
      size *= tensor.shape[axis];
    }
    for (Index i = 0; i < size; ++i) values.push_back(normal(random));
    tensor.data = values.data();
  }
};

dropless_operand plain(const Tensor& tensor) {
  return {sizeof(dropless_operand), DROPLESS_STRUCT_VERSION, &tensor.tensor, nullptr, 0, 0};
}

std::vector<float> product_of(const dropless_implementation& table) {
  const Tensor x({3, 300}, 1), w({1, 5, 300}, 2), y({3, 5}, 3);
  std::int64_t ends[] = {0, 3};
  dropless_tensor offsets = y.tensor;
  offsets.data = ends, offsets.dtype = DROPLESS_I64, offsets.rank = 1;
  offsets.shape[0] = 2, offsets.strides[0] = 1;
  const dropless_operand left = plain(x), right = plain(w);
  dropless_gemm_fprop_args args{};
  args.struct_size = sizeof args, args.struct_version = DROPLESS_STRUCT_VERSION;
  args.alpha = 1, args.x = &left, args.w = &right, args.offsets = &offsets, args.y = &y.tensor;
  dropless_call call{};
  call.struct_size = sizeof call, call.struct_version = DROPLESS_STRUCT_VERSION;
  EXPECT_EQ(table.gemm_fprop(table.context, &call, &args), DROPLESS_OK) << call.message;
  return y.values;
}

TEST(Honest, AccumulatorsGiveOtherBitsAndNearlyTheSameValues) {
  const std::vector<float> exact = product_of(faults::correct());
  int accumulators = 0;
  for (const Variant& variant : all_variants()) {
    if (!variant.name.starts_with("gemm-")) continue;
    const dropless_implementation& table = table_named(variant.name);
    const std::vector<float> got = product_of(table);
    EXPECT_NE(got, exact) << variant.name;
    const float distance =
        table.profile->partials == DROPLESS_PARTIALS_BF16 ? 1.0f : 1e-3f;  // |terms| add up to 200
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], exact[i], distance) << variant.name;
    }
    ++accumulators;
  }
  EXPECT_GE(accumulators, 8);
}

TEST(Honest, OtherVariantsDeclareSomethingOrReplaceSomething) {
  for (const Variant& variant : all_variants()) {
    const bool by_name = variant.name.starts_with("gemm-") || variant.base == Base::cpu ||
                         variant.name.find("fp32") != std::string::npos ||
                         variant.name == "router-fast";
    EXPECT_TRUE(by_name || declares_something(*table_named(variant.name).profile)) << variant.name;
  }
}

TEST(Honest, AnUnknownNameIsRefused) {
  EXPECT_THROW(table_named("no-such-variant"), std::exception);
}

}  // namespace
}  // namespace dropless::honest
