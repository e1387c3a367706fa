// SPDX-License-Identifier: Apache-2.0
// Shapes and work.
#include "fuzz/sizes.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "conformance/cases/models.h"

namespace dropless::fuzz {
namespace {

constexpr std::array<std::string_view, 11> sizes = {
    "rows",   "tokens",       "elements", "out",   "in",        "experts",
    "hidden", "intermediate", "columns",  "width", "vocabulary"};

// Sizes that some families settle themselves.
void settle_fixed(const CaseId& id, Shape& shape) {
  if (id.family == "layer.exact") shape.hidden = 64, shape.intermediate = 32;
  for (const char* plan : {"plan", "capacity", "changed_ids", "plan_repeat"}) {  // no rows at all
    if (id.family == std::string("permutation.") + plan) shape.hidden = 1, shape.intermediate = 2;
  }
  if (id.family == "grouped_gemm.nothing") shape.tokens *= shape.experts;  // rows of each expert
  const bool router = id.family.starts_with("routing.") || id.family.starts_with("losses.");
  if (router && find_value(id.values, "tokens") == nullptr) shape.tokens = 100;
}

// Rows of the buffers: padded zones give every expert a block of 16, also an empty one.
double buffer_rows(const CaseId& id, const Shape& shape) {
  const bool by_token = rows_parameter(id) == "tokens";
  const auto rows = static_cast<double>(shape.tokens * (by_token ? shape.top_k : 1));
  const std::string* zones = find_value(id.values, "zones");
  const bool padded = zones != nullptr && *zones == "padded";
  return rows + (padded ? 16 * static_cast<double>(shape.experts) : 0);
}

}  // namespace

const std::string* find_value(const Values& values, std::string_view key) {
  for (const auto& [name, value] : values) {
    if (name == key) return &value;
  }
  return nullptr;
}

Index integer_of(const CaseId& id, std::string_view key, Index otherwise) {
  const std::string* text = find_value(id.values, key);
  Index value = otherwise;
  if (text != nullptr) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

void set_value(Values& values, std::string_view key, std::string value) {
  for (auto& [name, old] : values) {
    if (name == key) old = std::move(value);
  }
}

bool is_size(std::string_view parameter) {
  return std::find(sizes.begin(), sizes.end(), parameter) != sizes.end();
}

std::string_view rows_parameter(const CaseId& id) {
  for (const std::string_view name : {"rows", "tokens"}) {
    if (find_value(id.values, name) != nullptr) return name;
  }
  return "";
}

Shape shape_of(const CaseId& id) {
  Shape shape;
  if (const std::string* name = find_value(id.values, "model")) {
    if (const conformance::Model* found = conformance::find_model(*name)) {
      const conformance::Model model = conformance::scaled(*found, integer_of(id, "divisor", 1));
      shape.experts = model.experts, shape.top_k = model.top_k;
      const bool widths = find_value(id.values, "divisor") != nullptr;
      if (widths) shape.hidden = model.hidden, shape.intermediate = model.intermediate;
      if (widths && id.family.starts_with("layer.")) {
        shape.intermediate += model.shared_intermediate / std::max<Index>(model.experts, 1);
      }
    }
  }
  shape.experts = integer_of(id, "experts", shape.experts);
  shape.experts *= integer_of(id, "groups", 1) * integer_of(id, "group_size", 1);
  shape.top_k = integer_of(id, "top_k", shape.top_k);
  shape.hidden = integer_of(id, "in", integer_of(id, "hidden", shape.hidden));
  shape.intermediate = integer_of(id, "out", integer_of(id, "intermediate", shape.intermediate));
  shape.hidden *= integer_of(id, "vocabulary", 1);
  shape.tokens = integer_of(id, "rows", integer_of(id, "tokens", integer_of(id, "elements", 1)));
  settle_fixed(id, shape);
  return shape;
}

// Measured: drawing, rounding, computing and judging an element takes between 0.1 and 1 us, a
// product in double 1 ns.
double work_of(const CaseId& id) {
  const Shape shape = shape_of(id);
  const auto t = static_cast<double>(shape.tokens), e = static_cast<double>(shape.experts);
  const auto h = static_cast<double>(shape.hidden), i = static_cast<double>(shape.intermediate);
  const std::string stage = id.family.substr(0, id.family.find('.'));
  const double rows = buffer_rows(id, shape);
  const double matrices = e * h * i, products = rows * h * i;
  if (stage == "layer") {
    const bool repeats = id.family == "layer.state" || id.family == "layer.strides";
    const double repeated = repeats ? 3 : 1;
    return repeated * (2 * matrices + 0.02 * products + 0.5 * rows * (h + i) + 0.05 * t * e * h);
  }
  if (stage == "grouped_gemm") {
    const std::string* product = find_value(id.values, "product");
    const bool wgrad = id.family == "grouped_gemm.wgrad" || (product && *product == "wgrad");
    return (wgrad ? 0.8 : 0.2) * matrices + 0.003 * products + 0.5 * rows * (h + i);
  }
  if (const Index ranks = integer_of(id, "ranks", 0); ranks > 0) {
    // Every rank has room for the worst case, which is poisoned and judged, and waits for others.
    const auto r = static_cast<double>(ranks);
    const double slots = std::min(static_cast<double>(shape.top_k), e / r + 1);
    const double repeated = id.family == "exchange.repeat" ? 20 : 1;
    return 500 * r + repeated * 0.1 * r * r * t * slots * (h + i);
  }
  const bool scores = stage == "routing" || stage == "losses";
  return 0.3 * rows * (h + i) + (scores ? 0.5 * t * e : 0);
}

}  // namespace dropless::fuzz
