// SPDX-License-Identifier: Apache-2.0
// Any sizes, down to none: GROUPED_GEMM-1a, 1b, and declared alignment, GROUPED_GEMM-1c.
#include <algorithm>

#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

GemmProblem sized_problem(CaseRun& run, std::vector<Index> counts, bool padded, Index tail) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.experts = run.integer("experts");
  problem.out = run.integer("out"), problem.in = run.integer("in");
  problem.zones = row_zones(run, std::move(counts), padded, tail);
  return problem;
}

void run_sizes(CaseRun& run) {
  Random random = run.random("zones");
  GemmProblem problem = sized_problem(
      run, rows_per_expert(run.word("load"), run.integer("experts"), run.integer("rows"), random),
      run.word("zones") == "padded", 2);
  problem.operands = run.word("operands");
  problem.output = plain_dtype(run.word("output"));
  fill_operands(run, problem, false, false);
  GemmCall call = gemm_call(run, problem);
  perform(run, call, "GROUPED_GEMM-1a");
  judge_gemm(run, problem, call, "GROUPED_GEMM-1a");
}

// No rows, no experts, or a width of zero: data pointers are null, outputs are still written.
void run_nothing(CaseRun& run) {
  const bool rows = run.integer("rows") > 0;
  std::vector<Index> counts(static_cast<std::size_t>(run.integer("experts")), run.integer("rows"));
  const bool some = rows && run.integer("experts") > 0;
  GemmProblem problem = sized_problem(run, std::move(counts), false, some ? 1 : 0);
  problem.operands = "bf16";
  problem.beta = static_cast<double>(run.integer("beta")) / 2;
  problem.in_place = problem.beta != 0 && problem.product == Product::wgrad;
  fill_operands(run, problem, problem.product == Product::fprop, problem.in_place);
  GemmCall call = gemm_call(run, problem);
  run.judge().require(problem.left.empty() || problem.right.empty(), "an operand is empty");
  perform(run, call, "GROUPED_GEMM-1b");
  judge_gemm(run, problem, call, "GROUPED_GEMM-1b");
  if (call.output->size() == 0) {
    run.judge().holds("GROUPED_GEMM-1b", "status of a call without output", true, "OK", "OK");
  }
}

// An implementation that demands nothing gets the same request and must be right.
void run_alignment(CaseRun& run) {
  const Index declared = std::max(run.profile().gemm_alignment, 1);
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.experts = 3, problem.out = 40, problem.in = 24;
  problem.zones = row_zones(run, {declared, 2 * declared, declared}, false, 3);
  fill_operands(run, problem, false, false);
  GemmCall control = gemm_call(run, problem);
  perform(run, control);
  judge_gemm(run, problem, control);

  // The first zone ends one row early or late: all zones behind it start off the grid.
  const Index shift = run.word("zones") == "short" ? -1 : 1;
  GemmProblem odd = problem;
  odd.zones.offsets = {0, 16 * declared + shift, 18 * declared + shift, 19 * declared + shift};
  odd.zones.counts = {16 * declared + shift, 2 * declared, declared};
  odd.zones.length = odd.zones.offsets.back() + 3;
  fill_operands(run, odd, false, false);
  GemmCall call = gemm_call(run, odd);
  if (declared <= 1) {
    perform(run, call, "GROUPED_GEMM-1c");
    judge_gemm(run, odd, call, "GROUPED_GEMM-1c");
    return;
  }
  with_entry(run, call, [&](std::string_view operation, auto entry, auto& args) {
    run.refused("GROUPED_GEMM-1c", "zones off the declared grid", operation, entry, args);
  });
}

std::vector<Parameter> size_parameters(Index least, std::vector<Parameter> more) {
  std::vector<Parameter> all = {product_parameter(),
                                {"experts", {}, least, 1024, "experts E"},
                                {"out", {}, least, 1 << 16, "columns of y, O"},
                                {"in", {}, least, 1 << 16, "columns of x, I"},
                                {"rows", {}, 0, 1 << 20, "real rows over all experts"}};
  all.insert(all.end(), more.begin(), more.end());
  all.push_back({"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"});
  return all;
}

struct Size {
  const char *experts, *out, *in, *rows, *load;
};

// Every size with the three products; dtypes and zones take turns.
std::vector<Values> sizes(const std::vector<Size>& list, std::size_t turn) {
  std::vector<Values> rows;
  for (const Size& size : list) {
    for (const std::string& product : product_words()) {
      ++turn;
      rows.push_back({{"product", product},
                      {"experts", size.experts},
                      {"out", size.out},
                      {"in", size.in},
                      {"rows", size.rows},
                      {"load", size.load},
                      {"zones", turn % 4 < 2 ? "tight" : "padded"},
                      {"operands", turn % 3 == 0 ? "fp32" : "bf16"},
                      {"output", turn % 2 == 0 ? "fp32" : "bf16"},
                      {"seed", "1"}});
    }
  }
  return rows;
}

std::vector<Values> select_sizes(Tier tier) {
  if (tier == Tier::smoke) return sizes({{"4", "33", "17", "70", "ragged"}}, 0);
  if (tier == Tier::standard) {
    return sizes({{"1", "1", "1", "1", "balanced"},
                  {"1", "65", "129", "257", "balanced"},
                  {"2", "7", "300", "3", "alternating"},
                  {"3", "130", "5", "66", "empty_first"},
                  {"5", "31", "63", "100", "all_empty"},
                  {"9", "96", "48", "600", "tile_edge"},
                  {"4", "40", "24", "65", "one_hot"},
                  {"32", "15", "34", "32", "one_row_each"},
                  {"60", "15", "16", "127", "empty_middle"},
                  {"512", "6", "10", "300", "zipf"}},
                 1);
  }
  return sizes({{"1", "1", "4097", "5", "balanced"},
                {"2", "513", "255", "1025", "ragged"},
                {"16", "256", "128", "900", "tile_edge"},
                {"16", "127", "257", "900", "tile_edge"},
                {"384", "64", "32", "1500", "empty_last"},
                {"512", "32", "64", "512", "one_row_each"},
                {"1024", "3", "2", "5", "zipf"}},
               2);
}

std::vector<Values> select_nothing(Tier tier) {
  std::vector<Values> rows;
  const auto add = [&](const char* product, const char* experts, const char* out, const char* in,
                       const char* count, const char* beta) {
    rows.push_back({{"product", product},
                    {"experts", experts},
                    {"out", out},
                    {"in", in},
                    {"rows", count},
                    {"beta", beta},
                    {"seed", "1"}});
  };
  if (tier == Tier::smoke) {
    for (const char* product : {"fprop", "dgrad", "wgrad"}) add(product, "3", "20", "12", "0", "0");
  } else if (tier == Tier::standard) {
    add("wgrad", "3", "20", "12", "0", "2"), add("wgrad", "3", "20", "12", "0", "1");
    for (const char* product : {"fprop", "dgrad", "wgrad"}) {
      add(product, "0", "20", "12", "0", "0"), add(product, "3", "0", "12", "4", "0");
      add(product, "3", "20", "0", "4", "0");
    }
  }
  return rows;
}

}  // namespace

void add_grouped_gemm_shapes(Registry& registry) {
  registry.add(
      {"grouped_gemm.sizes",
       "Proves sizes that no tile divides, from one element to 512 experts, on exact data.",
       judged_clauses({"GROUPED_GEMM-1a"}),
       size_parameters(1, {load_parameter("how the rows spread"),
                           {"zones", {"tight", "padded"}, 0, 0, "zones exact, or rounded up"},
                           {"operands", {"bf16", "fp32"}, 0, 0, "dtype of both operands"},
                           {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"}}),
       select_sizes, run_sizes});
  registry.add({"grouped_gemm.nothing",
                "Proves requests without rows, experts or columns, whose data pointers are null; "
                "rows counts per expert here.",
                judged_clauses({"GROUPED_GEMM-1b"}),
                size_parameters(0, {{"beta", {}, 0, 2, "wgrad: twice beta, in place"}}),
                select_nothing, run_nothing, [](const Values& values) {
                  for (const char* key : {"experts", "out", "in", "rows"}) {
                    if (value_of(values, key) == "0") return std::string();
                  }
                  return std::string("one of experts, out, in and rows must be 0");
                }});
  registry.add(
      {"grouped_gemm.alignment",
       "Proves that zones off the declared grid are refused, or, where nothing is declared, "
       "computed right.",
       judged_clauses({"GROUPED_GEMM-1c"}),
       {product_parameter(),
        {"zones", {"short", "long"}, 0, 0, "the first zone against the grid"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
       [](Tier tier) {
         const std::vector<Axis> axes = {
             {"product", product_words()}, {"zones", {"short"}}, {"seed", {"1"}}};
         if (tier == Tier::standard) return product(axes);
         if (tier == Tier::full) {
           return product({{"product", product_words()}, {"zones", {"long"}}, axes[2]});
         }
         return std::vector<Values>{};
       },
       run_alignment});
}

}  // namespace dropless::conformance
