// SPDX-License-Identifier: Apache-2.0
// The layer on the queue of a device: nothing waits, inputs may be overwritten behind the calls,
// and a captured graph computes whatever lies in its inputs when it is replayed (GENERAL-7). On a
// host the same steps are taken one after another: stale state shows there too.
#include <chrono>
#include <cmath>

#include "conformance/cases/data.h"
#include "conformance/cases/layer/setup.h"
#include "conformance/cases/routing/setup.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

constexpr int held_milliseconds = 150, attempts = 3;

struct Queued {
  LayerData data;
  std::vector<double> d_y;
  std::vector<double> other_x;  // other tokens, so another routing

  explicit Queued(CaseRun& run) {
    fill_layer(run, data);
    Random random = run.random("d_y"), more = run.random("other tokens");
    d_y = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, random);
    other_x = cotangent("zero_mean", data.dtype, data.tokens, data.hidden, more);
  }
};

void judge_layer(CaseRun& run, const Queued& queued, const LayerCall& call) {
  const Replay replay = judge_routing(run, queued.data, call);
  judge_output(run, queued.data, call, replay, "GENERAL-7");
  judge_gradients(run, queued.data, call, replay, queued.d_y, "GENERAL-7");
}

void forward_and_backward(LayerCall& call, const Queued& queued) {
  call.forward(true);
  call.backward(queued.d_y, true);
}

std::vector<std::uint8_t> as_bytes(CaseRun& run, const LayerData& data, const char* label,
                                   const std::vector<double>& x) {
  return run.buffers().input(label, data.dtype, {data.tokens, data.hidden}, x).bytes();
}

void run_order(CaseRun& run) {
  Queued queued(run);
  const auto memory = memory_of(run.implementation().memory_space);
  LayerCall call(run, queued.data);
  forward_and_backward(call, queued);  // whatever has to be allocated is there now
  const std::vector<std::uint8_t> right = call.x->bytes();
  const std::vector<std::uint8_t> wrong = as_bytes(run, queued.data, "other x", queued.other_x);
  run.judge().require(right != wrong, "the tokens before and after differ");

  bool waited = true;
  for (int attempt = 0; attempt < attempts && waited; ++attempt) {
    run.buffers().poison_outputs();
    call.x->overwrite(wrong);
    const bool held = memory->hold(held_milliseconds);
    const auto start = std::chrono::steady_clock::now();
    memory->copy_in(call.x->tensor()->data, right.data(), right.size());
    call.waits = false;
    forward_and_backward(call, queued);
    call.waits = true;
    memory->copy_in(call.x->tensor()->data, wrong.data(), wrong.size());
    waited = held && std::chrono::steady_clock::now() - start >
                         std::chrono::milliseconds(held_milliseconds * 9 / 10);
    memory->wait();
  }
  run.judge().holds("GENERAL-7", "forward and backward return before the device has worked",
                    !waited, "no wait", "every attempt waited for the queue");
  judge_layer(run, queued, call);
}

void run_replay(CaseRun& run) {
  Queued queued(run);
  const auto memory = memory_of(run.implementation().memory_space);
  LayerCall call(run, queued.data);
  forward_and_backward(call, queued);
  std::function<void()> replay = [&] { forward_and_backward(call, queued); };
  if (memory->begin_capture()) {
    call.waits = false;
    std::string broken;
    try {
      forward_and_backward(call, queued);
    } catch (const CaseEnded&) {  // on record; the capture has to end all the same
      broken = "an operation refused";
    }
    call.waits = true;
    try {
      const std::function<void()> captured = memory->end_capture();
      replay = [captured, memory] { captured(), memory->wait(); };
    } catch (const std::runtime_error& error) {
      broken = error.what();
    }
    run.judge().holds("GENERAL-7", "forward and backward are captured", broken.empty(), "a graph",
                      broken);
    if (!broken.empty()) return;
  }
  const std::vector<std::uint8_t> other = as_bytes(run, queued.data, "other x", queued.other_x);
  const std::vector<Index> ids = call.ids->integers();
  const std::vector<std::uint8_t> first = call.x->bytes();
  const std::vector<double> first_x = queued.data.x;
  call.x->overwrite(other);
  queued.data.x = queued.other_x;
  run.buffers().poison_outputs();
  replay();
  judge_layer(run, queued, call);
  run.judge().require(ids != call.ids->integers(), "the replay routes differently");
  call.x->overwrite(first);
  queued.data.x = first_x;
  run.buffers().poison_outputs();
  replay();
  judge_layer(run, queued, call);
}

void run_queue(CaseRun& run) {
  run.word("what") == "order" ? run_order(run) : run_replay(run);
}

}  // namespace

void add_layer_queue(Registry& registry) {
  registry.add({"layer.queue",
                "Proves on a device that a layer, forward and backward, waits for nothing, keeps "
                "to the order "
                "of its stream, and can be captured and replayed with other routing; on a host, "
                "that nothing "
                "of an earlier call is left.",
                {"GENERAL-7", "LAYER-1a", "LAYER-1b", "LAYER-1f", "LAYER-1g"},
                {{"what", {"order", "replay"}, 0, 0, "overwritten inputs, or a captured graph"},
                 {"model", top_k_model_names(), 0, 0, "published model"},
                 {"divisor", {}, 1, 1024, "widths are divided by this"},
                 {"tokens", {}, 16, 1 << 16, "tokens T"},
                 {"dtype", {"bf16", "fp32"}, 0, 0, "of the input and the expert weights"},
                 {"placement", {"late", "early", "input"}, 0, 0, "of the routing weight"},
                 {"recipe", {"plain", "mxfp8", "mxfp8_e5m2"}, 0, 0, "of the expert products"},
                 {"routing", {"router"}, 0, 0, "ids from the router"},
                 {"mask", {"none"}, 0, 0, "masked tokens"},
                 {"seed", {}, 0, std::int64_t{1} << 62, "of the random numbers"}},
                [](Tier tier) {
                  const auto cases = [](std::vector<std::string> models,
                                        std::vector<std::string> recipes) {
                    return product({{"what", {"order", "replay"}},
                                    {"model", std::move(models)},
                                    {"divisor", {"64"}},
                                    {"tokens", {"33"}},
                                    {"dtype", {"bf16"}},
                                    {"placement", {"late"}},
                                    {"recipe", std::move(recipes)},
                                    {"routing", {"router"}},
                                    {"mask", {"none"}},
                                    {"seed", {"1"}}});
                  };
                  if (tier == Tier::smoke) return cases({"mixtral-8x7b"}, {"plain"});
                  if (tier == Tier::full) return std::vector<Values>{};
                  return cases({"deepseek-moe-16b"}, {"plain", "mxfp8"});
                },
                run_queue});
}

}  // namespace dropless::conformance
