// SPDX-License-Identifier: Apache-2.0
// Variables of launchers.
#include "conformance/ranks/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

constexpr int most_ranks = 1 << 20;

int number_in(const std::string& variable, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  throw UsageError(fmt::format("{} is '{}'; it has to be a whole number from {} to {}", variable,
                               text, least, most));
}

struct Variables {
  const char* launcher;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  bool rank_alone;  // may stand without the number of ranks: then it means something else
};
constexpr Variables known[] = {
    {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", false},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     false},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", false},
    // SLURM_STEP_NUM_TASKS is set for the processes of srun, not in a batch script.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true},
};

std::optional<Launch> launch_by(const Variables& names, const Environment& environment) {
  const auto rank = environment(names.rank), ranks = environment(names.ranks);
  if (!rank && !ranks) return std::nullopt;
  if (!rank || !ranks) {
    if (names.rank_alone) return std::nullopt;
    throw UsageError(fmt::format(
        "{} is set and {} is not; a launcher sets both, unset it to run without other ranks",
        rank ? names.rank : names.ranks, rank ? names.ranks : names.rank));
  }
  Launch launch;
  launch.launcher = names.launcher;
  launch.ranks = number_in(names.ranks, *ranks, 1, most_ranks);
  launch.rank = number_in(names.rank, *rank, 0, launch.ranks - 1);
  if (const auto local = environment(names.local_rank)) {
    launch.local_rank = number_in(names.local_rank, *local, 0, most_ranks);
  } else {
    launch.local_rank = launch.rank;
  }
  return launch;
}

// The first of "node[003-007,9],other1", a compressed list of Slurm.
std::string first_node_of(const std::string& list) {
  const std::size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const std::size_t end = list.find_first_of("-,]", bracket + 1);
  const std::size_t close = std::min(list.find(']', bracket), list.size());
  const std::size_t behind = std::min(list.find(',', close), list.size());
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(std::min(close + 1, list.size()), behind - std::min(close + 1, behind));
}

// A port that all ranks of a step compute alike; above the well-known ones and below those that the
// system gives away.
int port_of_step(const std::string& job, const std::string& step) {
  const unsigned long number =
      std::strtoul(job.c_str(), nullptr, 10) * 64 + std::strtoul(step.c_str(), nullptr, 10);
  return 16384 + static_cast<int>(number % 16384);
}

std::string temporary_folder() {
  std::error_code error;
  const std::string folder = std::filesystem::temp_directory_path(error).string();
  return error ? "/tmp" : folder;
}

}  // namespace

Environment environment_of_process() {
  return [](const std::string& variable) -> std::optional<std::string> {
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

std::optional<Launch> launch_from(const Environment& environment) {
  std::optional<Launch> found;
  for (const Variables& names : known) {
    std::optional<Launch> launch = launch_by(names, environment);
    if (!launch) continue;
    // A scheduler may start one process that starts the ranks; the innermost launcher counts.
    if (found && launch->ranks > 1 && names.launcher == std::string("Open MPI") &&
        (launch->rank != found->rank || launch->ranks != found->ranks)) {
      throw UsageError(fmt::format(
          "{} say rank {} of {}, {} says rank {} of {}; unset the variables of one of them",
          found->launcher, found->rank, found->ranks, launch->launcher, launch->rank,
          launch->ranks));
    }
    if (!found) found = std::move(launch);
  }
  if (!found || found->ranks == 1) return std::nullopt;
  if (const auto on_this_host = environment("OMPI_COMM_WORLD_LOCAL_SIZE")) {
    found->one_host =
        number_in("OMPI_COMM_WORLD_LOCAL_SIZE", *on_this_host, 1, most_ranks) == found->ranks;
  }
  found->job =
      environment("PMIX_NAMESPACE").value_or(environment("OMPI_MCA_ess_base_jobid").value_or(""));
  return found;
}

MeetingPoint meeting_point(const Launch& launch, const Environment& environment) {
  MeetingPoint point;
  if (const auto file = environment("DROPLESS_RENDEZVOUS")) {
    point.kind = MeetingPoint::Kind::file;
    point.file = *file;
    return point;
  }
  const auto host = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
  if (host || port) {
    if (!host || !port) {
      throw UsageError(
          fmt::format("{} is set and {} is not; set both, or DROPLESS_RENDEZVOUS to a "
                      "file that all ranks can read",
                      host ? "MASTER_ADDR" : "MASTER_PORT", host ? "MASTER_PORT" : "MASTER_ADDR"));
    }
    point.host = *host;
    point.port = number_in("MASTER_PORT", *port, 1, 65535);
    // torchrun itself may serve its store at that port: then the next one is ours.
    if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True" && point.port < 65535) ++point.port;
    return point;
  }
  const auto nodes = environment("SLURM_STEP_NODELIST"), job = environment("SLURM_JOB_ID");
  if (nodes && job && launch.launcher == "Slurm") {
    point.host = first_node_of(*nodes);
    point.port = port_of_step(*job, environment("SLURM_STEP_ID").value_or("0"));
    return point;
  }
  if (!launch.job.empty() && launch.one_host) {
    std::string name = launch.job;
    for (char& c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
    }
    point.kind = MeetingPoint::Kind::file;
    point.file = fmt::format("{}/dropless-{}-{}", temporary_folder(), getuid(), name);
    return point;
  }
  if (launch.launcher == "Open MPI") {
    point.kind = MeetingPoint::Kind::broadcast;
    return point;
  }
  throw UsageError(fmt::format(
      "rank {} of {} (by {}) does not know where rank 0 is; set MASTER_ADDR and MASTER_PORT, or "
      "DROPLESS_RENDEZVOUS to a file that all ranks can read",
      launch.rank, launch.ranks, launch.launcher));
}

}  // namespace dropless::conformance
