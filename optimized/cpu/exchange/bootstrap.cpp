// SPDX-License-Identifier: Apache-2.0
// A few all-gathers: who we are, where we listen, and whether everybody is connected.
#include "optimized/cpu/exchange/bootstrap.h"

#include <cstring>

#include "optimized/cpu/exchange/identity.h"
#include "optimized/cpu/exchange/links.h"
#include "optimized/cpu/exchange/mpi_hook.h"
#include "optimized/cpu/exchange/socket_mesh.h"
#include "optimized/cpu/exchange/socket_transport.h"
#include "optimized/cpu/exchange/thread_hub.h"

namespace dropless::cpu::exchange {
namespace {

MpiHook& hook() {
  static MpiHook offered;
  return offered;
}

template <class T>
std::vector<T> gather(const Group& group, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(at(group.ranks));
  const std::int32_t code = group.all_gather(group.all_gather_context, &own, all.data(), sizeof(T));
  if (code != 0) {
    throw Refusal{DROPLESS_PEER_LOST, "exchange_open: the all-gather of the caller failed with " +
                                          std::to_string(code)};
  }
  return all;
}

// How far a rank came; everybody hears of the first that did not.
struct Outcome {
  std::int32_t status = DROPLESS_OK, reserved = 0;
  char message[248] = {};
};

template <class Body>
Outcome attempt(const Body& body) {
  Outcome outcome;
  std::string message;
  try {
    body();
  } catch (const Refusal& refusal) {
    outcome.status = refusal.status, message = refusal.message;
  } catch (const std::exception& error) {
    outcome.status = DROPLESS_INTERNAL_ERROR, message = error.what();
  }
  std::memcpy(outcome.message, message.data(),
              std::min(message.size(), sizeof outcome.message - 1));
  return outcome;
}

void agree(const Group& group, const Outcome& own) {
  const std::vector<std::int32_t> statuses = gather(group, own.status);
  const auto is_ok = [](std::int32_t status) { return status == DROPLESS_OK; };
  if (std::all_of(statuses.begin(), statuses.end(), is_ok)) return;
  const std::vector<Outcome> all = gather(group, own);  // why: seldom, and long
  if (own.status != DROPLESS_OK) throw Refusal{own.status, own.message};
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].status == DROPLESS_OK) continue;
    throw Refusal{all[r].status, "rank " + std::to_string(r) + ": " + all[r].message};
  }
}

void connect_sockets(const Group& group, const Tag& own, std::unique_ptr<Transport>& transport) {
  Listener listener;
  agree(group, attempt([&] { listener = listen_for_ranks(); }));
  const std::vector<SocketAddress> addresses = gather(group, listener.address);
  agree(group, attempt([&] {
          transport = make_socket_transport(
              own, connect_mesh(listener, group.rank, addresses, group.timeout_seconds));
        }));
}

}  // namespace

void set_mpi_hook(const MpiHook& offered) {
  hook() = offered;
}
const MpiHook& mpi_hook() {
  return hook();
}

Connected connect_ranks(const Group& group) {
  Connected result;
  if (group.ranks == 1) return result;
  refuse_if(group.all_gather == nullptr, "all_gather: null pointer");
  const std::vector<Identity> all = gather(group, make_identity(group));
  check_identities(group, all);
  const Wanted chosen = choose_transport(all);
  result.handle = all[0].handle;
  const std::uint64_t host = all[at(group.rank)].host;
  result.ranks_here = static_cast<int>(std::count_if(
      all.begin(), all.end(), [host](const Identity& id) { return id.host == host; }));
  Tag own;
  own.handle = result.handle;
  own.source = group.rank;
  switch (chosen) {
    case Wanted::threads:
      agree(group, attempt([&] {
              result.transport =
                  make_thread_transport(join_hub(result.handle, group.ranks), group.rank);
            }));
      break;
    case Wanted::mpi:
      agree(group,
            attempt([&] { result.transport = mpi_hook().open(own, group.timeout_seconds); }));
      break;
    default:
      connect_sockets(group, own, result.transport);
  }
  return result;
}

}  // namespace dropless::cpu::exchange
