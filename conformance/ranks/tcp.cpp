// SPDX-License-Identifier: Apache-2.0
// Listening and connecting.
#include "conformance/ranks/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "conformance/cases/case_id.h"

namespace dropless::conformance {
namespace {

constexpr int connect_milliseconds = 2000;

void say_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);  // a machine may vanish silently
}

// Nobody listens at a port that TCP itself has just chosen for us: the socket met itself.
bool met_itself(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t size = sizeof here, size_there = sizeof there;
  getsockname(socket, reinterpret_cast<sockaddr*>(&here), &size);
  getpeername(socket, reinterpret_cast<sockaddr*>(&there), &size_there);
  return size == size_there && std::memcmp(&here, &there, size) == 0;
}

// The connected socket, or -1 with errno.
int connected(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  int error = 0;
  if (connect(socket, address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      pollfd ready{socket, POLLOUT, 0};
      socklen_t size = sizeof error;
      if (poll(&ready, 1, connect_milliseconds) != 1) {
        error = ETIMEDOUT;
      } else {
        getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
  }
  if (error == 0 && met_itself(socket)) error = ECONNREFUSED;
  if (error == 0) return socket;
  close(socket);
  errno = error;
  return -1;
}

}  // namespace

Listener::Listener(int port) {
  descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  // Connections of an earlier run that linger do not keep the port; a listener does.
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (descriptor_ < 0 || bind(descriptor_, generic, sizeof address) != 0 ||
      listen(descriptor_, SOMAXCONN) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw UsageError(
        error == EADDRINUSE
            ? fmt::format("port {} is in use on {}; set MASTER_PORT to a free one on every rank",
                          port, own_host_name())
            : fmt::format("cannot listen at port {} of {}: {}; set MASTER_PORT to another one",
                          port, own_host_name(), std::strerror(error)));
  }
  socklen_t size = sizeof address;
  getsockname(descriptor_, generic, &size);
  port_ = ntohs(address.sin_port);
}

Listener::~Listener() {
  close(descriptor_);
}

std::unique_ptr<Link> Listener::accept() {
  const int socket = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return nullptr;
  say_at_once(socket);
  return std::make_unique<Link>(socket, socket);
}

std::unique_ptr<Link> try_to_connect(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    why = fmt::format("{}: {}", host, gai_strerror(failed));
    return nullptr;
  }
  int socket = -1;
  for (const addrinfo* one = found; one != nullptr && socket < 0; one = one->ai_next) {
    socket = connected(*one);
    if (socket < 0) why = fmt::format("{}:{}: {}", host, port, std::strerror(errno));
  }
  freeaddrinfo(found);
  if (socket < 0) return nullptr;
  say_at_once(socket);
  return std::make_unique<Link>(socket, socket);
}

std::string own_host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
      if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
      char text[INET_ADDRSTRLEN] = {};
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof text) != nullptr) {
        addresses.emplace_back(text);
      }
    }
    freeifaddrs(all);
  }
  addresses.push_back(own_host_name());
  return addresses;
}

}  // namespace dropless::conformance
