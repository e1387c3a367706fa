// SPDX-License-Identifier: Apache-2.0
// dropless bench in device memory: one row per operation, the peer taking turns in the same run.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "conformance/adapters/device_memory.h"
#include "conformance/benchmarks/device/report.h"
#include "conformance/command_line/bench.h"
#include "conformance/report/build_info.h"
#include "conformance/report/machine.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

std::vector<DeviceBenchmark> chosen(const dropless_implementation& table,
                                    const std::string& filter) {
  std::vector<DeviceBenchmark> all = device_benchmarks(table, {}), wanted;
  std::string names;
  for (DeviceBenchmark& one : all) {
    names += " " + one.name;
    if (one.name.find(filter) != std::string::npos) wanted.push_back(std::move(one));
  }
  if (wanted.empty()) {
    throw UsageError(fmt::format("--filter '{}' leaves no benchmark; there are:{}", filter, names));
  }
  return wanted;
}

}  // namespace

void bench_device(const BenchWishes& wishes, const BenchNumbers& numbers, Session& session,
                  const LoadedImplementation& loaded, std::ofstream& record) {
  DeviceOptions options;
  options.interrupt = &session.interrupt;
  options.repetitions = numbers.repetitions.value_or(options.repetitions);
  options.minimum_seconds = numbers.seconds.value_or(options.minimum_seconds);
  options.rest_seconds = numbers.rest.value_or(options.rest_seconds);
  const std::vector<DeviceBenchmark> benchmarks = chosen(loaded.table(), wishes.filter);
  const std::unique_ptr<DeviceQueue> queue = open_device_queue();
  DeviceBench bench(*queue, loaded.table(), numbers.threads.value_or(0));
  std::optional<Peer> peer;
  if (wishes.peer) peer.emplace(*wishes.peer, &session.interrupt);
  const DeviceScale scale =
      scale_of(queue->device_name(), copy_rate(bench), peer ? &*peer : nullptr);
  if (options.rest_seconds > 0) {
    session.out << fmt::format("a rest of {:.0f} ms before each repetition\n",
                               options.rest_seconds * 1e3);
  }
  print_head(session.out, scale);
  std::string told;  // of the peer, once
  if (peer && !peer->trouble().empty()) {
    told = peer->trouble();
    session.out << "no peer: " << told << '\n';
  }

  Json rows = Json::array();
  std::vector<std::string> not_offered;
  for (const DeviceBenchmark& one : benchmarks) {
    if (!one.missing.empty()) {
      not_offered.push_back(fmt::format("{} (needs {})", one.name, fmt::join(one.missing, ", ")));
      continue;
    }
    if (session.interrupt != 0) break;
    DeviceResult result = measure(bench, one, options, peer ? &*peer : nullptr);
    rows.push_back(as_json(scale, one, result));
    if (!result.failed.empty()) session.exit_code = 1;
    if (peer && !peer->trouble().empty()) {
      if (told == result.peer.why) result.peer.why.clear();
      told = peer->trouble();
    }
    print_row(session.out, scale, one, result);
    if (result.device_lost) break;
  }
  for (const std::string& name : not_offered) session.out << "not offered: " << name << '\n';
  if (record.is_open()) {
    Json all{{"suite", describe_suite()}, {"machine", describe_machine()}};
    all["device"] = describe_device();
    all["implementation"] = loaded.table().name;
    all["repetitions"] = options.repetitions;
    all["least_seconds_of_a_repetition"] = options.minimum_seconds;
    all["rest_seconds"] = options.rest_seconds;
    all["held_against"] = as_json(scale);
    all["not_offered"] = not_offered;
    all["results"] = rows;
    record << all.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  if (session.interrupt != 0) throw Interrupted{session.interrupt};
}

}  // namespace dropless::conformance
