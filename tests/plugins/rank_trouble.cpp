// SPDX-License-Identifier: Apache-2.0
// An exchange that moves nothing: every call waits for one message of every other rank. One rank
// (2, or the last one) misbehaves as max_tokens says, see conformance/ranks/drill.cpp. Nobody ever
// stops waiting, unless DROPLESS_TEST_PATIENCE gives a number of seconds.
#include <dropless/contract.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// The contract leaves this type to its implementation.
struct dropless_exchange {
  int rank = 0, ranks = 1, socket = -1, calls = 0;
  std::string trouble;
  unsigned long long key = 0;
  std::vector<std::vector<int>> heard;  // by call: ranks
};

namespace {

const char* const troubles[] = {"none",   "skips", "dies",      "loops", "wrong_peer",
                                "throws", "exits", "dies_once", "slow",  "fails"};

struct Message {
  int from, call;
};

sockaddr_un address_of(const dropless_exchange& exchange, int rank, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name: no file remains.
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                   "dropless-drill-%llx-%d", exchange.key, rank);
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
  return address;
}

dropless_status say(dropless_call* call, dropless_status status, const std::string& text) {
  std::snprintf(call->message, sizeof call->message, "%s", text.c_str());
  return status;
}

dropless_status fine(dropless_call* call) {
  std::snprintf(call->path, sizeof call->path, "drill");
  return DROPLESS_OK;
}

bool is_the_one(const dropless_exchange& exchange) {
  return exchange.rank == std::min(2, exchange.ranks - 1);
}

bool heard_from(const dropless_exchange& exchange, int call, int rank) {
  const auto& ranks = exchange.heard[static_cast<std::size_t>(call)];
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// False after the patience has run out.
bool receive(dropless_exchange& exchange) {
  const char* patience = std::getenv("DROPLESS_TEST_PATIENCE");
  pollfd ready{exchange.socket, POLLIN, 0};
  const int limit = patience == nullptr ? -1 : static_cast<int>(1000 * std::atof(patience));
  if (poll(&ready, 1, limit) == 0) return false;
  Message message{};
  if (recv(exchange.socket, &message, sizeof message, 0) == sizeof message) {
    exchange.heard[static_cast<std::size_t>(message.call)].push_back(message.from);
  }
  return true;
}

dropless_status meet(dropless_call* call, dropless_exchange& exchange, bool wrong_peer = false) {
  const Message own{exchange.rank, exchange.calls++};
  for (int rank = 0; rank < exchange.ranks; ++rank) {
    if (rank == exchange.rank) continue;
    socklen_t size = 0;
    const sockaddr_un address = address_of(exchange, rank, size);
    sendto(exchange.socket, &own, sizeof own, 0, reinterpret_cast<const sockaddr*>(&address), size);
  }
  for (int rank = 0; rank < exchange.ranks; ++rank) {
    const int peer = wrong_peer && rank != exchange.rank ? exchange.rank : rank;
    if (peer == exchange.rank && !wrong_peer) continue;
    while (!heard_from(exchange, own.call, peer)) {
      if (receive(exchange)) continue;
      return say(call, DROPLESS_PEER_LOST, "rank " + std::to_string(peer) + " has sent nothing");
    }
  }
  return fine(call);
}

dropless_status open(void*, dropless_call* call, dropless_exchange_open_args* args) {
  static std::atomic<unsigned> handles = 0;
  const dropless_exchange_settings& settings = *args->settings;
  auto* exchange = new dropless_exchange;
  exchange->rank = settings.rank, exchange->ranks = settings.ranks;
  exchange->trouble = troubles[settings.max_tokens - 1000];
  exchange->heard.resize(16);
  const unsigned long long mine =
      (static_cast<unsigned long long>(getpid()) << 32) + handles.fetch_add(1);
  std::vector<unsigned long long> keys(static_cast<std::size_t>(settings.ranks));
  if (settings.all_gather(settings.all_gather_context, &mine, keys.data(), sizeof mine) != 0) {
    return say(call, DROPLESS_PEER_LOST, "a rank did not come to open");
  }
  exchange->key = keys[0];
  exchange->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t size = 0;
  const sockaddr_un address = address_of(*exchange, exchange->rank, size);
  if (bind(exchange->socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return say(call, DROPLESS_INTERNAL_ERROR, "bind failed");
  }
  if (settings.all_gather(settings.all_gather_context, &mine, keys.data(), sizeof mine) != 0) {
    return say(call, DROPLESS_PEER_LOST, "a rank did not come to open");
  }
  args->exchange = exchange;
  return fine(call);
}

dropless_status close(void*, dropless_call* call, dropless_exchange_close_args* args) {
  ::close(args->exchange->socket);
  delete args->exchange;
  return fine(call);
}

dropless_status plan(void*, dropless_call* call, dropless_exchange_plan_args* args) {
  dropless_exchange& exchange = *args->exchange;
  if (exchange.trouble == "slow") usleep(500000);
  if (is_the_one(exchange) && exchange.trouble == "loops") {
    for (volatile int forever = 1; forever == 1;) {
    }
  }
  return meet(call, exchange);
}

dropless_status dispatch(void*, dropless_call* call, dropless_exchange_dispatch_args* args) {
  dropless_exchange& exchange = *args->exchange;
  if (is_the_one(exchange)) {
    if (exchange.trouble == "throws") throw std::runtime_error("out of luck");
    if (exchange.trouble == "fails") return say(call, DROPLESS_INTERNAL_ERROR, "out of order");
    if (exchange.trouble == "skips") {
      ++exchange.calls;
      return fine(call);
    }
  }
  return meet(call, exchange);
}

dropless_status combine(void*, dropless_call* call, dropless_exchange_combine_args* args) {
  dropless_exchange& exchange = *args->exchange;
  const bool here = is_the_one(exchange);
  if (here && exchange.trouble == "dies") raise(SIGKILL);
  if (here && exchange.trouble == "exits") std::exit(5);
  if (here && exchange.trouble == "dies_once") {
    // Where the file named by the environment does not exist yet, and makes it.
    const char* marker = std::getenv("DROPLESS_TEST_MARKER");
    if (marker != nullptr && ::open(marker, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) raise(SIGKILL);
  }
  return meet(call, exchange, here && exchange.trouble == "wrong_peer");
}

}  // namespace

extern "C" DROPLESS_EXPORT const dropless_implementation* dropless_get_implementation(
    std::uint32_t) {
  static dropless_profile profile{};
  static dropless_implementation table{};
  profile.struct_size = sizeof profile;
  profile.struct_version = DROPLESS_STRUCT_VERSION;
  table.struct_size = sizeof table;
  table.contract_version = DROPLESS_CONTRACT_VERSION;
  table.name = "rank trouble";
  table.profile = &profile;
  table.exchange_open = open;
  table.exchange_plan = plan;
  table.exchange_dispatch = dispatch;
  table.exchange_combine = combine;
  table.exchange_close = close;
  return &table;
}
