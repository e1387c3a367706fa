// SPDX-License-Identifier: Apache-2.0
// Benchmarks in device memory, on the host: what an implementation may not get away with.
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/cases/case_run.h"
#include "optimized/cpu/implementation.h"
#include "reference/implementation.h"
#include "tests/benchmarks/host_queue.h"

namespace dropless::conformance {
namespace {

DeviceSizes small() {
  DeviceSizes sizes;
  sizes.tokens = 24, sizes.top_k = 2, sizes.hidden = 64, sizes.intermediate = 32;
  sizes.router_tokens = 40, sizes.experts = 8, sizes.local_experts = 4, sizes.even_experts = 2;
  return sizes;
}

const DeviceOptions quick{3, 1e-6, 0, nullptr};

DeviceBenchmark named(const std::string& name, const dropless_implementation& table) {
  for (DeviceBenchmark& one : device_benchmarks(table, small())) {
    if (one.name.find(name) != std::string::npos) return std::move(one);
  }
  throw std::logic_error("no benchmark " + name);
}

DeviceResult measured(const std::string& name, const dropless_implementation& table,
                      HostQueue& queue) {
  DeviceBench bench(queue, table, 1);
  return measure(bench, named(name, table), quick, nullptr);
}
DeviceResult measured(const std::string& name, const dropless_implementation& table) {
  HostQueue queue;
  return measured(name, table, queue);
}

class EveryBenchmark : public testing::TestWithParam<const dropless_implementation*> {};

TEST_P(EveryBenchmark, IsTimedAndPlausible) {
  const dropless_implementation& table = *GetParam();
  HostQueue queue;
  std::set<std::string> names;
  {
    DeviceBench bench(queue, table, 1);
    for (const DeviceBenchmark& one : device_benchmarks(table, small())) {
      EXPECT_TRUE(names.insert(one.name).second) << one.name;
      EXPECT_TRUE(one.missing.empty()) << one.name;
      EXPECT_GT(one.bytes, 0) << one.name;
      const DeviceResult result = measure(bench, one, quick, nullptr);
      EXPECT_EQ(result.failed, "") << one.name;
      EXPECT_GT(result.seconds, 0) << one.name;
      EXPECT_GE(result.sets, one.one_set ? 1 : 2) << one.name;
      EXPECT_EQ(result.calls % result.sets, 0) << one.name;
      EXPECT_FALSE(result.paths.empty()) << one.name;
      EXPECT_EQ(result.own_bf16_seconds > 0, one.mark.kind == MarkKind::of_own_bf16) << one.name;
    }
  }
  EXPECT_EQ(names.size(), 16U);
  EXPECT_EQ(queue.in_use, 0U);  // all memory was given back
}

INSTANTIATE_TEST_SUITE_P(Reference, EveryBenchmark, testing::Values(&reference::implementation()));
INSTANTIATE_TEST_SUITE_P(Cpu, EveryBenchmark, testing::Values(&cpu::implementation()));

// A profile of its own, so that zones and rows get padding.
TEST(Bench, AlignedZonesAreTimedToo) {
  dropless_profile profile = *reference::implementation().profile;
  profile.alignment = 16, profile.gemm_alignment = 16;
  profile.empty_expert = DROPLESS_EMPTY_EXPERT_ONE_BLOCK;
  dropless_implementation table = reference::implementation();
  table.profile = &profile;
  HostQueue queue;
  for (const char* name : {"permute", "unpermute", "fprop.bf16.experts4.zipf", "wgrad"}) {
    EXPECT_EQ(measured(name, table, queue).failed, "") << name;
  }
}

TEST(Bench, BuffersOutgrowTheCache) {
  HostQueue queue;
  queue.cache = 1 << 18;
  const DeviceResult result = measured("swiglu", cpu::implementation(), queue);
  // A set is 48 x 96 numbers of bf16.
  EXPECT_GE(result.sets, 32);
}

template <class Args>
dropless_status idle(void*, dropless_call*, Args*) {
  return DROPLESS_OK;
}

TEST(Bench, WhatDoesNothingHasNoTime) {
  dropless_implementation table = cpu::implementation();
  table.route_forward = idle, table.permute_forward = idle, table.unpermute_forward = idle;
  table.quantize = idle, table.activation_forward = idle;
  table.gemm_fprop = idle, table.gemm_dgrad = idle, table.gemm_wgrad = idle;
  table.layer_forward = idle, table.layer_backward = idle;
  HostQueue queue;
  DeviceBench bench(queue, table, 1);
  for (const DeviceBenchmark& one : device_benchmarks(table, small())) {
    const DeviceResult result = measure(bench, one, quick, nullptr);
    EXPECT_NE(result.failed.find("0 were written"), std::string::npos)
        << one.name << ": " << result.failed;
    EXPECT_EQ(result.seconds, 0) << one.name;
  }
}

TEST(Bench, OneElementLeftOutIsSeen) {
  dropless_implementation table = cpu::implementation();
  table.activation_forward = [](void* context, dropless_call* call,
                                dropless_activation_args* args) {
    auto* h = static_cast<std::uint16_t*>(args->h->data);
    const std::uint16_t before = h[7];
    const dropless_status status = cpu::implementation().activation_forward(context, call, args);
    h[7] = before;
    return status;
  };
  EXPECT_NE(measured("swiglu", table).failed.find("1535 were written"), std::string::npos)
      << measured("swiglu", table).failed;
}

TEST(Bench, ZerosAreNoResult) {
  dropless_implementation table = cpu::implementation();
  table.activation_forward = [](void*, dropless_call*, dropless_activation_args* args) {
    std::memset(args->h->data, 0,
                static_cast<std::size_t>(args->h->shape[0] * args->h->shape[1] * 2));
    return static_cast<dropless_status>(DROPLESS_OK);
  };
  EXPECT_NE(measured("swiglu", table).failed.find("all elements of h are 0"), std::string::npos);
}

// Good until its calls are recorded: the replay does nothing.
TEST(Bench, WhatRunsOnlyOutsideAGraphHasNoTime) {
  static bool recording = false;
  class EmptyGraph : public HostQueue {
   public:
    std::function<void()> captured(const std::function<void()>& enqueue) override {
      recording = true;
      enqueue();
      recording = false;
      return [] {};
    }
  } queue;
  dropless_implementation table = cpu::implementation();
  table.activation_forward = [](void* context, dropless_call* call,
                                dropless_activation_args* args) {
    if (recording) return static_cast<dropless_status>(DROPLESS_OK);
    return cpu::implementation().activation_forward(context, call, args);
  };
  EXPECT_NE(measured("swiglu", table, queue).failed.find("0 were written"), std::string::npos);
}

TEST(Bench, ARefusalNamesTheOperationAndTheReason) {
  dropless_implementation table = cpu::implementation();
  table.quantize = [](void*, dropless_call* call, dropless_quantize_args*) {
    std::strcpy(call->message, "no packed scales");
    return static_cast<dropless_status>(DROPLESS_NOT_SUPPORTED);
  };
  EXPECT_EQ(measured("quantize", table).failed, "quantize: NOT_SUPPORTED, no packed scales");
}

TEST(Bench, ADeferredRefusalIsNoTime) {
  dropless_implementation table = cpu::implementation();
  table.synchronize = [](void*, dropless_call* call, dropless_synchronize_args*) {
    std::strcpy(call->message, "offsets fall");
    return static_cast<dropless_status>(DROPLESS_INVALID_ARGUMENT);
  };
  EXPECT_EQ(measured("swiglu", table).failed,
            "reported by synchronize: INVALID_ARGUMENT, offsets fall");
}

// Only the calls behind the measurement are refused.
TEST(Bench, ALateDeferredRefusalIsNoTime) {
  static int asked = 0;
  asked = 0;
  dropless_implementation table = cpu::implementation();
  table.synchronize = [](void*, dropless_call*, dropless_synchronize_args*) {
    return static_cast<dropless_status>(++asked > 3 ? DROPLESS_INVALID_ARGUMENT : DROPLESS_OK);
  };
  EXPECT_EQ(measured("swiglu", table).failed, "reported by synchronize: INVALID_ARGUMENT");
}

TEST(Bench, WorkOutsideTheStreamIsNoTime) {
  HostQueue queue;
  queue.after_seconds = 0.5;
  EXPECT_NE(measured("swiglu", cpu::implementation(), queue).failed.find("enqueued elsewhere"),
            std::string::npos);
}

TEST(Bench, CallsThatCannotBeRecordedAreTimedDirectly) {
  HostQueue queue;
  const DeviceResult graph = measured("swiglu", cpu::implementation(), queue);
  EXPECT_TRUE(graph.as_graph);
  EXPECT_EQ(graph.why_no_graph, "");
  queue.has_graphs = false;
  const DeviceResult direct = measured("swiglu", cpu::implementation(), queue);
  EXPECT_EQ(direct.failed, "");
  EXPECT_FALSE(direct.as_graph);
  EXPECT_EQ(direct.why_no_graph, "a host records nothing");
}

// As a library does that waits inside a call: the error of the recording comes out one call later.
TEST(Bench, AnErrorKeptFromTheRecordingIsForgotten) {
  static bool recording = false, kept = false;
  class Recording : public HostQueue {
   public:
    std::function<void()> captured(const std::function<void()>& enqueue) override {
      recording = true;
      try {
        enqueue();
      } catch (...) {
        recording = false;
        throw;
      }
      throw std::logic_error("nothing was refused");
    }
  } queue;
  dropless_implementation table = cpu::implementation();
  table.activation_forward = [](void* context, dropless_call* call,
                                dropless_activation_args* args) {
    if (recording || std::exchange(kept, false)) {
      kept = recording;
      std::strcpy(call->message, "cannot wait here");
      return static_cast<dropless_status>(DROPLESS_DEVICE_ERROR);
    }
    return cpu::implementation().activation_forward(context, call, args);
  };
  const DeviceResult result = measured("swiglu", table, queue);
  EXPECT_EQ(result.failed, "");
  EXPECT_FALSE(result.as_graph);
  EXPECT_EQ(result.why_no_graph, "activation_forward: DEVICE_ERROR, cannot wait here");
}

TEST(Bench, RestsAreNotInTheTimes) {
  HostQueue queue;
  DeviceBench bench(queue, cpu::implementation(), 1);
  DeviceOptions options = quick;
  options.rest_seconds = 0.2;
  const auto begin = std::chrono::steady_clock::now();
  const DeviceResult result =
      measure(bench, named("swiglu", cpu::implementation()), options, nullptr);
  EXPECT_EQ(result.failed, "");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(600));
  EXPECT_LE(result.least_seconds, result.seconds);
  EXPECT_LT(result.seconds, 0.1);
}

TEST(Bench, AWorkspaceIsGivenToThoseWhoAsk) {
  static constexpr std::uint64_t needed = 1000;
  dropless_implementation table = cpu::implementation();
  table.activation_forward = [](void* context, dropless_call* call,
                                dropless_activation_args* args) {
    if (call->workspace_bytes < needed) {
      call->workspace_required = needed;
      return static_cast<dropless_status>(DROPLESS_WORKSPACE_TOO_SMALL);
    }
    std::memset(call->workspace, 1, needed);
    return cpu::implementation().activation_forward(context, call, args);
  };
  EXPECT_EQ(measured("swiglu", table).failed, "");
}

TEST(Bench, WhatIsNotOfferedIsNamed) {
  dropless_implementation table = cpu::implementation();
  table.layer_backward = nullptr, table.gemm_wgrad = nullptr;
  EXPECT_EQ(named("layer.forward_backward", table).missing,
            std::vector<std::string>{"layer_backward"});
  EXPECT_TRUE(named("layer.forward.bf16", table).missing.empty());
  EXPECT_EQ(named("wgrad", table).missing, std::vector<std::string>{"gemm_wgrad"});
}

TEST(Bench, AFailedBackwardPassGivesTheStateBack) {
  static int kept = 0;
  kept = 0;
  dropless_implementation table = cpu::implementation();
  table.layer_forward = [](void* context, dropless_call* call, dropless_layer_args* args) {
    const dropless_status status = cpu::implementation().layer_forward(context, call, args);
    kept += args->keep;
    return status;
  };
  table.layer_backward = [](void*, dropless_call*, dropless_layer_backward_args*) {
    return static_cast<dropless_status>(DROPLESS_OUT_OF_MEMORY);
  };
  table.layer_release = [](void* context, dropless_call* call, dropless_layer_args* args) {
    --kept;
    return cpu::implementation().layer_release(context, call, args);
  };
  EXPECT_EQ(measured("layer.forward_backward", table).failed, "layer_backward: OUT_OF_MEMORY");
  EXPECT_EQ(kept, 0);
}

TEST(Bench, AnInterruptEndsIt) {
  const std::atomic<int> interrupt{2};
  DeviceOptions options = quick;
  options.interrupt = &interrupt;
  HostQueue queue;
  DeviceBench bench(queue, cpu::implementation(), 1);
  EXPECT_EQ(measure(bench, named("swiglu", cpu::implementation()), options, nullptr).failed,
            "interrupted");
}

// Row-wise codes and scales are those of the numbers: both sides of a comparison see the same data.
TEST(Bench, CodesAreThoseOfTheNumbers) {
  HostQueue queue;
  DeviceBench bench(queue, reference::implementation(), 1);
  const DeviceCodes codes = bench.codes({64, 96});
  const DeviceTensor y = bench.tensor(DROPLESS_FP32, {64, 96});
  auto args = make_args<dropless_dequantize_args>();
  args.codes = codes.values->get(), args.scales = codes.scales->get(), args.y = y->get();
  bench.call("dequantize", reference::implementation().dequantize, args);
  double sum = 0, squares = 0;
  const auto* values = static_cast<const float*>(y->get()->data);
  for (Index i = 0; i < y->size(); ++i) {
    sum += static_cast<double>(values[i]);
    squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  // 6144 draws of mean 0 and variance 1: six standard deviations of either estimate, and a
  // relative error of a code of at most 2^-4.
  const double n = static_cast<double>(y->size());
  EXPECT_LT(std::abs(sum / n), 6 / std::sqrt(n));
  EXPECT_LT(std::abs(squares / n - 1), 6 * std::sqrt(2 / n) + 2.0 / 16 + 1.0 / 256);
}

}  // namespace
}  // namespace dropless::conformance
