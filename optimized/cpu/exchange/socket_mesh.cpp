// SPDX-License-Identifier: Apache-2.0
// The mesh at the opening of an exchange.
#include "optimized/cpu/exchange/socket_mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>

namespace dropless::cpu::exchange {
namespace {

struct Hello {
  std::uint64_t magic = 0x4F4C4C4548504F52;
  std::uint64_t key[2] = {};
  std::int32_t rank = 0, reserved = 0;
};

// A connection that has not said (all of) its hello yet.
struct Visitor {
  Descriptor descriptor;
  Hello hello;
  std::size_t bytes = 0;
};

bool send_all(int descriptor, const void* data, std::size_t bytes, Deadline deadline) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(descriptor, from, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      from += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(descriptor, POLLOUT, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

class Mesh {
 public:
  Mesh(const Listener& own, int rank, const std::vector<SocketAddress>& addresses, double seconds)
      : own_(own),
        rank_(rank),
        addresses_(addresses),
        seconds_(seconds),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(seconds))),
        connections_(addresses.size()) {}

  std::vector<Descriptor> connect_all() {
    for (int r = 0; r < rank_; ++r) connect_lower(r);
    for (missing_ = static_cast<int>(addresses_.size()) - 1 - rank_; missing_ > 0;) accept_some();
    return std::move(connections_);
  }

 private:
  Descriptor& connection(int rank) { return connections_[static_cast<std::size_t>(rank)]; }

  void connect_lower(int r) {
    const SocketAddress& to = addresses_[static_cast<std::size_t>(r)];
    std::string why;
    connection(r) = connect_to(to, own_.address.host, deadline_, why);
    Hello hello;
    hello.key[0] = to.key[0], hello.key[1] = to.key[1];
    hello.rank = rank_;
    if (connection(r).valid() && send_all(connection(r).get(), &hello, sizeof hello, deadline_)) {
      return;
    }
    throw Refusal{Clock::now() >= deadline_ ? DROPLESS_TIMEOUT : DROPLESS_PEER_LOST,
                  "exchange_open: no connection to rank " + std::to_string(r) + " within " +
                      seconds_text(seconds_) + (why.empty() ? "" : ": " + why)};
  }

  void accept_some() {
    std::vector<pollfd> entries = {{own_.local.get(), POLLIN, 0}, {own_.tcp.get(), POLLIN, 0}};
    for (const Visitor& v : visitors_) entries.push_back({v.descriptor.get(), POLLIN, 0});
    const int ready = poll(entries.data(), entries.size(), milliseconds_until(deadline_));
    if (ready == 0) throw_missing();
    if (ready < 0 && errno != EINTR) throw_missing();
    const std::size_t known = visitors_.size();
    for (std::size_t i = 0; i < known; ++i) {
      if (entries[i + 2].revents != 0) hear(visitors_[i]);
    }
    std::erase_if(visitors_, [](const Visitor& v) { return !v.descriptor.valid(); });
    for (std::size_t i = 0; i < 2; ++i) {
      if (entries[i].revents == 0) continue;
      Descriptor visitor(accept4(entries[i].fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!visitor.valid()) continue;
      const int on = 1;
      if (i == 1) setsockopt(visitor.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      visitors_.push_back({std::move(visitor), Hello{}, 0});
    }
  }

  void hear(Visitor& v) {
    char* to = reinterpret_cast<char*>(&v.hello) + v.bytes;
    const ssize_t got = recv(v.descriptor.get(), to, sizeof(Hello) - v.bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) v.bytes += static_cast<std::size_t>(got);
    if (got > 0 && v.bytes < sizeof(Hello)) return;
    Descriptor descriptor = std::move(v.descriptor);  // closed below unless it is a rank
    const Hello& h = v.hello;
    const bool ours = got > 0 && h.magic == Hello{}.magic && h.key[0] == own_.address.key[0] &&
                      h.key[1] == own_.address.key[1] && h.rank > rank_ &&
                      h.rank < static_cast<int>(addresses_.size());
    if (!ours || connection(h.rank).valid()) return;
    connection(h.rank) = std::move(descriptor);
    --missing_;
  }

  [[noreturn]] void throw_missing() {
    int r = rank_ + 1;
    while (connection(r).valid()) ++r;
    throw Refusal{DROPLESS_TIMEOUT, "exchange_open: rank " + std::to_string(r) +
                                        " did not connect within " + seconds_text(seconds_)};
  }

  const Listener& own_;
  int rank_;
  const std::vector<SocketAddress>& addresses_;
  double seconds_;
  Deadline deadline_;
  std::vector<Descriptor> connections_;
  std::vector<Visitor> visitors_;
  int missing_ = 0;
};

}  // namespace

std::vector<Descriptor> connect_mesh(const Listener& own, int rank,
                                     const std::vector<SocketAddress>& addresses,
                                     double timeout_seconds) {
  return Mesh(own, rank, addresses, timeout_seconds).connect_all();
}

}  // namespace dropless::cpu::exchange
