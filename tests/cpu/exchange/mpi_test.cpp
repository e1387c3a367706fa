// SPDX-License-Identifier: Apache-2.0
// Ranks started by mpirun: the same steps over MPI, then over sockets, then a rank that never
// comes. Not a GoogleTest: every rank is a process of its own, and one word decides.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "optimized/cpu/exchange/mpi/offer.h"
#include "tests/cpu/exchange/routing.h"

namespace dropless::cpu::testing {
namespace {

class MpiGathering final : public Gathering {
 public:
  int gather(int, const void* sent, void* received, std::size_t bytes) override {
    const int size = static_cast<int>(bytes);
    return MPI_Allgather(sent, size, MPI_BYTE, received, size, MPI_BYTE, MPI_COMM_WORLD);
  }
};

// A time-out on every rank but the one that is missing.
std::string late_rank(int rank, int ranks, Gathering& gathering) {
  const Routing routing = random_routing(
      ranks, 2 * ranks, 2, std::vector<Index>(static_cast<std::size_t>(ranks), 30), 2);
  Rank mine(routing.profile(), rank, ranks, gathering);
  std::vector<Array> memory;
  routing.complete(mine.settings, memory);
  mine.settings.timeout_seconds = 0.5;
  if (const Outcome o = mine.open(); o.status != DROPLESS_OK) return o.message;
  std::string wrong;
  if (rank != 1) {
    const PlanResult p = mine.plan(routing.ids_of(rank));
    if (p.outcome.status != DROPLESS_TIMEOUT ||
        p.outcome.message.find("no routing from rank 1 within 0.5 s") == std::string::npos) {
      wrong = std::to_string(p.outcome.status) + " " + p.outcome.message;
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return wrong;
}

std::string all_checks(int rank, int ranks) {
  MpiGathering gathering;
  std::vector<Index> tokens;
  for (int r = 0; r < ranks; ++r) tokens.push_back(3 + 11 * (r % 3));
  for (const char* transport : {"mpi", "sockets"}) {
    setenv("DROPLESS_TRANSPORT", transport, 1);
    for (const bool expert_major : {false, true}) {
      Routing routing = random_routing(ranks, 4 * ranks, 3, tokens, 11);
      routing.expert_major = expert_major;
      routing.weighted = expert_major;
      const std::string wrong = check_all(rank, gathering, routing, transport);
      if (!wrong.empty()) return std::string(transport) + ": " + wrong;
    }
  }
  unsetenv("DROPLESS_TRANSPORT");  // MPI is chosen because it is there
  const std::string wrong =
      check_all(rank, gathering, random_routing(ranks, 2 * ranks, 2, tokens, 12), "mpi");
  return wrong.empty() ? late_rank(rank, ranks, gathering) : wrong;
}

int run(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  offer_mpi_transport();
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::string wrong = all_checks(rank, ranks);
  if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
  int failed = wrong.empty() ? 0 : 1, any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%d ranks: %s\n", ranks, any_failed == 0 ? "passed" : "FAILED");
  MPI_Finalize();
  return any_failed;
}

}  // namespace
}  // namespace dropless::cpu::testing

int main(int argc, char** argv) {
  return dropless::cpu::testing::run(argc, argv);
}
