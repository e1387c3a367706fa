// SPDX-License-Identifier: Apache-2.0
// Dispatch: EXCHANGE-1a to 3f and 8a, by tags in every 16-byte unit.
#include "conformance/cases/exchange/payload.h"

namespace dropless::conformance {
namespace {

dropless_dtype payload_dtype(const std::string& word) {
  return word == "fp32"   ? DROPLESS_FP32
         : word == "bf16" ? DROPLESS_BF16
         : word == "e4m3" ? DROPLESS_E4M3
                          : DROPLESS_U8;
}

void run_tags(CaseRun& run) {
  World world(run);
  const std::string& with = run.word("with");
  PayloadForm form;
  form.dtype = payload_dtype(run.word("dtype"));
  form.hidden = run.integer("hidden");
  form.scale_bytes = with == "scales" || with == "both" ? (form.hidden + 31) / 32 : 0;
  form.weights = with != "scales";
  form.any_bits = with == "any_bits";
  world.settings.row_bytes = form.row_bytes(), world.settings.scale_bytes = form.scale_bytes;
  const Routing& routing = world.routing("only");
  RankHandle handle(world);
  judge_plan(world, routing, handle.plan(routing));
  const Payload& payload = tagged_payload(world, routing, form, 0);
  const DispatchBuffers got = handle.dispatch(routing, payload.sent[at(world.rank)]);
  judge_dispatch(world, routing, payload, got, received_order(world, routing, got));
  handle.close();
}

std::vector<Values> select_dispatch(Tier tier) {
  const auto more = [](std::vector<std::string> dtypes, std::vector<std::string> hidden,
                       std::vector<std::string> with) {
    return std::vector<Axis>{
        {"dtype", std::move(dtypes)}, {"hidden", std::move(hidden)}, {"with", std::move(with)}};
  };
  const std::vector<Values> smoke =
      exchange_cases({.ranks = {"1", "4"}, .experts = {"8"}, .load = {"zipf", "one_rank"}},
                     more({"bf16"}, {"40"}, {"both"}));
  if (tier == Tier::smoke) return smoke;
  std::vector<Values> all = smoke;
  const auto add = [&](const GroupAxes& group, const std::vector<Axis>& axes) {
    for (Values& values : without(exchange_cases(group, axes), all)) {
      all.push_back(std::move(values));
    }
  };
  const auto plain = more({"bf16"}, {"64"}, {"both"});
  add({.tokens = {"19"}, .load = exchange_load_names()}, plain);
  add({.top_k = {"4"}, .share = share_names(), .load = {"spread", "zipf", "one_rank", "one_hot"}},
      plain);
  add({}, more({"bf16", "fp32", "e4m3", "u8"}, {"1", "8", "17", "255", "256"},
               {"weights", "scales", "both", "any_bits"}));
  add({.ranks = {"2", "4", "8"},
       .experts = {"8", "12"},
       .top_k = {"4"},
       .load = {"spread", "zipf", "one_hot"},
       .placement = {"shuffled", "cyclic", "hot"}},
      plain);
  add({.ranks = {"3", "5"}, .experts = {"15"}, .top_k = {"1", "8"}, .tokens = {"1", "65"}}, plain);
  // As wide as models are: rows of ten kilobytes, ten of 512 experts.
  add({.ranks = {"2"}, .experts = {"512"}, .top_k = {"10"}, .tokens = {"5"}},
      more({"bf16"}, {"5000"}, {"both"}));
  if (tier == Tier::standard) return without(all, smoke);
  const std::vector<Values> standard = all;
  add({.top_k = {"8"}, .tokens = {"257"}, .load = exchange_load_names()},
      more({"e4m3"}, {"128"}, {"both"}));
  return without(all, standard);
}

}  // namespace

void add_exchange_dispatch(Registry& registry) {
  registry.add(
      {"exchange.dispatch",
       "Proves that every selected pair arrives once, with the bytes, scales, weights and ids that "
       "belong to it, in the declared layout.",
       exchange_clauses(delivery_clauses()),
       exchange_parameters(
           {word_parameter("dtype", {"bf16", "fp32", "e4m3", "u8"}, "of the payload"),
            integer_parameter("hidden", 1, 1 << 14, "elements of a row"),
            word_parameter("with", {"weights", "scales", "both", "any_bits"},
                           "what travels beside the rows; any_bits: weights of any bit pattern")}),
       select_dispatch, run_tags, exchange_objection});
}

}  // namespace dropless::conformance
