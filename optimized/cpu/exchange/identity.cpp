// SPDX-License-Identifier: Apache-2.0
// Agreement of the ranks on one exchange and one transport.
#include "optimized/cpu/exchange/identity.h"

#include <unistd.h>

#include <bit>
#include <cstdlib>

#include "optimized/cpu/exchange/socket_address.h"

namespace dropless::cpu::exchange {
namespace {

constexpr const char* setting_names[Identity::settings_count] = {
    "ranks",
    "num_experts",
    "top_k",
    "max_tokens",
    "row_bytes",
    "scale_bytes",
    "ragged_buffer_factor",
    "timeout_seconds",
    "overflow_check_every",
    "node_of_rank",
    "placement",
    "the layout of the profile",
    "the flat ids of the profile",
    "the weighting of the profile",
    "the rounding of the profile",
    "the overflow policy of the profile",
    "the alignment of the profile"};

std::int64_t hash(const std::vector<std::int32_t>& values) {
  std::uint64_t sum = 0xCBF29CE484222325;
  for (const std::int32_t v : values) {
    sum = (sum ^ static_cast<std::uint32_t>(v)) * 0x100000001B3;
  }
  return static_cast<std::int64_t>(sum);
}

Wanted wanted_transport() {
  const char* text = std::getenv("DROPLESS_TRANSPORT");
  const std::string wanted = text == nullptr ? "" : text;
  if (wanted.empty()) return Wanted::automatic;
  if (wanted == "threads") return Wanted::threads;
  if (wanted == "sockets") return Wanted::sockets;
  if (wanted == "mpi") return Wanted::mpi;
  return Wanted::unknown;
}

[[noreturn]] void refuse_forced(dropless_status status, const std::string& why) {
  throw Refusal{status, "DROPLESS_TRANSPORT=" + why};
}

// Empty when MPI can serve, else why not.
std::string why_not_mpi(const std::vector<Identity>& all) {
  const int ranks = static_cast<int>(all.size());
  for (int r = 0; r < ranks; ++r) {
    const Identity& id = all[at(r)];
    const std::string name = "rank " + std::to_string(r);
    if (id.mpi_offered == 0) return name + "'s program has no MPI transport";
    if (id.mpi.usable == 0) return "MPI is not initialised, or not for this thread, on " + name;
    if (id.mpi.ranks != ranks || id.mpi.rank != r) {
      return name + " of " + std::to_string(ranks) + " is rank " + std::to_string(id.mpi.rank) +
             " of " + std::to_string(id.mpi.ranks) + " in MPI_COMM_WORLD";
    }
  }
  return {};
}

}  // namespace

Identity make_identity(const Group& g) {
  static const std::uint64_t process = random_number();
  Identity id;
  id.rank = g.rank;
  id.wanted = wanted_transport();
  id.host = host_identity();
  id.process = process;
  id.handle = random_number();
  id.pid = getpid();
  id.mpi_offered = mpi_hook().state != nullptr ? 1 : 0;
  if (id.mpi_offered != 0) id.mpi = mpi_hook().state();
  const Choices& c = g.choices;
  const std::int64_t values[Identity::settings_count] = {
      g.ranks,
      g.experts,
      g.top_k,
      g.max_tokens,
      g.row_bytes,
      g.scale_bytes,
      std::bit_cast<std::int64_t>(g.factor),
      std::bit_cast<std::int64_t>(g.timeout_seconds),
      g.check_every,
      hash(g.node_of_rank),
      hash(g.expert_of_slot) ^ g.slots,
      c.expert_major ? 1 : 0,
      c.ids_in_place ? 1 : 0,
      c.weighted ? 1 : 0,
      c.rounding,
      c.overflow,
      c.alignment};
  std::copy(std::begin(values), std::end(values), id.settings);
  return id;
}

void check_identities(const Group& group, const std::vector<Identity>& all) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].magic != Identity::expected_magic) {
      refuse("all_gather: what it brought from rank " + std::to_string(r) +
             " is not what a rank sends here");
    }
    if (all[r].rank != static_cast<std::int32_t>(r)) {
      refuse("all_gather: brought the bytes of rank " + std::to_string(all[r].rank) +
             " in the place of rank " + std::to_string(r));
    }
  }
  if (all[at(group.rank)].pid != getpid()) refuse("all_gather: two processes are the same rank");
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (std::size_t s = 0; s < Identity::settings_count; ++s) {
      if (all[r].settings[s] == all[0].settings[s]) continue;
      refuse("settings: rank " + std::to_string(r) + " and rank 0 differ in " + setting_names[s]);
    }
  }
}

bool in_one_process(const std::vector<Identity>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Identity& id) {
    return id.host == all[0].host && id.pid == all[0].pid && id.process == all[0].process;
  });
}

Wanted choose_transport(const std::vector<Identity>& all) {
  const Wanted wanted = all[0].wanted;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].wanted == Wanted::unknown) {
      refuse("DROPLESS_TRANSPORT on rank " + std::to_string(r) +
             ": neither threads nor sockets nor mpi");
    }
    if (all[r].wanted != wanted) {
      refuse("DROPLESS_TRANSPORT: rank " + std::to_string(r) + " and rank 0 differ");
    }
  }
  const bool together = in_one_process(all);
  const std::string why_not = why_not_mpi(all);
  switch (wanted) {
    case Wanted::threads:
      if (!together) {
        refuse_forced(DROPLESS_INVALID_ARGUMENT, "threads: the ranks are not in one process");
      }
      return Wanted::threads;
    case Wanted::mpi:
      if (!why_not.empty()) refuse_forced(DROPLESS_NOT_SUPPORTED, "mpi: " + why_not);
      return Wanted::mpi;
    case Wanted::sockets:
      return Wanted::sockets;
    default:
      break;
  }
  if (together) return Wanted::threads;
  return why_not.empty() ? Wanted::mpi : Wanted::sockets;
}

}  // namespace dropless::cpu::exchange
