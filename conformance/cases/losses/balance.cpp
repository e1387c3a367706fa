// SPDX-License-Identifier: Apache-2.0
// Cases of the balance loss: scopes, masks, probabilities, counts, factor, uniform routing.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "conformance/cases/losses/setup.h"
#include "tolerances/bounds.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- losses.balance

int scope_of(std::string_view word) {
  return word == "sequence" ? DROPLESS_SCOPE_SEQUENCE
         : word == "global" ? DROPLESS_SCOPE_GLOBAL
                            : DROPLESS_SCOPE_MICRO_BATCH;
}

const char* scope_clause(std::string_view word) {
  return word == "sequence" ? "ROUTING-14e" : word == "global" ? "ROUTING-14f" : "ROUTING-14a";
}

constexpr Index experts_of_balance = 16, top_k_of_balance = 3;
constexpr Index favourites = 4;  // more than K, so that ids vary, and a quarter of the experts

// Tokens first..last prefer the four experts from 4 * logits_place on in their logits and others in
// their ids, which have nothing to do with the logits. Logits only change places, so that their
// margins stay.
void favour(BalanceData& data, Index first, Index last, Index logits_place, Index ids_place,
            Random& random) {
  RoutingData& routing = data.routing;
  const Index experts = routing.experts(), k = routing.top_k();
  for (Index t = first; t < last; ++t) {
    if (routing.is_masked(t)) continue;
    const std::span<double> row = std::span(routing.logits).subspan(at(t * experts), at(experts));
    std::vector<double> sorted(row.begin(), row.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const std::vector<Index> preferred = random.permutation(favourites);
    const std::vector<Index> others = random.permutation(experts - favourites);
    for (Index i = 0; i < experts; ++i) {
      const Index from =
          i < favourites ? preferred[at(i)] : favourites + others[at(i - favourites)];
      row[at((favourites * logits_place + i) % experts)] = sorted[at(from)];
    }
    const std::vector<Index> chosen = random.permutation(favourites);
    for (Index j = 0; j < k; ++j) {
      Index& id = data.ids[at(t * k + j)];
      if (id >= 0) id = favourites * ids_place + chosen[at(j)];
    }
  }
}

// Uneven sequences, one without tokens; with a mask, the tokens of one more are all masked. What
// is averaged over matters for certain, not by chance: each sequence prefers experts of its own in
// its logits, and those of the next sequence in its ids; the sums of the global scope those that
// the logits of this micro-batch prefer.
void add_scope(BalanceData& data, std::string_view scope, Random& random) {
  RoutingData& routing = data.routing;
  data.scope = scope_of(scope);
  if (scope == "sequence") {
    data.boundaries = {0, 5, 5, 21, 28, routing.tokens};
    if (!routing.mask.empty()) {
      for (Index t = 21; t < 28; ++t) routing.mask[at(t)] = 0;
      for (Index i = 21 * routing.top_k(); i < 28 * routing.top_k(); ++i) data.ids[at(i)] = -1;
    }
    std::vector<std::pair<Index, Index>> seen;  // sequences with an unmasked token
    for (std::size_t s = 1; s < data.boundaries.size(); ++s) {
      const Index first = data.boundaries[s - 1], last = data.boundaries[s];
      bool visible = false;
      for (Index t = first; t < last; ++t) visible = visible || !routing.is_masked(t);
      if (visible) seen.emplace_back(first, last);
    }
    const auto count = static_cast<Index>(seen.size());
    for (Index place = 0; place < count; ++place) {
      const auto& [first, last] = seen[at(place)];
      favour(data, first, last, place, (place + 1) % count, random);
    }
  }
  if (scope == "global") {
    favour(data, 0, routing.tokens, 0, 1, random);
    data.earlier_tokens = 3 * routing.tokens;
    for (Index e = 0; e < routing.experts(); ++e) {
      const Index least = e < favourites ? 2 * routing.tokens : 0;
      data.earlier_counts.push_back(least + random.below(routing.tokens));
    }
  }
}

void judge_accumulated(CaseRun& run, const BalanceData& data, const LossCall& call) {
  if (call.accumulated_counts == nullptr || call.loss == nullptr) return;
  std::vector<Index> counts =
      reference::balance_counts(data.routing.settings, run.profile(), reference_input(data));
  for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += data.earlier_counts[e];
  const Index tokens = data.earlier_tokens + count_of(unmasked_rows(data.routing));
  run.judge().exact("ROUTING-14f", "accumulated_counts", *call.accumulated_counts, counts);
  run.judge().exact("ROUTING-14f", "accumulated_tokens", *call.accumulated_tokens,
                    std::vector<Index>{tokens});
}

// Would the case tell these two apart in this direction?
bool differ(const ExpectedLoss& a, const ExpectedLoss& b, Direction direction) {
  if (direction == Direction::forward) return std::abs(a.value - b.value) > 1000 * a.error;
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.gradient.size(); ++i) {
    different += std::abs(a.gradient[i] - b.gradient[i]) > 4 * a.gradient_errors[i];
  }
  return 2 * different > a.gradient.size();
}

void run_balance(CaseRun& run) {
  Random random = run.random("scope");
  const std::string& mask = run.word("mask");
  BalanceData data = balance_data(
      run, route_settings(experts_of_balance, top_k_of_balance, run.word("score"), false), 49,
      logits_dtype(run.word("dtype")), mask);
  add_scope(data, run.word("scope"), random);
  const ExpectedLoss expected = expected_loss(run, data);
  if (mask != "all") {
    run.judge().require(expected.value > 1000 * expected.error, "a loss above its error");
    BalanceData other = data;  // all tokens alike, as if the scope did not matter
    other.scope = DROPLESS_SCOPE_MICRO_BATCH;
    run.judge().require(
        data.scope == other.scope || differ(expected, expected_loss(run, other), direction_of(run)),
        "the scope matters");
  }
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  const char* value = mask == "no" ? scope_clause(run.word("scope")) : "ROUTING-14g";
  judge_loss(run, call, expected, unmasked_rows(data.routing),
             {value, "ROUTING-14i", "ROUTING-14g"});
  judge_accumulated(run, data, call);
}

Family balance_family() {
  Family family;
  family.name = "losses.balance";
  family.purpose =
      "Value and gradient of the balance loss in every scope, with masked tokens and empty slots, "
      "for a routing that has nothing to do with the logits";
  family.clauses = {"ROUTING-14a", "ROUTING-14e", "ROUTING-14f", "ROUTING-14g", "ROUTING-14i"};
  family.parameters = {
      direction_parameter(), word_parameter("score", score_words(), "score function"),
      word_parameter("scope", {"micro_batch", "sequence", "global"}, "scope"),
      word_parameter("mask", {"no", "some", "all"}, "masked tokens; they hold NaN"),
      word_parameter("dtype", {"fp32", "bf16"}, "format of the logits")};
  const std::vector<Axis> axes = {
      {"direction", {"forward", "backward"}},
      {"score", {"sigmoid", "softmax", "sqrt_softplus", "softmax_selected"}},
      {"scope", {"micro_batch", "sequence", "global"}},
      {"mask", {"no", "some"}},
      {"dtype", {"fp32", "bf16"}}};
  std::vector<Values> some = pairwise(axes);
  const auto all_masked = [](const char* direction, const char* scope) {
    return Values{{"direction", direction},
                  {"score", "softmax"},
                  {"scope", scope},
                  {"mask", "all"},
                  {"dtype", "fp32"}};
  };
  some.push_back(all_masked("forward", "micro_batch"));
  some.push_back(all_masked("backward", "sequence"));
  some.push_back(all_masked("forward", "sequence"));
  family.select = tiers({some.begin(), some.begin() + 8}, some, product(axes));
  family.run = run_balance;
  return family;
}

// ---- losses.balance_large_sums

// Sums that no fp32 number holds, as after weeks of accumulation: they are added to exactly.
void run_balance_large_sums(CaseRun& run) {
  Random random = run.random("sums");
  BalanceData data =
      balance_data(run, route_settings(16, 3, run.word("score"), false), 33, DROPLESS_FP32, "no");
  data.scope = DROPLESS_SCOPE_GLOBAL;
  Index rounded = 0;
  for (Index e = 0; e < 16; ++e) {
    data.earlier_counts.push_back((Index{1} << 26) + 2 * random.below(Index{1} << 26) + 1);
    rounded += static_cast<Index>(static_cast<float>(data.earlier_counts.back())) !=
                       data.earlier_counts.back()
                   ? 1
                   : 0;
  }
  data.earlier_tokens = (Index{1} << 31) + 1;
  run.judge().require(rounded == 16, "no earlier count is an fp32 number");
  const ExpectedLoss expected = expected_loss(run, data);
  LossCall call = loss_call(run, data, Direction::forward);
  call.perform();
  judge_loss(run, call, expected, unmasked_rows(data.routing),
             {"ROUTING-14f", "ROUTING-14i", "ROUTING-14g"});
  judge_accumulated(run, data, call);
}

Family balance_large_sums_family() {
  Family family;
  family.name = "losses.balance_large_sums";
  family.purpose =
      "Sums of the global scope beyond 2^24 are kept and added to as integers, without rounding";
  family.clauses = {"ROUTING-14f", "ROUTING-14g", "ROUTING-14i"};
  family.parameters = {word_parameter("score", score_words(), "score function")};
  family.select = tiers({{{"score", "softmax"}}}, {{{"score", "sigmoid"}}});
  family.run = run_balance_large_sums;
  return family;
}

// ---- losses.balance_probabilities

// Logits (4, 0, 0, ...) as in a public bug, moderate ones, and a row without any score.
void run_balance_probabilities(CaseRun& run) {
  constexpr Index experts = 8;
  Random random = run.random("data");
  BalanceData data;
  data.routing.settings = route_settings(experts, 2, run.word("score"), false);
  data.routing.tokens = 24;
  for (Index t = 0; t < data.routing.tokens; ++t) {
    for (Index e = 0; e < experts; ++e) {
      double l = t % 2 == 0 ? (e == t % experts ? 4 : 0.125 * static_cast<double>(e))
                            : static_cast<double>(random.between(-64, 64)) / 32;
      if (t == 7 && !is_softmax(data.routing.settings)) {
        l = -std::numeric_limits<double>::infinity();
      }
      data.routing.logits.push_back(l);
    }
    data.ids.push_back(t % 3);  // uneven on purpose: expert 7 is never used
    data.ids.push_back(3 + t % 4);
  }
  const ExpectedLoss expected = expected_loss(run, data);
  BalanceData other = data;
  other.routing.settings.score_function =
      is_softmax(data.routing.settings) ? DROPLESS_SCORE_SIGMOID : DROPLESS_SCORE_SOFTMAX;
  other.routing.logits[7 * experts] = 0;  // finite again for the softmax
  run.judge().require(
      std::abs(expected_loss(run, other).value - expected.value) > 16 * expected.error,
      "another score function would give another loss");
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  judge_loss(run, call, expected, unmasked_rows(data.routing),
             {"ROUTING-14b", "ROUTING-14b", "ROUTING-14g"});
}

Family balance_probabilities_family() {
  Family family;
  family.name = "losses.balance_probabilities";
  family.purpose =
      "The probabilities of the balance loss are those of the configured score function, "
      "normalised over all experts once, also for a row whose scores are all zero";
  family.clauses = {"ROUTING-14b", "ROUTING-14g"};
  family.parameters = {direction_parameter(),
                       word_parameter("score", score_words(), "score function")};
  const auto one = [](const char* direction, const char* score) {
    return Values{{"direction", direction}, {"score", score}};
  };
  family.select = tiers({one("forward", "softmax"), one("backward", "sigmoid")},
                        {one("forward", "sigmoid"), one("forward", "sqrt_softplus"),
                         one("backward", "sqrt_softplus"), one("backward", "softmax")});
  family.run = run_balance_probabilities;
  return family;
}

// ---- losses.balance_counts

// Every token goes to its two least likely experts: the counts of a clean top-k are the opposite.
void run_balance_counts(CaseRun& run) {
  BalanceData data =
      balance_data(run, route_settings(8, 2, "softmax", false), 33, DROPLESS_FP32, "no");
  for (Index t = 0; t < data.routing.tokens; ++t) {
    for (Index e = 0; e < 8; ++e) {
      double& l = data.routing.logits[at(t * 8 + e)];
      l += e < 3 ? 6 : 0;  // experts 0, 1, 2 lead
    }
    data.ids[at(2 * t)] = 6 + t % 2;
    data.ids[at(2 * t + 1)] = 5;
  }
  const ExpectedLoss expected = expected_loss(run, data);
  dropless_profile other = run.profile();
  other.balance_counts = other.balance_counts == DROPLESS_BALANCE_COUNTS_REAL
                             ? DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K
                             : DROPLESS_BALANCE_COUNTS_REAL;
  const double value = reference::balance_loss(data.routing.settings, other, data.coeff, data.scope,
                                               reference_input(data))
                           .value;
  run.judge().require(std::abs(value - expected.value) > 100 * expected.error,
                      "the two rules of counting differ");
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  judge_loss(run, call, expected, unmasked_rows(data.routing),
             {"ROUTING-14d", "ROUTING-14d", "ROUTING-14g"});
}

Family balance_counts_family() {
  Family family;
  family.name = "losses.balance_counts";
  family.purpose =
      "The counts are those of the routing that was used, or of a clean top-k, as declared";
  family.clauses = {"ROUTING-14d", "ROUTING-14g"};
  family.parameters = {direction_parameter()};
  family.select = tiers({{{"direction", "forward"}}}, {{{"direction", "backward"}}});
  family.run = run_balance_counts;
  return family;
}

// ---- losses.balance_uniform

void run_balance_uniform(CaseRun& run) {
  const Index experts = run.integer("experts"), top_k = run.integer("top_k");
  BalanceData data;
  data.routing.settings = route_settings(experts, top_k, run.word("score"), false);
  data.routing.tokens = 2 * experts;
  data.routing.logits.assign(at(data.routing.tokens * experts), 0.5);
  for (Index t = 0; t < data.routing.tokens; ++t) {
    for (Index j = 0; j < top_k; ++j) data.ids.push_back((t + j * experts / top_k) % experts);
  }
  ExpectedLoss expected = expected_loss(run, data);
  const double c = run.profile().balance_factor == DROPLESS_BALANCE_FACTOR_TOP_K
                       ? static_cast<double>(top_k)
                       : 1;
  expected.value = data.coeff * c;  // said by the clause, not computed
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  const std::vector<bool> rows = unmasked_rows(data.routing);
  if (call.d_logits != nullptr &&
      run.profile().balance_counts == DROPLESS_BALANCE_COUNTS_CLEAN_TOP_K &&
      run.profile().tie_rule == DROPLESS_TIE_ANY) {
    // All scores tie, so a clean top-k may count any experts: the gradient is only finite.
    for (const double d : call.d_logits->values()) {
      run.judge().holds("ROUTING-14h", "d_logits", std::isfinite(d), "a finite number", "none");
    }
    return;
  }
  judge_loss(run, call, expected, rows, {"ROUTING-14h", "ROUTING-14h", "ROUTING-14g"});
  if (call.loss != nullptr) {
    judge_loss(run, call, expected, rows, {"ROUTING-14c", "ROUTING-14i", "ROUTING-14g"});
  }
}

Family balance_uniform_family() {
  Family family;
  family.name = "losses.balance_uniform";
  family.purpose =
      "Uniform routing with uniform scores gives coeff times the declared factor, and a finite "
      "gradient";
  family.clauses = {"ROUTING-14c", "ROUTING-14g", "ROUTING-14h", "ROUTING-14i"};
  family.parameters = {direction_parameter(),
                       word_parameter("score", score_words(), "score function"),
                       integer_parameter("experts", 1, 512, "experts"),
                       integer_parameter("top_k", 1, 512, "selected experts, divides experts")};
  const auto one = [](const char* direction, const char* score, const char* experts,
                      const char* top_k) {
    return Values{
        {"direction", direction}, {"score", score}, {"experts", experts}, {"top_k", top_k}};
  };
  family.select =
      tiers({one("forward", "sigmoid", "16", "4"), one("backward", "softmax", "8", "2")},
            {one("forward", "softmax", "8", "8"), one("forward", "sqrt_softplus", "1", "1")});
  family.run = run_balance_uniform;
  family.objection = [](const Values& values) -> std::string {
    const Index e = std::stoll(value_of(values, "experts"));
    const Index k = std::stoll(value_of(values, "top_k"));
    return e % k == 0 ? "" : "top_k must divide experts";
  };
  return family;
}

}  // namespace

void add_losses_balance(Registry& registry) {
  registry.add(balance_family());
  registry.add(balance_large_sums_family());
  registry.add(balance_probabilities_family());
  registry.add(balance_counts_family());
  registry.add(balance_uniform_family());
}

}  // namespace dropless::conformance
