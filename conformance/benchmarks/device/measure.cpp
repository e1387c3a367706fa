// SPDX-License-Identifier: Apache-2.0
// Times between events, of batches of calls over rotating buffers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <thread>

#include "conformance/benchmarks/device/benchmark.h"
#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

constexpr std::size_t caches_filled = 4;  // by all sets together
constexpr std::size_t fewest_sets = 2, most_sets = 32;
constexpr int most_calls = 1024;
constexpr int turns = 3;  // of each side, when a peer is asked
// Work that goes on when the stream has finished: the host's own delay is far shorter.
constexpr double late_seconds = 2e-4, late_share = 0.25;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::vector<OperandSet> make_sets(DeviceBench& bench, const DeviceBenchmark& benchmark) {
  std::vector<OperandSet> sets;
  const std::size_t before = bench.allocated_bytes();
  const std::size_t enough = caches_filled * bench.queue().cache_bytes();
  const std::size_t fewest = benchmark.one_set ? 1 : fewest_sets;
  while (sets.size() < fewest ||
         (sets.size() < most_sets && bench.allocated_bytes() - before < enough)) {
    sets.push_back(benchmark.make_set(bench));
  }
  return sets;
}

void poison(DeviceQueue& queue, const std::vector<OperandSet>& sets) {
  for (const OperandSet& set : sets) {
    for (const TimedOutput& output : set.outputs) {
      queue.set_bytes(output.tensor->get()->data, 0xFF, output.tensor->bytes());
    }
  }
}

// Calls of all sets, one after the other, as often as a repetition shall last.
struct Batch {
  std::function<void()> enqueue;
  int calls = 0;
  bool as_graph = false;
  std::string why_no_graph;
};

// An implementation that waited, or did something else that a recording forbids, may have kept the
// error for its next call. That is not what it is timed for.
void forget_the_attempt(DeviceBench& bench, const std::function<void()>& round) {
  try {
    round();
    bench.settle();
  } catch (const OperationFailed&) {  // the calls that follow must succeed
  }
}

using Member = std::function<void()> OperandSet::*;

Batch make_batch(DeviceBench& bench, const std::vector<OperandSet>& sets, Member call,
                 const DeviceOptions& options) {
  const auto round = [&sets, call] {
    for (const OperandSet& set : sets) (set.*call)();
  };
  for (int i = 0; i < 2; ++i) {
    round();
    bench.settle();
  }
  const double once = bench.queue().timed(round).seconds;
  const int most_rounds = std::max(1, most_calls / static_cast<int>(sets.size()));
  const int rounds =
      static_cast<int>(std::clamp(std::ceil(options.minimum_seconds / std::max(once, 1e-9)), 1.0,
                                  static_cast<double>(most_rounds)));
  Batch batch;
  batch.calls = rounds * static_cast<int>(sets.size());
  const auto direct = [round, rounds] {
    for (int i = 0; i < rounds; ++i) round();
  };
  try {
    batch.enqueue = bench.queue().captured(direct);
    batch.as_graph = true;
  } catch (const DeviceFailure&) {
    throw;
  } catch (const std::runtime_error& error) {
    batch.enqueue = direct;
    batch.why_no_graph = error.what();
    forget_the_attempt(bench, round);
  }
  batch.enqueue();
  bench.settle();
  return batch;
}

// Repetitions of one side.
class Series {
 public:
  explicit Series(Batch batch) : batch_(std::move(batch)) {}

  void warm_up() const { batch_.enqueue(); }
  void repeat(DeviceBench& bench, double rest) {
    if (rest > 0) std::this_thread::sleep_for(std::chrono::duration<double>(rest));
    const Interval time = bench.queue().timed(batch_.enqueue);
    seconds_.push_back(time.seconds / batch_.calls);
    least_late_ = std::min(least_late_, time.after_seconds - late_share * time.seconds);
  }
  void check_stream() const {
    if (least_late_ > late_seconds) {
      throw OperationFailed(
          "the device goes on working when the stream of the call has finished: work was enqueued "
          "elsewhere, and its time is not known");
    }
  }
  [[nodiscard]] double least() const { return *std::min_element(seconds_.begin(), seconds_.end()); }
  [[nodiscard]] double middle() const { return median(seconds_); }
  [[nodiscard]] double spread() const {
    const auto [least, most] = std::minmax_element(seconds_.begin(), seconds_.end());
    return (*most - *least) / middle();
  }
  [[nodiscard]] const Batch& batch() const { return batch_; }

 private:
  Batch batch_;
  std::vector<double> seconds_;
  double least_late_ = std::numeric_limits<double>::infinity();
};

void measure_into(DeviceResult& result, DeviceBench& bench, const DeviceBenchmark& benchmark,
                  const DeviceOptions& options, Peer* peer) {
  const std::vector<OperandSet> sets = make_sets(bench, benchmark);
  bench.take_paths();
  poison(bench.queue(), sets);
  Series own(make_batch(bench, sets, &OperandSet::call, options));
  result.paths = bench.take_paths();
  std::optional<Series> bf16;
  if (sets[0].own_bf16) bf16.emplace(make_batch(bench, sets, &OperandSet::own_bf16, options));

  const bool asks = peer != nullptr && !benchmark.request.empty();
  const int rounds = asks ? std::min(turns, options.repetitions) : 1;
  std::vector<double> peer_seconds;
  for (int turn = 0; turn < rounds; ++turn) {
    const int repetitions =
        options.repetitions * (turn + 1) / rounds - options.repetitions * turn / rounds;
    if (bf16) bf16->warm_up();
    own.warm_up();
    for (int i = 0; i < repetitions; ++i) {
      if (options.interrupt != nullptr && *options.interrupt != 0) {
        throw OperationFailed("interrupted");
      }
      own.repeat(bench, options.rest_seconds);
      if (bf16) bf16->repeat(bench, options.rest_seconds);
    }
    bench.settle();
    if (!asks) continue;
    const PeerAnswer answer =
        peer->ask(fmt::format("{} sets={} repetitions={} rest_us={:.0f}", benchmark.request,
                              sets.size(), repetitions, options.rest_seconds * 1e6));
    if (answer.seconds > 0) peer_seconds.push_back(answer.seconds);
    // A reason stays, also beside times of earlier turns.
    if (result.peer.why.empty()) result.peer = answer;
  }
  own.check_stream();
  if (bf16) bf16->check_stream();
  poison(bench.queue(), sets);
  own.batch().enqueue();
  bench.settle();
  for (const OperandSet& set : sets) {
    const std::string why = implausible(bench.queue(), set.outputs);
    if (!why.empty()) throw OperationFailed(why);
  }
  if (peer_seconds.size() == static_cast<std::size_t>(rounds)) {
    result.peer.seconds = median(peer_seconds);
  } else {
    result.peer.seconds = 0;
  }
  result.sets = static_cast<int>(sets.size());
  result.calls = own.batch().calls;
  result.as_graph = own.batch().as_graph;
  result.why_no_graph = own.batch().why_no_graph;
  result.spread = own.spread();
  result.least_seconds = own.least();
  if (bf16) result.own_bf16_seconds = bf16->middle();
  result.seconds = own.middle();
}

}  // namespace

DeviceResult measure(DeviceBench& bench, const DeviceBenchmark& benchmark,
                     const DeviceOptions& options, Peer* peer) {
  DeviceResult result;
  try {
    measure_into(result, bench, benchmark, options, peer);
  } catch (const DeviceFailure& failure) {
    result.failed = fmt::format("the device is lost: {}", failure.what());
    result.device_lost = true;
  } catch (const std::bad_alloc&) {
    result.failed = "no more device memory";
  } catch (const std::exception& error) {
    result.failed = error.what();
  }
  return result;
}

double copy_rate(DeviceBench& bench, std::size_t bytes) {
  const Shape shape{static_cast<Index>(bytes / 2)};
  const DeviceTensor from = bench.normal(DROPLESS_BF16, shape);
  const DeviceTensor to = bench.tensor(DROPLESS_BF16, shape);
  DeviceQueue& queue = bench.queue();
  const auto copy = [&] { queue.copy_within(to->get()->data, from->get()->data, from->bytes()); };
  std::vector<double> seconds;
  for (int i = -2; i < 11; ++i) {
    const double time = queue.timed(copy).seconds;
    if (i >= 0) seconds.push_back(std::max(time, 1e-9));
  }
  return 2 * static_cast<double>(from->bytes()) / median(seconds);
}

std::vector<DeviceBenchmark> device_benchmarks(const dropless_implementation& table,
                                               const DeviceSizes& sizes) {
  std::vector<DeviceBenchmark> all;
  add_routing(all, table, sizes);
  add_permutation(all, table, sizes);
  add_mxfp8(all, table, sizes);
  add_activation(all, table, sizes);
  add_grouped_gemm(all, table, sizes);
  add_layer(all, table, sizes);
  return all;
}

}  // namespace dropless::conformance
