// SPDX-License-Identifier: Apache-2.0
// The stages of a layer one after another, forward and backward, each fed with what the one before
// it wrote: LAYER-1d for implementations that offer stages, and what must hold between stages.
//
// Every number is an integer, or half of one, below 2^24: relu2 squares integers, routing weights
// are 1/2, 1 or 2, and rows of x and d_y hold few elements that are not zero. So every stage has
// one right output for its input, whatever order it adds in (GENERAL-1).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "conformance/cases/grouped_gemm/setup.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/permutation/setup.h"
#include "conformance/cases/routing/setup.h"
#include "conformance/judge/elements.h"
#include "conformance/judge/trust.h"
#include "reference/activation.h"
#include "tolerances/interval.h"

namespace dropless::conformance {
namespace {

using Numbers = std::vector<double>;

constexpr Index kTail = 5;  // rows beyond the last zone
constexpr double kUnit = 0.5;

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

double small(Random& random) {
  return static_cast<double>(random.between(1, 2)) * (random.chance(0.5) ? 1 : -1);
}

// At most eight elements of a row are not zero.
Numbers sparse_rows(Index rows, Index columns, double most, Random& random) {
  Numbers out(at(rows * columns), 0.0);
  for (Index r = 0; r < rows; ++r) {
    const std::vector<Index> places = random.permutation(columns);
    for (Index i = 0; i < std::min<Index>(columns, 8); ++i) {
      out[at(r * columns + places[at(i)])] = std::clamp(small(random), -most, most);
    }
  }
  return out;
}

Numbers dense(Index size, Random& random) {
  Numbers out(at(size));
  for (double& value : out) value = small(random);
  return out;
}

class Chain {
 public:
  explicit Chain(CaseRun& run)
      : run_(run),
        table_(run.implementation()),
        tokens_(run.integer("tokens")),
        experts_(run.integer("experts")),
        top_k_(run.integer("top_k")),
        hidden_(run.integer("hidden")),
        intermediate_(run.integer("intermediate")),
        dtype_(run.word("dtype") == "fp32" ? DROPLESS_FP32 : DROPLESS_BF16),
        early_(run.word("placement") == "early") {
    Random random = run.random("numbers");
    x_ = sparse_rows(tokens_, hidden_, 2, random);
    d_y_ = sparse_rows(tokens_, hidden_, 1, random);
    gate_up_ = dense(experts_ * intermediate_ * hidden_, random);
    down_ = dense(experts_ * hidden_ * intermediate_, random);
    weights_.resize(at(tokens_ * top_k_));
    for (double& w : weights_) w = std::ldexp(1.0, static_cast<int>(random.between(-1, 1)));
    settings_ = make_args<dropless_activation_settings>();
    settings_.kind = DROPLESS_RELU2;
  }

  void all() {
    route();
    plan();
    permute();
    gate_up_out_ =
        &gemm(Product::fprop, "gate_up ", rows_->values(), gate_up_, intermediate_, hidden_);
    activate();
    expert_out_ =
        &gemm(Product::fprop, "down ", hidden_out_->values(), down_, hidden_, intermediate_);
    unpermute();
    unpermute_backward();
    d_hidden_ =
        &gemm(Product::dgrad, "down ", d_expert_out_->values(), down_, hidden_, intermediate_);
    gemm(Product::wgrad, "down ", d_expert_out_->values(), hidden_out_->values(), hidden_,
         intermediate_);
    activate_backward();
    d_rows_ =
        &gemm(Product::dgrad, "gate_up ", d_gate_up_->values(), gate_up_, intermediate_, hidden_);
    gemm(Product::wgrad, "gate_up ", d_gate_up_->values(), rows_->values(), intermediate_, hidden_);
    permute_backward();
  }

 private:
  Buffers& buffers() { return run_.buffers(); }
  Judge& judge() { return run_.judge(); }

  // What one stage wrote, as input of the next: a copy, so that a change of it is seen.
  const dropless_tensor* handed_on(const Buffer& from) {
    return buffers()
        .input(from.label() + ", handed on", from.dtype(), from.shape(), from.bytes())
        .tensor();
  }
  const dropless_tensor* given(const char* label, dropless_dtype dtype, Shape shape,
                               const Numbers& values) {
    return buffers().input(label, dtype, std::move(shape), values).tensor();
  }
  Buffer& out(const std::string& label, dropless_dtype dtype, Shape shape) {
    return buffers().output(label, dtype, std::move(shape));
  }

  // A wrong stage makes everything behind it wrong: the case ends with the first one.
  void stop_if_wrong() {
    if (run_.judge().failed_checks() > 0) throw CaseEnded{};
  }

  void judge_rows(const char* clause, const char* padding_clause, const Buffer& got,
                  Numbers expected) {
    const Index columns = got.size() / std::max<Index>(routed_.length, 1);
    expected.resize(at(got.size()), 0.0);
    Judged real = zone_elements(routed_, columns);
    const Judged padding = padding_elements(routed_, columns);
    for (std::size_t i = 0; i < real.size(); ++i) real[i] = real[i] && !padding[i];
    judge().exact(clause, got.label(), got, expected, real);
    judge().exact(padding_clause, "padding of " + got.label(), got, Numbers(expected.size(), 0.0),
                  padding);
    judge_tail(run_, got.label(), routed_, got);
    stop_if_wrong();
  }

  Numbers rounded(const Numbers& values) const {
    Numbers out = values;
    for (double& value : out) value = tolerances::round_to(dtype_, value);
    return out;
  }
  Numbers exact(const reference::Gauged& sums) {
    const auto most = std::max_element(sums.gauge.begin(), sums.gauge.end());
    judge().require(most == sums.gauge.end() || *most <= kUnit * 0x1p24,
                    "every partial sum is exact in fp32");
    return rounded(sums.value);
  }

  // Logits that lead the router to the ids of the load, or these ids themselves.
  void route() {
    Random random = run_.random("routing");
    RoutingData data;
    data.settings = route_settings(experts_, top_k_, "sigmoid", true);
    data.tokens = tokens_;
    std::vector<Index> wanted =
        ids_for_load(run_.word("load"), tokens_, experts_, top_k_, random, 0);
    const bool router = run_.word("ids") == "router";
    data.logits.assign(at(tokens_ * experts_), 0.0);
    for (Index t = 0; t < tokens_; ++t) {
      std::vector<Index> order(wanted.begin() + t * top_k_, wanted.begin() + (t + 1) * top_k_);
      for (const Index e : random.permutation(experts_)) order.push_back(e);
      double logit = 4;  // falls by 1/32 from expert to expert
      std::vector<bool> placed(at(experts_), false);
      for (const Index e : order) {
        if (e < 0 || placed[at(e)]) continue;
        placed[at(e)] = true;
        data.logits[at(t * experts_ + e)] = logit -= 0x1p-5;
      }
    }
    if (!router) data.given_ids = wanted;
    RouteCall call(run_, data);
    call.perform();
    judge_route(run_, data, call);
    stop_if_wrong();
    const std::vector<Index> counts = call.counts->integers();
    ids_ = call.ids->integers();
    const auto pairs = std::count_if(ids_.begin(), ids_.end(), [](Index id) { return id >= 0; });
    const Index sum = std::accumulate(counts.begin(), counts.end(), Index{0});
    judge().holds("ROUTING-10", "sum of tokens_per_expert", sum == pairs,
                  fmt::format("{} pairs", pairs), std::to_string(sum));
    routed_ids_ = call.ids, routed_counts_ = call.counts;
  }

  void plan() {
    routed_.tokens = tokens_, routed_.top_k = top_k_, routed_.experts = experts_;
    routed_.hidden = hidden_, routed_.ids = ids_;
    routed_.plan = reference::permute_plan(run_.profile(), tokens_, top_k_, experts_, ids_);
    routed_.length = routed_.plan.rows() + kTail;
    auto args = make_args<dropless_permute_plan_args>();
    args.num_experts = experts_, args.row_capacity = -1;
    args.ids = handed_on(*routed_ids_);
    counts_ = &out("counts of the plan", DROPLESS_I64, {experts_});
    offsets_ = &out("offsets", DROPLESS_I64, {experts_ + 1});
    row_map_ = &out("row_map", DROPLESS_I64, routed_.slots());
    source_ = &out("source", DROPLESS_I64, {routed_.length});
    args.tokens_per_expert = counts_->tensor(), args.offsets = offsets_->tensor();
    args.row_map = row_map_->tensor(), args.source = source_->tensor();
    args.demand = out("demand", DROPLESS_I64, {1}).tensor();
    run_.perform("permute_plan", table_.permute_plan, args);
    judge().exact("PERMUTATION-1b", "counts of router and plan", *counts_,
                  routed_counts_->integers());
    judge().exact("PERMUTATION-3a", "offsets", *offsets_, routed_.plan.offsets);
    judge().exact("PERMUTATION-2", "row_map", *row_map_, routed_.plan.row_map);
    judge_pairs();
    stop_if_wrong();
  }

  // Each routed pair has one row, and no other row is real (PERMUTATION-2).
  void judge_pairs() {
    std::vector<Index> rows_of(ids_.size(), 0);
    const std::vector<Index> source = source_->integers();
    Index strangers = 0;
    for (Index row = 0; row < routed_.plan.rows(); ++row) {
      const Index pair = source[at(row)];
      if (pair < 0) continue;
      if (pair < static_cast<Index>(ids_.size())) {
        ++rows_of[at(pair)];
      } else {
        ++strangers;
      }
    }
    for (std::size_t pair = 0; pair < ids_.size(); ++pair) {
      if (rows_of[pair] != (ids_[pair] >= 0 ? 1 : 0)) ++strangers;
    }
    judge().holds("PERMUTATION-2", "pairs in source", strangers == 0, "each routed pair once",
                  fmt::format("{} pairs or rows that do not fit", strangers));
  }

  void permute() {
    auto args = make_args<dropless_permute_args>();
    args.offsets = handed_on(*offsets_), args.row_map = handed_on(*row_map_);
    args.source = handed_on(*source_);
    args.x = given("x", dtype_, routed_.token_rows(), x_);
    rows_ = &out("rows", dtype_, routed_.expert_rows());
    args.rows = rows_->tensor();
    if (early_) {
      args.weights = given("weights", DROPLESS_FP32, routed_.slots(), weights_);
      row_weights_ = &out("row_weights", DROPLESS_FP32, {routed_.length});
      args.row_weights = row_weights_->tensor();
    }
    run_.perform("permute_forward", table_.permute_forward, args);
    Numbers expected(at(routed_.plan.rows() * hidden_), 0.0);
    Numbers travelled(at(routed_.plan.rows()), 0.0);
    for (Index row = 0; row < routed_.plan.rows(); ++row) {
      const Index pair = routed_.plan.source[at(row)];
      if (pair < 0) continue;
      std::copy_n(x_.begin() + pair / top_k_ * hidden_, hidden_, expected.begin() + row * hidden_);
      travelled[at(row)] = weights_[at(pair)];
    }
    judge_rows("PERMUTATION-4a", "PERMUTATION-3b", *rows_, expected);
    if (early_) judge_rows("PERMUTATION-4c", "PERMUTATION-3b", *row_weights_, travelled);
  }

  Buffer& gemm(Product product, const char* matrix, Numbers left, const Numbers& right,
               Index columns_out, Index columns_in) {
    GemmProblem problem;
    problem.product = product;
    problem.experts = experts_, problem.out = columns_out, problem.in = columns_in;
    problem.operands = dtype_ == DROPLESS_FP32 ? "fp32" : "bf16";
    problem.output = product == Product::wgrad ? DROPLESS_FP32 : dtype_;
    problem.unit = kUnit;
    problem.zones = {routed_.length, routed_.plan.offsets, routed_.plan.tokens_per_expert, true};
    problem.left = std::move(left), problem.right = right;
    GemmCall call = gemm_call(run_, problem);
    perform(run_, call);
    const reference::Gauged expected = gemm_expected(problem, call);
    const Numbers values = exact(expected);
    const Numbers errors = gemm_errors(run_, problem, expected);
    judge().bounded(product_clause(product), matrix + call.output->label(), *call.output,
                    expected.value, errors, computed_elements(problem));
    if (product == Product::wgrad) {
      Judged idle = computed_elements(problem);
      idle.flip();
      judge().exact("GROUPED_GEMM-5", matrix + call.output->label(), *call.output,
                    Numbers(values.size(), 0.0), idle);
    } else {
      judge().exact("GROUPED_GEMM-2b", matrix + call.output->label(), *call.output,
                    Numbers(values.size(), 0.0),
                    row_elements(problem, reference::RowKind::padding));
    }
    stop_if_wrong();
    return *call.output;
  }

  // Real rows only: padding is zero, and the tail may be anything.
  Numbers real_values(const Buffer& buffer) const {
    Numbers values = buffer.values();
    const Index columns = buffer.size() / std::max<Index>(routed_.length, 1);
    const Judged tail = tail_elements(routed_, columns);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (tail[i]) values[i] = 0;
    }
    return values;
  }

  void activate() {
    auto args = make_args<dropless_activation_args>();
    args.settings = &settings_;
    args.x = handed_on(*gate_up_out_);
    args.offsets = handed_on(*offsets_), args.counts = handed_on(*counts_);
    if (early_) args.row_weights = handed_on(*row_weights_);
    hidden_out_ = &out("h", dtype_, {routed_.length, intermediate_});
    args.h = hidden_out_->tensor();
    run_.perform("activation_forward", table_.activation_forward, args);
    const Numbers weights = early_ ? real_values(*row_weights_) : Numbers{};
    judge_rows(early_ ? "ACTIVATION-5a" : "ACTIVATION-1d", "ACTIVATION-6", *hidden_out_,
               rounded(reference::activation(settings_, routed_.length, intermediate_,
                                             real_values(*gate_up_out_), weights)));
  }

  void unpermute() {
    auto args = make_args<dropless_unpermute_args>();
    args.row_map = handed_on(*row_map_), args.rows = handed_on(*expert_out_);
    if (!early_) args.weights = given("weights", DROPLESS_FP32, routed_.slots(), weights_);
    Buffer& y = out("y", dtype_, routed_.token_rows());
    args.y = y.tensor();
    run_.perform("unpermute_forward", table_.unpermute_forward, args);
    const Numbers rows = zone_part(*expert_out_);
    const Numbers expected =
        exact(reference::unpermute(routed_.plan, hidden_, rows, early_ ? Numbers{} : weights_));
    judge().exact("PERMUTATION-6b", "y", y, expected);
    stop_if_wrong();
    // Padding rows show nothing: an empty expert may have a block of them.
    const auto& counts = routed_.plan.tokens_per_expert;
    const Index real_rows = std::accumulate(counts.begin(), counts.end(), Index{0});
    if (real_rows >= 64 && intermediate_ >= 16 && hidden_ >= 16) {
      judge().require(trust::distinct(expected) >= 16, "the outputs differ from each other");
    }
  }

  // Rows below offsets[E].
  Numbers zone_part(const Buffer& buffer) const {
    Numbers values = buffer.values();
    values.resize(at(routed_.plan.rows() * hidden_));
    return values;
  }

  void unpermute_backward() {
    auto args = make_args<dropless_unpermute_backward_args>();
    args.offsets = handed_on(*offsets_), args.row_map = handed_on(*row_map_);
    args.source = handed_on(*source_);
    args.d_y = given("d_y", dtype_, routed_.token_rows(), d_y_);
    d_expert_out_ = &out("d_rows of unpermute", dtype_, routed_.expert_rows());
    args.d_rows = d_expert_out_->tensor();
    Buffer* d_weights = nullptr;
    if (!early_) {
      args.rows = handed_on(*expert_out_);
      args.weights = given("weights", DROPLESS_FP32, routed_.slots(), weights_);
      d_weights = &out("d_weights of unpermute", DROPLESS_FP32, routed_.slots());
      args.d_weights = d_weights->tensor();
    }
    run_.perform("unpermute_backward", table_.unpermute_backward, args);
    const auto expected = reference::unpermute_backward(
        routed_.plan, hidden_, zone_part(*expert_out_), early_ ? Numbers{} : weights_, d_y_);
    judge_rows("PERMUTATION-7b", "PERMUTATION-7c", *d_expert_out_, exact(expected.d_rows));
    if (d_weights == nullptr) return;
    (void)exact(expected.d_weights);
    judge().exact("PERMUTATION-7b", "d_weights", *d_weights, expected.d_weights.value);
    stop_if_wrong();
  }

  void activate_backward() {
    auto args = make_args<dropless_activation_backward_args>();
    args.settings = &settings_;
    args.x = handed_on(*gate_up_out_), args.dh = handed_on(*d_hidden_);
    args.offsets = handed_on(*offsets_), args.counts = handed_on(*counts_);
    d_gate_up_ = &out("d_x of the activation", dtype_, {routed_.length, intermediate_});
    args.d_x = d_gate_up_->tensor();
    if (early_) {
      args.row_weights = handed_on(*row_weights_);
      d_row_weights_ = &out("d_row_weights", DROPLESS_FP32, {routed_.length});
      args.d_row_weights = d_row_weights_->tensor();
    }
    run_.perform("activation_backward", table_.activation_backward, args);
    const auto expected = reference::activation_backward(
        settings_, routed_.length, intermediate_, real_values(*gate_up_out_),
        real_values(*d_hidden_), early_ ? real_values(*row_weights_) : Numbers{});
    judge_rows("ACTIVATION-4a", "ACTIVATION-6", *d_gate_up_, rounded(expected.d_x));
    if (!early_) return;
    (void)exact(expected.d_row_weights);
    judge_rows("ACTIVATION-5b", "ACTIVATION-6", *d_row_weights_, expected.d_row_weights.value);
  }

  void permute_backward() {
    auto args = make_args<dropless_permute_backward_args>();
    args.row_map = handed_on(*row_map_), args.d_rows = handed_on(*d_rows_);
    Buffer& d_x = out("d_x", dtype_, routed_.token_rows());
    args.d_x = d_x.tensor();
    Buffer* d_weights = nullptr;
    if (early_) {
      args.d_row_weights = handed_on(*d_row_weights_);
      d_weights = &out("d_weights", DROPLESS_FP32, routed_.slots());
      args.d_weights = d_weights->tensor();
    }
    run_.perform("permute_backward", table_.permute_backward, args);
    const Numbers d_rows = zone_part(*d_rows_);
    judge().exact("PERMUTATION-7a", "d_x", d_x,
                  exact(reference::permute_backward(routed_.plan, hidden_, d_rows)));
    if (early_) {
      Numbers travelled = d_row_weights_->values();
      travelled.resize(at(routed_.plan.rows()));
      judge().exact("PERMUTATION-7a", "d_weights", *d_weights,
                    reference::permute_weights_backward(routed_.plan, travelled));
    }
    judge_adjoint(d_x.values(), d_rows);
  }

  // <P x, d> = <x, P^T d>, without the reference: exact unless d_x was rounded to bf16.
  void judge_adjoint(const Numbers& d_x, const Numbers& d_rows) {
    if (dtype_ != DROPLESS_FP32) return;
    const Numbers rows = zone_part(*rows_);
    const double there = std::inner_product(rows.begin(), rows.end(), d_rows.begin(), 0.0);
    const double back = std::inner_product(x_.begin(), x_.end(), d_x.begin(), 0.0);
    judge().holds("PERMUTATION-7a", "<permute(x), d> = <x, permute_backward(d)>", there == back,
                  print(there), print(back));
  }

  CaseRun& run_;
  const dropless_implementation& table_;
  Index tokens_, experts_, top_k_, hidden_, intermediate_;
  dropless_dtype dtype_;
  bool early_;
  dropless_activation_settings settings_{};
  Numbers x_, d_y_, gate_up_, down_, weights_;
  std::vector<Index> ids_;
  RoutedTokens routed_;
  Buffer *routed_ids_ = nullptr, *routed_counts_ = nullptr;
  Buffer *counts_ = nullptr, *offsets_ = nullptr, *row_map_ = nullptr, *source_ = nullptr;
  Buffer *rows_ = nullptr, *row_weights_ = nullptr, *gate_up_out_ = nullptr;
  Buffer *hidden_out_ = nullptr, *expert_out_ = nullptr, *d_expert_out_ = nullptr;
  Buffer *d_hidden_ = nullptr, *d_gate_up_ = nullptr, *d_row_weights_ = nullptr;
  Buffer* d_rows_ = nullptr;
};

void run_stages(CaseRun& run) {
  const dropless_profile& profile = run.profile();
  if (profile.alignment % profile.gemm_alignment != 0) {
    throw NotSupported{
        fmt::format("zones of the plan, aligned to {}, are not what the products ask for ({})",
                    profile.alignment, profile.gemm_alignment)};
  }
  Chain(run).all();
}

std::string objection(const Values& values) {
  const Index top_k = std::stoll(value_of(values, "top_k"));
  const Index experts = std::stoll(value_of(values, "experts"));
  return top_k <= experts ? "" : "top_k must not exceed experts";
}

std::vector<Values> select(Tier tier) {
  const auto cases = [](std::vector<std::string> sizes, std::vector<std::string> loads,
                        std::vector<std::string> tokens, std::vector<std::string> widths) {
    return pairwise({{"experts", std::move(sizes)},
                     {"top_k", {"4", "1", "2"}},
                     {"tokens", std::move(tokens)},
                     {"hidden", widths},
                     {"intermediate", std::move(widths)},
                     {"load", std::move(loads)},
                     {"ids", {"router", "given"}},
                     {"dtype", {"bf16", "fp32"}},
                     {"placement", {"late", "early"}},
                     {"seed", {"1"}}});
  };
  const auto smoke = product({{"experts", {"8"}},
                              {"top_k", {"2"}},
                              {"tokens", {"33"}},
                              {"hidden", {"32"}},
                              {"intermediate", {"24"}},
                              {"load", {"3.0.17.1.0.33"}},
                              {"ids", {"given"}},
                              {"dtype", {"bf16"}},
                              {"placement", {"late", "early"}},
                              {"seed", {"1"}}});
  if (tier == Tier::smoke) return smoke;
  if (tier == Tier::standard) {
    return cases({"8", "4", "33"}, {"zipf", "0.0.5", "balanced", "one_hot", "all_empty"},
                 {"17", "1", "0", "64"}, {"32", "7", "65"});
  }
  return cases({"64", "16", "128"}, load_names(), {"128", "65", "256"}, {"64", "33", "128"});
}

}  // namespace

void add_layer_stages(Registry& registry) {
  registry.add({"layer.stages",
                "Proves that the stages fit together: each is fed with what the one before wrote, "
                "forward and backward, on numbers that have one right result.",
                {"ACTIVATION-1d",   "ACTIVATION-4a",   "ACTIVATION-5a",   "ACTIVATION-5b",
                 "ACTIVATION-6",    "GROUPED_GEMM-0a", "GROUPED_GEMM-0b", "GROUPED_GEMM-0c",
                 "GROUPED_GEMM-2b", "GROUPED_GEMM-5",  "PERMUTATION-1b",  "PERMUTATION-2",
                 "PERMUTATION-3a",  "PERMUTATION-3b",  "PERMUTATION-4a",  "PERMUTATION-4c",
                 "PERMUTATION-6b",  "PERMUTATION-7a",  "PERMUTATION-7b",  "PERMUTATION-7c",
                 "PERMUTATION-8",   "ROUTING-1e",      "ROUTING-3a",      "ROUTING-5a",
                 "ROUTING-5d",      "ROUTING-6c",      "ROUTING-6d",      "ROUTING-10",
                 "ROUTING-13a",     "ROUTING-13b"},
                {integer_parameter("experts", 1, 256, "experts E"),
                 integer_parameter("top_k", 1, 8, "selected experts K"),
                 integer_parameter("tokens", 0, 256, "tokens T"),
                 integer_parameter("hidden", 1, 256, "hidden size H"),
                 integer_parameter("intermediate", 1, 256, "intermediate size I"),
                 load_parameter("how the tokens spread over the experts"),
                 word_parameter("ids", {"router", "given"}, "from the router, or handed in"),
                 word_parameter("dtype", {"bf16", "fp32"}, "of rows and weights"),
                 word_parameter("placement", {"late", "early"}, "of the routing weight"),
                 integer_parameter("seed", 0, std::int64_t{1} << 62, "of the random numbers")},
                select,
                run_stages,
                objection});
}

}  // namespace dropless::conformance
