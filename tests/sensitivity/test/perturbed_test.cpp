// SPDX-License-Identifier: Apache-2.0
// The perturbed reference computes with the changed input, in the calls it was told, and leaves the
// caller's tensors alone.
#include "tests/sensitivity/perturbed.h"

#include <gtest/gtest.h>

#include <vector>

namespace dropless::sensitivity {
namespace {

template <class Value>
dropless_tensor tensor_of(std::vector<Value>& values, dropless_dtype dtype) {
  dropless_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.data = values.data(), tensor.dtype = dtype, tensor.rank = 1;
  tensor.shape[0] = static_cast<std::int64_t>(values.size());
  tensor.strides[0] = 1;
  return tensor;
}

// The mean of two cross-entropies over two classes, label 0 both times.
struct Loss {
  std::vector<float> logits = {2, 0, 3, 1}, loss = {0};
  std::vector<std::int64_t> labels = {0, 0};
  dropless_status status = DROPLESS_OK;

  float compute(const dropless_implementation& table) {
    dropless_tensor z = tensor_of(logits, DROPLESS_FP32), l = tensor_of(labels, DROPLESS_I64),
                    y = tensor_of(loss, DROPLESS_FP32);
    z.rank = 2, z.shape[0] = z.shape[1] = 2, z.strides[0] = 2, z.strides[1] = 1;
    dropless_cross_entropy_args args{};
    args.struct_size = sizeof args;
    args.logits = &z, args.labels = &l, args.loss = &y;
    dropless_call call{};
    call.struct_size = sizeof call;
    status = table.cross_entropy_forward(table.context, &call, &args);
    return loss[0];
  }
};

TEST(Perturbed, ChangesOneInputOnItsWay) {
  Loss loss;
  const Perturbed none({});
  const float before = loss.compute(none.table());
  EXPECT_EQ(none.changed(), 0);
  ASSERT_EQ(none.seen().count("cross_entropy_forward.labels"), 1u);
  EXPECT_EQ(none.seen().at("cross_entropy_forward.labels").role, Role::labels);

  const Perturbed negated({"cross_entropy_forward", "logits", "negate largest"});
  EXPECT_GT(loss.compute(negated.table()), before + 1);
  EXPECT_EQ(negated.changed(), 1);
  EXPECT_EQ(negated.refused(), 0);
  EXPECT_EQ(loss.logits, (std::vector<float>{2, 0, 3, 1}));
}

TEST(Perturbed, ChangesOneCallAlone) {
  Loss loss;
  const Perturbed second({"cross_entropy_forward", "logits", "negate largest", 2});
  const float first_call = loss.compute(second.table());
  EXPECT_GT(loss.compute(second.table()), first_call + 1);
  EXPECT_EQ(loss.compute(second.table()), first_call);
  EXPECT_EQ(second.changed(), 1);
}

// A refusal writes nothing, so an input that is an output too must come back as it was.
TEST(Perturbed, KnowsARefusalAndTakesTheChangeBack) {
  std::vector<float> weight = {1}, moment = {0}, square = {0}, gradient = {1};
  dropless_tensor w = tensor_of(weight, DROPLESS_FP32), m = tensor_of(moment, DROPLESS_FP32),
                  v = tensor_of(square, DROPLESS_FP32), g = tensor_of(gradient, DROPLESS_FP32);
  dropless_adamw_args args{};
  args.struct_size = sizeof args;
  args.gradient = &g, args.first_moment = &m, args.second_moment = &v, args.weight = &w;
  args.learning_rate = 0.1, args.beta1 = 0.9, args.beta2 = 0.99, args.eps = 1e-8;
  args.gradient_scale = 1;
  args.step = 0;  // not a step: refused
  dropless_call call{};
  call.struct_size = sizeof call;
  const Perturbed changed({"adamw", "weight", "negate largest"});
  const dropless_implementation& table = changed.table();
  EXPECT_NE(table.adamw(table.context, &call, &args), DROPLESS_OK);
  EXPECT_EQ(changed.changed(), 1);
  EXPECT_EQ(changed.refused(), 1);
  EXPECT_EQ(weight[0], 1.0f);
}

}  // namespace
}  // namespace dropless::sensitivity
