// SPDX-License-Identifier: Apache-2.0
// Where a rank listens, as the others learn it through the all-gather, and connecting to it.
#pragma once

#include <utility>

#include "optimized/cpu/exchange/transport.h"

namespace dropless::cpu::exchange {

// A file descriptor that closes itself; never inherited by other programs.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor();
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool valid() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// Plain bytes: it travels through the all-gather.
struct SocketAddress {
  static constexpr int most_addresses = 8;
  std::uint64_t host = 0;      // ranks with the same value reach each other by local sockets
  std::uint64_t key[2] = {};   // who knows it belongs to the group
  std::uint32_t port = 0;      // TCP
  std::int32_t addresses = 0;  // of `ip`
  std::uint8_t ip[most_addresses][16] = {};  // IPv6, or IPv4 mapped into it
  std::int32_t local = 0;                    // 1: listens on a local socket as well
  std::int32_t reserved = 0;
};

// Ranks share it when they run on one machine, in one network namespace.
[[nodiscard]] std::uint64_t host_identity();
[[nodiscard]] std::uint64_t random_number();

// A rank's open ears: a local socket, and TCP on a port that the system chooses.
struct Listener {
  SocketAddress address;
  Descriptor local, tcp;
};

// DROPLESS_SOCKET_ADDRESS in the environment (an IP address of this machine) makes the rank listen
// on TCP alone and be reached there. Throws Refusal.
[[nodiscard]] Listener listen_for_ranks();

// A connected, non-blocking socket, or an invalid one with `why` set.
[[nodiscard]] Descriptor connect_to(const SocketAddress& address, std::uint64_t own_host,
                                    Deadline deadline, std::string& why);

// Waits for poll events; false when the time is over.
[[nodiscard]] bool wait_for(int descriptor, short events, Deadline deadline);
[[nodiscard]] int milliseconds_until(Deadline deadline);
[[nodiscard]] std::string error_text(int code);

}  // namespace dropless::cpu::exchange
