// SPDX-License-Identifier: Apache-2.0
// What a rank tells the others when a handle is opened, as plain bytes.
#pragma once

#include "optimized/cpu/exchange/group.h"
#include "optimized/cpu/exchange/mpi_hook.h"

namespace dropless::cpu::exchange {

enum class Wanted : std::int32_t { automatic = 0, threads, sockets, mpi, unknown };

struct Identity {
  static constexpr std::size_t settings_count = 17;
  std::uint64_t magic = expected_magic;
  std::int32_t rank = 0;
  Wanted wanted = Wanted::automatic;
  std::uint64_t host = 0;     // of machine and network namespace
  std::uint64_t process = 0;  // random, one per process image: an address space of its own
  std::uint64_t handle = 0;   // random; that of rank 0 names the handle
  std::int64_t pid = 0;
  MpiState mpi;
  std::int32_t mpi_offered = 0;
  std::int64_t settings[settings_count] = {};  // all that ranks must agree on

  static constexpr std::uint64_t expected_magic = 0x3144495052504F52;
};

[[nodiscard]] Identity make_identity(const Group& group);
// Refuses when a rank is not where it says it is, or opened with other settings than rank 0.
void check_identities(const Group& group, const std::vector<Identity>& all);
[[nodiscard]] bool in_one_process(const std::vector<Identity>& all);
// The transport for these ranks, by the rules of connect_ranks. Throws Refusal.
[[nodiscard]] Wanted choose_transport(const std::vector<Identity>& all);

}  // namespace dropless::cpu::exchange
