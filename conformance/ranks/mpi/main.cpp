// SPDX-License-Identifier: Apache-2.0
// dropless_mpi_rank: one rank under mpirun, which the tool starts; or the carrier of one line from
// rank 0 to all others.
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "conformance/adapters/sources.h"
#include "conformance/ranks/rank_process.h"
#include "conformance/ranks/tcp.h"
#include "conformance/runner/child.h"
#include "optimized/cpu/exchange/mpi/offer.h"

namespace {

using Arguments = std::map<std::string, std::string>;

constexpr int line_bytes = 4096;

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// The rank 0 of MPI is that of the launcher's variables.
int broadcast(const std::string& text) {
  const int reply = fcntl(dropless::conformance::reply_descriptor, F_DUPFD_CLOEXEC, 16);
  if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return 1;
  char line[line_bytes] = {};
  text.copy(line, sizeof line - 1);
  MPI_Bcast(line, line_bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  MPI_Finalize();
  const std::string answer = std::string(line) + "\n";
  return write(reply, answer.data(), answer.size()) == static_cast<ssize_t>(answer.size()) ? 0 : 1;
}

std::unique_ptr<dropless::conformance::Link> connect_to(const Arguments& arguments) {
  std::istringstream hosts(arguments.at("--connect"));
  std::string why;
  for (std::string host; std::getline(hosts, host, ',');) {
    auto link =
        dropless::conformance::try_to_connect(host, std::atoi(arguments.at("--port").c_str()), why);
    if (link) return link;
  }
  std::fprintf(stderr, "dropless_mpi_rank: %s; the tool that started mpirun has gone\n",
               why.c_str());
  return nullptr;
}

int serve(const Arguments& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives mpirun
  int level = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) return 1;
  dropless::conformance::RankOptions options;
  options.implementation = arguments.at("--implementation");
  options.threads = std::atoi(arguments.at("--threads").c_str());
  if (arguments.contains("--models")) options.models = arguments.at("--models");
  options.rank = own_rank();
  MPI_Comm_size(MPI_COMM_WORLD, &options.ranks);
  if (const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK")) {
    options.local_rank = std::atoi(local);
  }
  auto link = connect_to(arguments);
  if (!link) return 1;
  link->send(fmt::format("rank {} {} {}", arguments.at("--key"), options.rank, options.ranks));
  dropless::cpu::offer_mpi_transport();
  dropless::conformance::register_planted_faults();
  dropless::conformance::register_honest_variants();
  return dropless::conformance::serve_rank(options, std::move(link));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) arguments[argv[i]] = argv[i + 1];
  try {
    if (arguments.contains("--broadcast")) return broadcast(arguments.at("--broadcast"));
    // Straight out: destructors of a foreign library are not ours to run.
    _exit(serve(arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dropless_mpi_rank: %s; it is started by the tool, not by hand\n",
                 error.what());
    _exit(2);
  }
}
