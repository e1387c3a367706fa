// SPDX-License-Identifier: Apache-2.0
// Loss cases about the contract itself: no tokens, refusals, strides, repetition.
#include "conformance/cases/losses/setup.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

Parameter loss_parameter() {
  return word_parameter("loss", {"balance", "z", "cross_entropy"}, "which loss");
}

std::vector<Values> every_loss(std::vector<std::string> directions) {
  return product(
      {{"loss", {"balance", "z", "cross_entropy"}}, {"direction", std::move(directions)}});
}

// Any of the three losses, held together with the data that its call refers to.
struct AnyLoss {
  BalanceData balance;
  ZData z;
  CrossEntropyData cross_entropy;
  std::string which;

  [[nodiscard]] LossCall call(CaseRun& run, Direction direction, const RouteStyle& style) const {
    if (which == "balance") return loss_call(run, balance, direction, style);
    if (which == "z") return loss_call(run, z, direction, style);
    return loss_call(run, cross_entropy, direction, style);
  }
  [[nodiscard]] ExpectedLoss expected(const CaseRun& run) const {
    if (which == "balance") return expected_loss(run, balance);
    if (which == "z") return expected_loss(run, z);
    return expected_loss(run, cross_entropy);
  }
  void judge(CaseRun& run, const LossCall& loss) const {
    if (which == "balance") {
      judge_loss(run, loss, expected(run), unmasked_rows(balance.routing),
                 {"ROUTING-14a", "ROUTING-14i", "ROUTING-14g"});
    } else if (which == "z") {
      judge_loss(run, loss, expected(run), unmasked_rows(z.routing),
                 {"ROUTING-15a", "ROUTING-15b", "ROUTING-15b"});
    } else {
      judge_loss(run, loss, expected(run), std::vector<bool>(at(cross_entropy.tokens), true),
                 {"LOSSES-1a", "LOSSES-1d", "LOSSES-1b"});
    }
  }
};

AnyLoss any_loss(CaseRun& run, Index tokens) {
  AnyLoss loss;
  loss.which = run.word("loss");
  if (loss.which == "balance") {
    loss.balance =
        balance_data(run, route_settings(16, 2, "sigmoid", false), tokens, DROPLESS_FP32, "some");
  } else if (loss.which == "z") {
    loss.z = z_data(run, tokens, 16, DROPLESS_FP32, "some", "ordinary");
  } else {
    loss.cross_entropy = cross_entropy_data(run, tokens, 50, DROPLESS_FP32, "all", "ordinary");
  }
  return loss;
}

const std::vector<std::string> loss_clauses = {"ROUTING-14a", "ROUTING-14g", "ROUTING-14i",
                                               "ROUTING-15a", "ROUTING-15b", "LOSSES-1a",
                                               "LOSSES-1b",   "LOSSES-1d"};

std::vector<std::string> with_loss_clauses(const char* clause) {
  std::vector<std::string> out = loss_clauses;
  out.emplace_back(clause);
  return out;
}

// ---- losses.empty

void run_empty(CaseRun& run) {
  AnyLoss loss = any_loss(run, 0);
  loss.balance.routing.mask.clear();
  loss.z.routing.mask.clear();
  LossCall call = loss.call(run, Direction::forward, {});
  call.perform();
  run.judge().exact("GENERAL-4", "loss of no tokens", *call.loss, std::vector{0.0});
}

Family empty_family() {
  Family family;
  family.name = "losses.empty";
  family.purpose = "The mean over no tokens is 0";
  family.clauses = {"GENERAL-4"};
  family.parameters = {loss_parameter()};
  family.select = tiers(product({{"loss", {"balance", "z", "cross_entropy"}}}), {});
  family.run = run_empty;
  return family;
}

// ---- losses.switched_off

// A loss whose weight is 0 is a call like any other: loss and gradient are zero, and written.
void run_switched_off(CaseRun& run) {
  AnyLoss loss = any_loss(run, 33);
  if (run.word("zero") == "coefficient") {
    loss.balance.coeff = loss.z.coeff = 0;
  } else {
    loss.balance.d_loss = loss.z.d_loss = loss.cross_entropy.d_loss = 0;
  }
  LossCall call = loss.call(run, direction_of(run), {});
  call.perform();
  loss.judge(run, call);
}

std::string switched_off_objection(const Values& values) {
  const bool coefficient = value_of(values, "zero") == "coefficient";
  if (coefficient && value_of(values, "loss") == "cross_entropy") {
    return "the cross-entropy has no coefficient";
  }
  if (!coefficient && value_of(values, "direction") == "forward") {
    return "the forward call has no cotangent";
  }
  return "";
}

Family switched_off_family() {
  Family family;
  family.name = "losses.switched_off";
  family.purpose = "A coefficient or a cotangent of zero gives zeros, written in full";
  family.clauses = loss_clauses;
  family.parameters = {loss_parameter(), direction_parameter(),
                       word_parameter("zero", {"coefficient", "cotangent"}, "what is zero")};
  std::vector<Values> all = product({{"loss", {"balance", "z", "cross_entropy"}},
                                     {"direction", {"forward", "backward"}},
                                     {"zero", {"coefficient", "cotangent"}}});
  std::erase_if(all, [](const Values& v) { return !switched_off_objection(v).empty(); });
  family.select = tiers({all.front()}, all);
  family.run = run_switched_off;
  family.objection = switched_off_objection;
  return family;
}

// ---- losses.strided

void run_strided(CaseRun& run) {
  const AnyLoss loss = any_loss(run, 33);
  const Direction direction = direction_of(run);
  const Layout gap = {.row_gap = 5, .offset_bytes = 16, .poison = {}};
  LossCall plain = loss.call(run, direction, {.prefix = "plain "});
  plain.perform();
  loss.judge(run, plain);
  LossCall call = loss.call(run, direction, {.inputs = gap, .outputs = gap});
  call.perform();
  if (direction == Direction::forward) {
    run.judge().same_bytes("GENERAL-6", "loss", *call.loss, plain.loss->bytes());
  } else {
    run.judge().same_bytes("GENERAL-6", "d_logits", *call.d_logits, plain.d_logits->bytes());
  }
}

Family strided_family() {
  Family family;
  family.name = "losses.strided";
  family.purpose = "Rows that do not follow each other in memory give the same bits";
  family.clauses = with_loss_clauses("GENERAL-6");
  family.parameters = {loss_parameter(), direction_parameter()};
  family.select = tiers({}, every_loss({"forward", "backward"}));
  family.run = run_strided;
  return family;
}

// ---- losses.determinism

void run_determinism(CaseRun& run) {
  const AnyLoss loss = any_loss(run, 129);
  const Direction direction = direction_of(run);
  const bool any_threads = run.profile().determinism == DROPLESS_DETERMINISTIC_ANY_THREADS;
  int previous_threads = 0;
  std::vector<std::uint8_t> previous;
  for (const int threads : {1, 1, 2, 2, 3, 3}) {
    const std::string prefix = std::to_string(run.buffers().outputs().size()) + " ";
    LossCall call = loss.call(run, direction, {.prefix = prefix});
    call.perform_with(threads);
    if (previous_threads == 0) loss.judge(run, call);
    if (run.profile().determinism == DROPLESS_DETERMINISTIC_NO) return;
    const Buffer& got = direction == Direction::forward ? *call.loss : *call.d_logits;
    if (previous_threads != 0 && (any_threads || threads == previous_threads)) {
      run.judge().same_bytes("GENERAL-5", "result", got, previous);
    }
    previous_threads = threads;
    previous = got.bytes();
  }
}

Family determinism_family() {
  Family family;
  family.name = "losses.determinism";
  family.purpose =
      "Repeated with one, two and three threads, losses and gradients have the bits that the "
      "profile promises";
  family.clauses = with_loss_clauses("GENERAL-5");
  family.parameters = {loss_parameter(), direction_parameter()};
  family.select = tiers({}, every_loss({"forward", "backward"}));
  family.run = run_determinism;
  return family;
}

// ---- losses.refusals

struct Refusal {
  const char* word;
  const char* why;
  const char* loss;
  void (*change)(AnyLoss&);
};

constexpr Refusal refusals[] = {
    {"label_at_vocabulary", "a label >= V", "cross_entropy",
     [](AnyLoss& l) { l.cross_entropy.labels.back() = l.cross_entropy.vocabulary; }},
    {"balance_id_twice", "an id twice in a token", "balance",
     [](AnyLoss& l) { l.balance.ids[2] = l.balance.ids[3] = 5; }},
    {"balance_id_at_experts", "an id >= E", "balance", [](AnyLoss& l) { l.balance.ids[3] = 16; }},
    {"balance_id_below", "an id below -1", "balance", [](AnyLoss& l) { l.balance.ids[3] = -2; }},
    {"boundaries_fall", "falling sequence boundaries", "balance",
     [](AnyLoss& l) {
       l.balance.boundaries = {0, 9, 8, 17};
     }},
    {"boundaries_beyond", "sequence boundaries beyond the tokens", "balance",
     [](AnyLoss& l) {
       l.balance.boundaries = {0, 9, 18};
     }},
};

void run_refusals(CaseRun& run) {
  if (run.implementation().memory_space != DROPLESS_HOST &&
      run.profile().device_values == DROPLESS_DEVICE_VALUES_UNCHECKED) {
    throw NotSupported{"the profile leaves values in device memory unchecked"};
  }
  const Direction direction = direction_of(run);
  for (const Refusal& refusal : refusals) {
    if (run.word("what") != refusal.word) continue;
    AnyLoss legal;
    legal.which = refusal.loss;
    if (legal.which == "balance") {
      legal.balance =
          balance_data(run, route_settings(16, 2, "softmax", false), 17, DROPLESS_FP32, "no");
      if (std::string_view(refusal.word).substr(0, 10) == "boundaries") {
        legal.balance.scope = DROPLESS_SCOPE_SEQUENCE;
        legal.balance.boundaries = {0, 8, 9, 17};
      }
    } else {
      legal.cross_entropy = cross_entropy_data(run, 17, 50, DROPLESS_FP32, "all", "ordinary");
    }
    LossCall control = legal.call(run, direction, {.prefix = "control "});
    control.perform();
    legal.judge(run, control);
    AnyLoss illegal = legal;
    refusal.change(illegal);
    illegal.call(run, direction, {}).refused(refusal.why);
  }
}

Family refusals_family() {
  Family family;
  family.name = "losses.refusals";
  family.purpose = "Labels, ids and boundaries that are none are refused, forward and backward";
  family.clauses = with_loss_clauses("GENERAL-3");
  std::vector<std::string> words;
  for (const Refusal& refusal : refusals) words.emplace_back(refusal.word);
  family.parameters = {word_parameter("what", words, "the illegal value"), direction_parameter()};
  family.select = tiers({{{"what", "label_at_vocabulary"}, {"direction", "forward"}}},
                        product({{"what", words}, {"direction", {"forward", "backward"}}}));
  family.run = run_refusals;
  return family;
}

}  // namespace

void add_losses_contract(Registry& registry) {
  registry.add(empty_family());
  registry.add(switched_off_family());
  registry.add(strided_family());
  registry.add(determinism_family());
  registry.add(refusals_family());
}

}  // namespace dropless::conformance
