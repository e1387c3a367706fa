// SPDX-License-Identifier: Apache-2.0
// Products put together from parts.
#include "tests/faults/products.h"

#include <deque>

namespace dropless::faults {

const dropless_tensor* bias_of(const Fprop& a) {
  return a.bias;
}
const dropless_tensor* bias_of(const Dgrad&) {
  return nullptr;
}
const dropless_tensor* bias_of(const Wgrad&) {
  return nullptr;
}

void drop_epilogue(Fprop& a) {
  a.bias = nullptr;
}
void drop_epilogue(Dgrad&) {}
void drop_epilogue(Wgrad& a) {
  a.beta = 0;
  a.c = nullptr;
}

void contract_partly(Planted& planted, Keep keep) {
  around_products(planted, [keep](const auto& next, auto& a) -> dropless_status {
    if (!is_readable(left_of(a)) || a.offsets == nullptr) return next(a);
    // Refusals first, into a scratch output: C may be the output itself.
    const Copy scratch(output_of(a));
    auto trial = a;
    output_of(trial) = scratch.tensor();
    if (const dropless_status status = next(trial); status != DROPLESS_OK) return status;
    const Copy values(left_of(a)->values);
    mask_left(a, values, keep);
    const dropless_operand left = with_values(*left_of(a), values.tensor());
    left_of(a) = &left;
    return next(a);
  });
}

void combine_parts(Planted& planted, Index parts, PartsOfCall combine) {
  around_products(planted, [parts, combine](const auto& next, auto& a) -> dropless_status {
    if (!is_readable(left_of(a)) || !is_readable(output_of(a)) || a.offsets == nullptr) {
      return next(a);
    }
    const Copy scratch(output_of(a));
    auto trial = a;
    output_of(trial) = scratch.tensor();
    if (const dropless_status status = next(trial); status != DROPLESS_OK) return status;
    // The last epilogue is taken before anything is written.
    std::deque<Copy> outputs;
    for (Index part = 0; part < parts; ++part) {
      const Copy values(left_of(a)->values);
      mask_left(a, values, [=](Index k, Index length) { return k * parts / length == part; });
      const dropless_operand left = with_values(*left_of(a), values.tensor());
      outputs.emplace_back(output_of(a), DROPLESS_FP32);
      auto piece = a;
      left_of(piece) = &left;
      output_of(piece) = outputs.back().tensor();
      if (part > 0) drop_epilogue(piece);
      if (const dropless_status status = next(piece); status != DROPLESS_OK) return status;
    }
    const dropless_status status = next(a);  // padding and tail
    if (status != DROPLESS_OK) return status;
    const Combine combined = combine(next.call());
    each_result(a, [&](Index i, Index) {
      std::vector<double> values;
      for (const Copy& output : outputs) values.push_back(output.elements().load_flat(i));
      view(output_of(a)).store_flat(combined(values, i), i);
    });
    return status;
  });
}

}  // namespace dropless::faults
