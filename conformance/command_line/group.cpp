// SPDX-License-Identifier: Apache-2.0
// Leading or following.
#include "conformance/command_line/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "conformance/ranks/agent.h"
#include "conformance/ranks/hub.h"
#include "conformance/ranks/rank_hosts.h"
#include "conformance/runner/supervisor.h"

namespace dropless::conformance {
namespace {

constexpr int most_ranks = 1024;
constexpr double default_join_seconds = 60, longest_join_seconds = 86400;

// The launcher that was asked for by name.
Group group_by_option(const std::string& launcher, int ranks) {
  const std::vector<std::string> known{"processes", "threads", "mpi"};
  if (std::find(known.begin(), known.end(), launcher) == known.end()) {
    throw UsageError(
        fmt::format("no launcher '{}'; choose one of {}", launcher, fmt::join(known, ", ")));
  }
  if (ranks == 0) {
    throw UsageError(fmt::format("--launcher {} needs --ranks; say how many", launcher));
  }
  if (launcher == "mpi") {
    (void)path_of_mpirun();
    (void)path_of_mpi_rank();
  }
  return {ranks, launcher, ""};
}

void lead(Session& session, Request& request, const Launch& launch, double join_seconds,
          const std::function<void()>& work) {
  Hub hub(meeting_point(launch, environment_of_process()), launch.ranks, join_seconds,
          session.interrupt);
  request.group = {launch.ranks, "agents", hub.address()};
  try {
    if (session.interrupt != 0) throw Interrupted(session.interrupt);
    work();
    // A launcher may end all ranks as soon as one ends: what is to be said is said before.
    session.out.flush();
    session.err.flush();
    hub.finish(session.exit_code, "");
  } catch (const UsageError& error) {
    hub.finish(2, error.what());
    throw;
  } catch (const Interrupted& stop) {
    hub.finish(128 + stop.signal, "");
    throw;
  }
}

void follow_rank_0(Session& session, const Launch& launch, double join_seconds) {
  const Orders orders = [&] {
    try {
      return follow(launch, meeting_point(launch, environment_of_process()), join_seconds,
                    session.interrupt);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("rank {}: {}", launch.rank, error.what()));
    }
  }();
  if (orders.code == 2) throw UsageError(fmt::format("rank {}: {}", launch.rank, orders.message));
  if (!orders.message.empty()) {
    session.err << fmt::format("dropless: rank {}: {}\n", launch.rank, orders.message);
  }
  session.exit_code = orders.code;
}

}  // namespace

void in_group(Session& session, Request& request, const std::function<void()>& work) {
  const ImplementationOptions& given = request.implementation;
  const int ranks =
      given.ranks ? static_cast<int>(whole_number("--ranks", *given.ranks, 1, most_ranks)) : 0;
  const double join_seconds =
      given.join_timeout
          ? positive_number("--join-timeout", *given.join_timeout, longest_join_seconds)
          : default_join_seconds;
  if (given.launcher) {
    request.group = group_by_option(*given.launcher, ranks);
    return work();
  }
  const std::optional<Launch> launch = launch_from(environment_of_process());
  if (!launch) {
    if (ranks > 0) request.group = {ranks, "processes", ""};
    return work();
  }
  if (ranks > 0 && ranks != launch->ranks) {
    throw UsageError(
        fmt::format("rank {}: --ranks {}, but {} says {} ranks; leave --ranks out, or name a "
                    "--launcher to take no notice of it",
                    launch->rank, ranks, launch->launcher, launch->ranks));
  }
  if (launch->rank > 0) return follow_rank_0(session, *launch, join_seconds);
  lead(session, request, *launch, join_seconds, work);
}

}  // namespace dropless::conformance
