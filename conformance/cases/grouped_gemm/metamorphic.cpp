// SPDX-License-Identifier: Apache-2.0
// Relations between two calls: GROUPED_GEMM-9a, 9b, 9c.
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/cases/grouped_gemm/setup.h"

namespace dropless::conformance {
namespace {

// An expert of the second problem: which expert of the first it is (-1: a new one), with which of
// that problem's rows.
struct Piece {
  Index from = -1;
  std::vector<Index> rows;
};

std::vector<Piece> same_pieces(const GemmProblem& problem) {
  std::vector<Piece> pieces;
  for (Index e = 0; e < problem.experts; ++e) {
    Piece piece{e, std::vector<Index>(static_cast<std::size_t>(
                       problem.zones.counts[static_cast<std::size_t>(e)]))};
    std::iota(piece.rows.begin(), piece.rows.end(),
              problem.zones.offsets[static_cast<std::size_t>(e)]);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Busiest expert: the one whose rows can be shown to move.
std::size_t busiest(const std::vector<Piece>& pieces) {
  std::size_t best = 0;
  for (std::size_t e = 1; e < pieces.size(); ++e) {
    if (pieces[e].rows.size() > pieces[best].rows.size()) best = e;
  }
  return best;
}

std::vector<Piece> rearranged_pieces(const std::string& relation, std::vector<Piece> pieces,
                                     Random& random) {
  if (relation == "relabel") {
    std::vector<Piece> moved;
    for (const Index e : random.permutation(static_cast<Index>(pieces.size()))) {
      moved.push_back(pieces[static_cast<std::size_t>(e)]);
    }
    return moved;
  }
  const auto busy = static_cast<std::ptrdiff_t>(busiest(pieces));
  if (relation == "insert_empty") {
    pieces.insert(pieces.begin() + busy, Piece{});
  } else if (relation == "split") {
    Piece& whole = pieces[static_cast<std::size_t>(busy)];
    const auto half = static_cast<std::ptrdiff_t>(whole.rows.size() / 3 + 1);
    Piece second{whole.from, {whole.rows.begin() + half, whole.rows.end()}};
    whole.rows.resize(static_cast<std::size_t>(half));
    pieces.insert(pieces.begin() + busy + 1, std::move(second));
  } else if (relation == "permute_rows") {
    for (Piece& piece : pieces) {
      const auto order = random.permutation(static_cast<Index>(piece.rows.size()));
      for (Index& row : piece.rows) row = piece.rows.front();
      for (std::size_t i = 0; i < order.size(); ++i) piece.rows[i] += order[i];
    }
  }
  return pieces;
}

using Matrix = std::vector<double>;

void copy_line(const Matrix& from, Index source, Matrix& to, Index target, Index width) {
  std::copy_n(from.begin() + source * width, width, to.begin() + target * width);
}

GemmProblem rearranged(CaseRun& run, const GemmProblem& old, const std::vector<Piece>& pieces) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  GemmProblem problem = old;
  problem.experts = static_cast<Index>(pieces.size());
  std::vector<Index> counts;
  for (const Piece& piece : pieces) counts.push_back(static_cast<Index>(piece.rows.size()));
  problem.zones = row_zones(run, counts, run.word("zones") == "padded");
  const Index matrix = old.out * old.in, width = old.output_columns();
  problem.left.assign(static_cast<std::size_t>(element_count(problem.left_shape())), nan);
  problem.right.assign(static_cast<std::size_t>(element_count(problem.right_shape())), nan);
  problem.bias.assign(old.bias.empty() ? 0 : static_cast<std::size_t>(problem.experts * width),
                      nan);
  for (std::size_t j = 0; j < pieces.size(); ++j) {
    const Index expert = static_cast<Index>(j);
    for (std::size_t i = 0; i < pieces[j].rows.size(); ++i) {
      const Index target = problem.zones.offsets[j] + static_cast<Index>(i);
      copy_line(old.left, pieces[j].rows[i], problem.left, target, old.left_columns());
      if (old.by_rows()) continue;
      copy_line(old.right, pieces[j].rows[i], problem.right, target, old.in);
    }
    if (pieces[j].from < 0) continue;
    if (old.by_rows()) copy_line(old.right, pieces[j].from, problem.right, expert, matrix);
    if (!old.bias.empty()) copy_line(old.bias, pieces[j].from, problem.bias, expert, width);
  }
  return problem;
}

// The bytes of the first output where the pieces say they must be in the second.
std::vector<std::uint8_t> moved_bytes(const GemmProblem& old, const GemmProblem& problem,
                                      const std::vector<Piece>& pieces, const Buffer& output,
                                      const std::vector<std::uint8_t>& earlier) {
  const auto element = static_cast<Index>(dtype_bytes(output.dtype()));
  const Index line = element * (old.by_rows() ? old.output_columns() : old.out * old.in);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(output.size() * element));
  const auto copy = [&](Index from, Index to) {
    std::copy_n(earlier.begin() + from * line, line, bytes.begin() + to * line);
  };
  for (std::size_t j = 0; j < pieces.size(); ++j) {
    if (!old.by_rows()) {
      if (pieces[j].from >= 0) copy(pieces[j].from, static_cast<Index>(j));
      continue;
    }
    for (std::size_t i = 0; i < pieces[j].rows.size(); ++i) {
      copy(pieces[j].rows[i], problem.zones.offsets[j] + static_cast<Index>(i));
    }
  }
  return bytes;
}

// The two gradients of a split expert add up to that of the whole one: bit by bit where the
// declared accumulator holds the data exactly, else within the bounds of the three sums.
void judge_parts(CaseRun& run, const GemmProblem& old, const GemmCall& first,
                 const GemmProblem& problem, const GemmCall& second_call,
                 const std::vector<Piece>& pieces) {
  const Buffer& parts = *second_call.output;
  const std::vector<double> before = first.output->values(), after = parts.values();
  const std::vector<double> whole = gemm_errors(run, old, gemm_expected(old, first));
  std::vector<double> errors = gemm_errors(run, problem, gemm_expected(problem, second_call));
  const std::vector<double> part = errors;
  std::vector<double> expected(after.size());
  std::vector<bool> second(pieces.size());
  const std::size_t matrix = static_cast<std::size_t>(problem.out * problem.in);
  for (std::size_t j = 1; j < pieces.size(); ++j) {
    second[j] = pieces[j].from == pieces[j - 1].from;
    for (std::size_t i = 0; second[j] && i < matrix; ++i) {
      const std::size_t of_whole = static_cast<std::size_t>(pieces[j].from) * matrix + i;
      expected[j * matrix + i] = before[of_whole] - after[(j - 1) * matrix + i];
      errors[j * matrix + i] += whole[of_whole] + part[(j - 1) * matrix + i];
    }
  }
  run.judge().bounded("GROUPED_GEMM-9b", "dw of the second part, from the whole and the first",
                      parts, expected, errors, expert_elements(problem, second));
}

GemmProblem first_problem(CaseRun& run) {
  GemmProblem problem;
  problem.product = product_of(run.word("product"));
  problem.experts = 5, problem.out = 48, problem.in = 70;
  Random random = run.random("zones");
  problem.zones = row_zones(run, rows_per_expert("ragged", problem.experts, 160, random),
                            run.word("zones") == "padded");
  problem.operands = run.word("operands"), problem.output = plain_dtype(run.word("output"));
  const bool parts = !problem.by_rows() && run.word("relation") == "split";
  problem.data = parts ? "exact" : bitwise_data(run, problem);
  fill_operands(run, problem, problem.product == Product::fprop, false);
  return problem;
}

void run_rearranged(CaseRun& run) {
  const std::string& relation = run.word("relation");
  const GemmProblem old = first_problem(run);
  GemmCall first = gemm_call(run, old);
  perform(run, first);
  judge_gemm(run, old, first);
  Random random = run.random("rearrangement");
  const std::vector<Piece> pieces = rearranged_pieces(relation, same_pieces(old), random);
  const GemmProblem problem = rearranged(run, old, pieces);
  GemmCall second = gemm_call(run, problem);
  perform(run, second);
  judge_gemm(run, problem, second);
  const std::string clause = relation == "split"          ? "GROUPED_GEMM-9b"
                             : relation == "permute_rows" ? "GROUPED_GEMM-9c"
                                                          : "GROUPED_GEMM-9a";
  if (relation == "split" && !old.by_rows()) {
    return judge_parts(run, old, first, problem, second, pieces);
  }
  run.judge().same_bytes(clause, relation, *second.output,
                         moved_bytes(old, problem, pieces, *second.output, first.output->bytes()),
                         computed_elements(problem));
}

// Both operands are scaled, by different powers: the result by their product.
void run_powers(CaseRun& run) {
  GemmProblem problem = first_problem(run);
  problem.bias.clear();
  GemmCall first = gemm_call(run, problem);
  perform(run, first);
  judge_gemm(run, problem, first);
  const std::vector<double> results = first.output->values();
  // Near by, and far away on both sides: nothing is flushed to zero, nothing passes through a
  // format with fewer exponents.
  constexpr struct {
    double left, right;
  } powers[] = {{0x1p11, 0x1p-6}, {0x1p-40, 0x1p-30}, {0x1p40, 0x1p30}};
  for (const auto& power : powers) {
    GemmProblem scaled = problem;
    std::vector<double> expected = results;
    for (double& value : scaled.left) value *= power.left;
    for (double& value : scaled.right) value *= power.right;
    for (double& value : expected) value *= power.left * power.right;
    scaled.unit *= power.left * power.right;
    GemmCall second = gemm_call(run, scaled);
    perform(run, second);
    run.judge().exact("GROUPED_GEMM-9c", "powers of two", *second.output, expected,
                      computed_elements(scaled));
  }
}

std::string objection(const Values& values) {
  if (value_of(values, "product") != "wgrad") return "";
  const std::string& relation = value_of(values, "relation");
  if (relation == "permute_rows") return "sums over rows depend on their order";
  if (relation != "split") return "";
  if (value_of(values, "operands") == "e4m3") return "blocks along rows start anew in every expert";
  return value_of(values, "output") == "fp32" ? "" : "parts add up in fp32 only";
}

bool legal(const Values& values) {
  return objection(values).empty();
}

std::vector<Axis> axes(std::vector<std::string> relations) {
  return {{"product", product_words()},           {"relation", std::move(relations)},
          {"operands", {"bf16", "fp32", "e4m3"}}, {"output", {"fp32", "bf16"}},
          {"zones", {"padded", "tight"}},         {"seed", {"1"}}};
}

std::vector<Values> select(Tier tier, std::vector<std::string> relations) {
  const auto all = pairwise(axes(relations), legal);
  if (tier == Tier::smoke) return {all[0]};
  if (tier == Tier::standard) return without(all, {all[0]});
  std::vector<Values> rest;
  for (Values& row : product(axes(std::move(relations)))) {
    if (legal(row)) rest.push_back(std::move(row));
  }
  return without(rest, all);
}

}  // namespace

void add_grouped_gemm_metamorphic(Registry& registry) {
  const std::vector<std::string> relations = {"split", "relabel", "insert_empty", "permute_rows"};
  const auto parameters = [](std::vector<std::string> words) {
    return std::vector<Parameter>{
        product_parameter(),
        {"relation", std::move(words), 0, 0, "between the two calls"},
        {"operands", {"bf16", "fp32", "e4m3"}, 0, 0, "what the operands are"},
        {"output", {"bf16", "fp32"}, 0, 0, "dtype of the output"},
        {"zones", {"tight", "padded"}, 0, 0, "zones rounded up to 16 rows, or exact"},
        {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}};
  };
  registry.add({"grouped_gemm.rearranged",
                "Proves that relabelling, inserting and splitting experts and permuting rows moves "
                "results and changes no bit.",
                judged_clauses({"GROUPED_GEMM-9a", "GROUPED_GEMM-9b", "GROUPED_GEMM-9c"}),
                parameters(relations), [relations](Tier tier) { return select(tier, relations); },
                run_rearranged, objection});
  registry.add({"grouped_gemm.powers_of_two",
                "Proves that powers of two pass through a product bit by bit.",
                judged_clauses({"GROUPED_GEMM-9c"}), parameters({"scale"}),
                [](Tier tier) { return select(tier, {"scale"}); }, run_powers, objection});
}

}  // namespace dropless::conformance
