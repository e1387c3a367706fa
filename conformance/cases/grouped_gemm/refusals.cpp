// SPDX-License-Identifier: Apache-2.0
// What the products must refuse (GENERAL-3), each beside a control that succeeds.
#include <algorithm>

#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

// A call whose tensors can be bent. `tensor` copies one and lets the arguments point at the copy.
class Bent {
 public:
  Bent(CaseRun& run, const GemmProblem& problem) : call_(gemm_call(run, problem)) {}
  GemmCall& call() { return call_; }

  dropless_tensor& left() { return bend(call_.left.operand.values); }
  dropless_tensor& right() { return bend(call_.right.operand.values); }
  dropless_tensor& scales() { return bend(call_.left.operand.scales); }
  dropless_tensor& offsets() {
    dropless_tensor& copy = bend(call_.fprop.offsets);
    call_.dgrad.offsets = call_.wgrad.offsets = &copy;
    return copy;
  }
  dropless_tensor& counts() {
    dropless_tensor& copy = bend(call_.fprop.counts);
    call_.dgrad.counts = call_.wgrad.counts = &copy;
    return copy;
  }
  dropless_tensor& output() {
    dropless_tensor& copy = bend(call_.fprop.y);
    call_.dgrad.dx = call_.wgrad.dw = &copy;
    return copy;
  }
  dropless_tensor& bias() { return bend(call_.fprop.bias); }
  dropless_tensor& c() { return bend(call_.wgrad.c); }

 private:
  dropless_tensor& bend(const dropless_tensor*& pointer) {
    copy_ = *pointer;
    pointer = &copy_;
    return copy_;
  }
  GemmCall call_;
  dropless_tensor copy_{};
};

struct Wrong {
  std::string name;
  std::string products;  // first letters of those that it concerns
  std::function<void(Bent&)> bend;
  bool quantised = false;
};

// Shapes, dtypes and null pointers.
const std::vector<Wrong>& wrong_tensors() {
  static const std::vector<Wrong> list = {
      {"inner_width", "fdw", [](Bent& b) { --b.left().shape[1]; }},
      {"other_width", "fdw", [](Bent& b) { b.output().shape[1] -= 1; }},
      {"rows_of_operand", "fdw", [](Bent& b) { --b.left().shape[0]; }},
      {"rows_of_output", "fdw", [](Bent& b) { --b.output().shape[0]; }},
      {"experts_of_w", "fd", [](Bent& b) { --b.right().shape[0]; }},
      {"length_of_offsets", "fdw", [](Bent& b) { --b.offsets().shape[0]; }},
      {"length_of_counts", "fdw", [](Bent& b) { --b.counts().shape[0]; }},
      {"rank_of_output", "fdw", [](Bent& b) { b.output().rank = 1; }},
      {"rank_of_operand", "fdw", [](Bent& b) { b.right().rank = 1; }},
      {"shape_of_bias", "f", [](Bent& b) { --b.bias().shape[1]; }},
      {"shape_of_c", "w", [](Bent& b) { --b.c().shape[1]; }},
      {"dtype_of_operand", "fdw", [](Bent& b) { b.left().dtype = DROPLESS_I64; }},
      {"dtype_of_output", "fdw", [](Bent& b) { b.output().dtype = DROPLESS_I32; }},
      {"dtype_of_offsets", "fdw", [](Bent& b) { b.offsets().dtype = DROPLESS_FP32; }},
      {"dtype_of_bias", "f", [](Bent& b) { b.bias().dtype = DROPLESS_U8; }},
      {"null_operand", "fdw", [](Bent& b) { b.call().left.operand.values = nullptr; }},
      {"null_data", "fdw", [](Bent& b) { b.right().data = nullptr; }},
      {"null_data_of_output", "fdw", [](Bent& b) { b.output().data = nullptr; }},
      {"null_offsets", "fdw",
       [](Bent& b) {
         b.call().fprop.offsets = b.call().dgrad.offsets = b.call().wgrad.offsets = nullptr;
       }},
      {"null_output", "fdw",
       [](Bent& b) { b.call().fprop.y = b.call().dgrad.dx = b.call().wgrad.dw = nullptr; }},
      {"beta_without_c", "w", [](Bent& b) { b.call().wgrad.c = nullptr; }},
      {"codes_without_scales", "fdw", [](Bent& b) { b.call().left.operand.scales = nullptr; },
       true},
      {"shape_of_scales", "fdw", [](Bent& b) { --b.scales().shape[0]; }, true},
      {"dtype_of_scales", "fdw", [](Bent& b) { b.scales().dtype = DROPLESS_BF16; }, true},
      {"scale_layout", "fdw", [](Bent& b) { b.call().left.operand.scale_layout = 7; }, true},
  };
  return list;
}

const std::vector<std::string> kWrongValues = {"falling_offsets", "offsets_beyond_buffer",
                                               "count_above_zone", "negative_count"};

GemmProblem good_problem(CaseRun& run, bool quantised) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.operands = quantised ? "e4m3" : "bf16";
  problem.experts = 4, problem.out = 33, problem.in = 40;
  problem.zones = row_zones(run, {5, 0, 9, 3}, true, 40);
  if (problem.product == Product::wgrad) problem.beta = 1;
  fill_operands(run, problem, problem.product == Product::fprop, problem.product == Product::wgrad);
  return problem;
}

// The zones as they are handed over; the operands were made for the right ones.
std::pair<std::vector<Index>, std::vector<Index>> wrong_zones(const std::string& what,
                                                              const RowZones& zones) {
  std::vector<Index> offsets = zones.offsets, counts = zones.counts;
  if (what == "falling_offsets") std::swap(offsets[2], offsets[3]);
  if (what == "offsets_beyond_buffer") offsets.back() = zones.length + 1;
  if (what == "count_above_zone") counts[2] = offsets[3] - offsets[2] + 1;
  if (what == "negative_count") counts[1] = -1;
  return {offsets, counts};
}

std::string objection(const Values& values) {
  for (const Wrong& wrong : wrong_tensors()) {
    if (wrong.name != value_of(values, "what")) continue;
    const char product = value_of(values, "product").front();
    if (wrong.products.find(product) == std::string::npos) {
      return wrong.name + " does not concern " + value_of(values, "product");
    }
  }
  return "";
}

void run_refusals(CaseRun& run) {
  const std::string& what = run.word("what");
  const auto& list = wrong_tensors();
  const auto wrong =
      std::find_if(list.begin(), list.end(), [&](const Wrong& w) { return w.name == what; });
  const GemmProblem problem = good_problem(run, wrong != list.end() && wrong->quantised);
  GemmCall control = gemm_call(run, problem);
  perform(run, control);
  judge_gemm(run, problem, control);

  Bent bent(run, problem);
  if (wrong != list.end()) {
    wrong->bend(bent);
  } else {
    // Values in device memory may go unseen where the profile says so.
    if (run.implementation().memory_space != DROPLESS_HOST &&
        run.profile().device_values == DROPLESS_DEVICE_VALUES_UNCHECKED) {
      return;
    }
    const auto [offsets, counts] = wrong_zones(what, problem.zones);
    Buffers& buffers = run.buffers();
    bent.offsets() =
        *buffers.input("wrong offsets", DROPLESS_I64, {problem.experts + 1}, offsets).tensor();
    const dropless_tensor* wrong_counts =
        buffers.input("wrong counts", DROPLESS_I64, {problem.experts}, counts).tensor();
    GemmCall& call = bent.call();
    call.fprop.counts = call.dgrad.counts = call.wgrad.counts = wrong_counts;
  }
  with_entry(run, bent.call(), [&](std::string_view operation, auto entry, auto& args) {
    run.refused("GENERAL-3", what, operation, entry, args);
  });
}

std::vector<Values> select_refusals(Tier tier) {
  std::vector<Values> smoke, standard, full;
  const auto row = [](const char* product, const std::string& what) {
    return Values{{"product", product}, {"what", what}, {"seed", "1"}};
  };
  std::size_t turn = 0;
  constexpr const char* names[] = {"fprop", "dgrad", "wgrad"};
  const auto place = [&](const std::string& what, const std::string& products, bool important) {
    // Every fault once in the standard tier, the products taking turns; the others in the full one.
    ++turn;
    const std::size_t chosen = turn % products.size();
    for (std::size_t i = 0; i < products.size(); ++i) {
      const char* product = names[std::string("fdw").find(products[i])];
      (i != chosen ? full : important ? smoke : standard).push_back(row(product, what));
    }
  };
  for (const std::string& what : kWrongValues) place(what, "fdw", true);
  for (const Wrong& wrong : wrong_tensors()) {
    place(wrong.name, wrong.products, wrong.name == "inner_width");
  }
  return tier == Tier::smoke ? smoke : tier == Tier::standard ? standard : full;
}

}  // namespace

void add_grouped_gemm_refusals(Registry& registry) {
  std::vector<std::string> whats = kWrongValues;
  for (const Wrong& wrong : wrong_tensors()) whats.push_back(wrong.name);
  registry.add({"grouped_gemm.refusals",
                "Proves that an illegal product is refused and nothing is written.",
                judged_clauses({"GENERAL-3"}),
                {product_parameter(),
                 {"what", whats, 0, 0, "what is wrong with the request"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                select_refusals,
                run_refusals,
                objection});
}

}  // namespace dropless::conformance
