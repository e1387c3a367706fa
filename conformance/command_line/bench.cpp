// SPDX-License-Identifier: Apache-2.0
// dropless bench: how fast an implementation is, each operation beside a peer in the same run.
#include "conformance/command_line/bench.h"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "conformance/adapters/load.h"
#include "conformance/benchmarks/comparison.h"
#include "conformance/report/build_info.h"
#include "conformance/report/machine.h"
#include "conformance/runner/supervisor.h"
#include "optimized/cpu/exchange/implementation.h"

namespace dropless::conformance {
namespace {

using Json = nlohmann::ordered_json;

Json as_json(const std::vector<BenchResult>& results) {
  Json all = Json::array();
  for (const BenchResult& r : results) {
    all.push_back({{"operation", r.name},
                   {"what", r.what},
                   {"peer", r.peer_name},
                   {"unit", r.in_bytes ? "bytes/s" : "FLOP/s"},
                   {"median_seconds", r.operation_seconds},
                   {"peer_median_seconds", r.peer_seconds},
                   {"rate", r.operation_rate},
                   {"peer_rate", r.peer_rate},
                   {"ratio", r.ratio},
                   {"ratio_by_cpu_time", r.cpu_ratio},
                   {"spread", r.spread},
                   {"promised_ratio", r.target_ratio},
                   {"promised_rate", r.target_rate}});
  }
  return all;
}

// The CPU implementation declares the flat layout, and has the other one too.
const dropless_implementation& expert_major_exchange() {
  dropless_profile profile{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  profile.dispatch_layout = DROPLESS_DISPATCH_EXPERT_MAJOR;
  return *cpu::exchange::implementation(profile);
}

// A crash or a refusal of the library shows in a process of its own first.
void probe(const BenchWishes& wishes, Session& session) {
  SupervisorOptions options;
  options.worker.implementation = wishes.implementation;
  options.interrupt = &session.interrupt;
  static_cast<void>(Supervisor(options).probe());
}

std::ofstream record_of(const BenchWishes& wishes) {
  std::ofstream file;
  if (wishes.json.empty()) return file;
  if (std::ifstream(wishes.json)) {
    throw UsageError(fmt::format("--json {}: the file exists; name a new one", wishes.json));
  }
  file.open(wishes.json);
  if (!file) {
    throw UsageError(
        fmt::format("--json {}: cannot be written; name a file in a folder that "
                    "exists",
                    wishes.json));
  }
  return file;
}

BenchNumbers numbers_of(const BenchWishes& wishes) {
  BenchNumbers numbers;
  if (wishes.threads) {
    numbers.threads = static_cast<int>(whole_number("--threads", *wishes.threads, 1, 4096));
  }
  if (wishes.repetitions) {
    numbers.repetitions =
        static_cast<int>(whole_number("--repetitions", *wishes.repetitions, 1, 1000));
  }
  if (wishes.seconds) numbers.seconds = positive_number("--seconds", *wishes.seconds, 3600);
  if (wishes.rest) numbers.rest = positive_number("--rest", *wishes.rest, 60);
  return numbers;
}

void run_bench(const BenchWishes& wishes, Session& session) {
  const BenchNumbers numbers = numbers_of(wishes);
  std::ofstream file = record_of(wishes);
  probe(wishes, session);
  const LoadedImplementation loaded = load_implementation(wishes.implementation);
  if (loaded.table().memory_space != DROPLESS_HOST) {
    return bench_device(wishes, numbers, session, loaded, file);
  }
  if (wishes.peer || wishes.rest) {
    throw UsageError(
        fmt::format("{} is for implementations in device memory, and {} is in host memory; "
                    "leave it out",
                    wishes.peer ? "--peer" : "--rest", wishes.implementation));
  }
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads = numbers.threads.value_or(cores);
  BenchOptions options;
  options.filter = wishes.filter;
  options.repetitions = numbers.repetitions.value_or(options.repetitions);
  options.minimum_seconds = numbers.seconds.value_or(options.minimum_seconds);
  std::vector<std::string> not_offered;
  auto all = comparisons(loaded.table(), threads, not_offered);
  if (wishes.implementation == "cpu") add_exchange(all, expert_major_exchange(), not_offered);
  const auto results = measure(all, options);
  if (results.empty()) {
    std::string names;
    for (const Comparison& one : all) names += " " + one.name;
    throw UsageError(
        fmt::format("--filter '{}' leaves no benchmark; there are:{}", wishes.filter,
                    names.empty() ? " none, since no timed operation is offered" : names));
  }
  print(session.out, results);
  for (const std::string& name : not_offered) session.out << "not offered: " << name << '\n';
  if (file.is_open()) {
    const Json record{{"suite", describe_suite()},
                      {"machine", describe_machine()},
                      {"implementation", loaded.table().name},
                      {"threads", threads},
                      {"repetitions", options.repetitions},
                      {"results", as_json(results)}};
    file << record.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  }
}

}  // namespace

void add_bench(CLI::App& app, Session& session) {
  auto wishes = std::make_shared<BenchWishes>();
  CLI::App* command = app.add_subcommand(
      "bench", "Time an implementation, each operation beside a peer in the same run");
  command
      ->add_option("-i,--implementation", wishes->implementation,
                   "cpu (default), cuda, reference, or a shared library")
      ->type_name("NAME|FILE");
  command->add_option("--filter", wishes->filter, "only names that contain this")
      ->type_name("TEXT");
  command
      ->add_option("--threads", wishes->threads,
                   "threads of both sides (default: cores; in device memory the implementation's)")
      ->type_name("N");
  command
      ->add_option("--repetitions", wishes->repetitions,
                   "of which medians are taken (default: 9, in device memory 15)")
      ->type_name("N");
  command
      ->add_option("--seconds", wishes->seconds,
                   "least time of a repetition (default: 0.1, in device memory 0.002)")
      ->type_name("SECONDS");
  command
      ->add_option("--rest", wishes->rest,
                   "in device memory: pause before each repetition, since a chip lowers its clock "
                   "under steady load (default: none)")
      ->type_name("SECONDS");
  command
      ->add_option("--peer", wishes->peer,
                   "in device memory: a command that times the same operations when asked, such as "
                   "'python3 scripts/torch_peer.py'")
      ->type_name("COMMAND");
  command->add_option("--json", wishes->json, "also write a record; must not exist")
      ->type_name("FILE");
  command->callback([wishes, &session] { run_bench(*wishes, session); });
}

}  // namespace dropless::conformance
