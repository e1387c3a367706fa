// SPDX-License-Identifier: Apache-2.0
// Cases of the two losses that see logits only: router z-loss and cross-entropy.
#include <cmath>

#include "conformance/cases/losses/setup.h"

namespace dropless::conformance {
namespace {

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// ---- losses.z

void run_z(CaseRun& run) {
  const std::string& mask = run.word("mask");
  const ZData data = z_data(run, run.integer("tokens"), run.integer("experts"),
                            logits_dtype(run.word("dtype")), mask, run.word("kind"));
  const ExpectedLoss expected = expected_loss(run, data);
  const bool nothing = count_of(unmasked_rows(data.routing)) == 0;
  run.judge().require(nothing || expected.value > 100 * expected.error, "a loss above its error");
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  judge_loss(run, call, expected, unmasked_rows(data.routing),
             {"ROUTING-15a", "ROUTING-15b", "ROUTING-15b"});
}

Family z_family() {
  Family family;
  family.name = "losses.z";
  family.purpose =
      "Value and gradient of the router z-loss, with masked tokens that hold NaN, experts at -Inf "
      "and logits of +-1e4";
  family.clauses = {"ROUTING-15a", "ROUTING-15b"};
  family.parameters = {direction_parameter(),
                       integer_parameter("tokens", 1, 65536, "tokens"),
                       integer_parameter("experts", 1, 1024, "experts"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       word_parameter("mask", {"no", "some", "all"}, "masked tokens"),
                       word_parameter("kind", {"ordinary", "large", "masked_experts"}, "logits")};
  const std::vector<Axis> axes = {
      {"direction", {"forward", "backward"}}, {"tokens", {"33", "2", "65"}},
      {"experts", {"16", "1", "128"}},        {"dtype", {"fp32", "bf16"}},
      {"mask", {"some", "no", "all"}},        {"kind", {"ordinary", "large", "masked_experts"}}};
  const std::vector<Values> some = pairwise(axes);
  family.select = tiers({some.begin(), some.begin() + 8}, some, product(axes));
  family.run = run_z;
  return family;
}

// ---- losses.cross_entropy

void run_cross_entropy(CaseRun& run) {
  const std::string& labels = run.word("labels");
  CrossEntropyData data =
      cross_entropy_data(run, run.integer("tokens"), run.integer("vocabulary"),
                         logits_dtype(run.word("dtype")), labels, run.word("kind"));
  data.labels_dtype = run.word("ids") == "i32" ? DROPLESS_I32 : DROPLESS_I64;
  const ExpectedLoss expected = expected_loss(run, data);
  std::vector<bool> labelled(at(data.tokens));
  for (Index t = 0; t < data.tokens; ++t) labelled[at(t)] = data.labels[at(t)] >= 0;
  const bool trivial = data.vocabulary == 1 || count_of(labelled) == 0;
  run.judge().require(trivial || expected.value > 16 * expected.error, "a loss above its error");
  LossCall call = loss_call(run, data, direction_of(run));
  call.perform();
  const bool large = run.word("kind") == "large";
  const char* value = labels == "none" ? "LOSSES-1b" : large ? "LOSSES-1c" : "LOSSES-1a";
  judge_loss(run, call, expected, labelled,
             {value, large ? "LOSSES-1c" : "LOSSES-1d", "LOSSES-1b"});
}

Family cross_entropy_family() {
  Family family;
  family.name = "losses.cross_entropy";
  family.purpose =
      "Value and gradient of the cross-entropy for vocabularies of all sizes, with ignored labels "
      "and logits of +-1e4";
  family.clauses = {"LOSSES-1a", "LOSSES-1b", "LOSSES-1c", "LOSSES-1d"};
  family.parameters = {direction_parameter(),
                       integer_parameter("tokens", 1, 65536, "tokens"),
                       integer_parameter("vocabulary", 1, 262144, "classes"),
                       word_parameter("dtype", {"fp32", "bf16"}, "format of the logits"),
                       word_parameter("labels", {"all", "some", "none"}, "labels that count"),
                       word_parameter("ids", {"i32", "i64"}, "format of the labels"),
                       word_parameter("kind", {"ordinary", "large"}, "logits")};
  const std::vector<Axis> axes = {{"direction", {"forward", "backward"}},
                                  {"tokens", {"33", "3", "1"}},
                                  {"vocabulary", {"257", "7", "1", "4096"}},
                                  {"dtype", {"fp32", "bf16"}},
                                  {"labels", {"some", "all", "none"}},
                                  {"ids", {"i64", "i32"}},
                                  {"kind", {"ordinary", "large"}}};
  const std::vector<Values> some = pairwise(axes);
  family.select = tiers({some.begin(), some.begin() + 8}, some, product(axes));
  family.run = run_cross_entropy;
  return family;
}

}  // namespace

void add_losses_logits(Registry& registry) {
  registry.add(z_family());
  registry.add(cross_entropy_family());
}

}  // namespace dropless::conformance
