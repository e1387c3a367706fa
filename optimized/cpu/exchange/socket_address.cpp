// SPDX-License-Identifier: Apache-2.0
// Listening and connecting. Local sockets have abstract names: no file is left behind by anybody.
#include "optimized/cpu/exchange/socket_address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <system_error>
#include <thread>

namespace dropless::cpu::exchange {
namespace {

constexpr int backlog = 4096;

Descriptor make_socket(int family) {
  return Descriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string local_name(const SocketAddress& address) {
  char name[64];
  std::snprintf(name, sizeof name, "dropless-%016llx%016llx",
                static_cast<unsigned long long>(address.key[0]),
                static_cast<unsigned long long>(address.key[1]));
  return name;
}

socklen_t fill_local(const SocketAddress& address, sockaddr_un& to) {
  std::memset(&to, 0, sizeof to);
  to.sun_family = AF_UNIX;
  const std::string name = local_name(address);
  std::memcpy(to.sun_path + 1, name.data(), name.size());  // the leading zero: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void add_v4(SocketAddress& address, const in_addr& from) {
  if (address.addresses == SocketAddress::most_addresses) return;
  std::uint8_t* ip = address.ip[address.addresses++];
  std::memset(ip, 0, 10);
  ip[10] = ip[11] = 0xFF;
  std::memcpy(ip + 12, &from, 4);
}

void add_v6(SocketAddress& address, const in6_addr& from) {
  if (address.addresses == SocketAddress::most_addresses || IN6_IS_ADDR_LINKLOCAL(&from)) return;
  std::memcpy(address.ip[address.addresses++], &from, 16);
}

void add_ip(SocketAddress& address, const sockaddr* from) {
  if (from->sa_family == AF_INET) {
    add_v4(address, reinterpret_cast<const sockaddr_in*>(from)->sin_addr);
  } else if (from->sa_family == AF_INET6) {
    add_v6(address, reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr);
  }
}

// Every address of an interface that is up, IPv4 first; the loopback only when there is no other.
void add_interfaces(SocketAddress& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
        if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
        if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
        add_ip(address, each->ifa_addr);
      }
    }
    freeifaddrs(list);
  }
  if (address.addresses == 0) add_v4(address, {htonl(INADDR_LOOPBACK)});
}

void add_given(SocketAddress& address, const char* text) {
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, text, &v4) == 1) {
    add_v4(address, v4);
  } else if (inet_pton(AF_INET6, text, &v6) == 1) {
    add_v6(address, v6);
  } else {
    refuse(std::string("DROPLESS_SOCKET_ADDRESS: \"") + text + "\" is not an IP address");
  }
}

bool is_mapped(const std::uint8_t* ip) {
  static constexpr std::uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(ip, prefix, sizeof prefix) == 0;
}

// On all addresses, IPv6 and IPv4; where there is no IPv6, IPv4 alone.
Descriptor listen_tcp(std::uint32_t& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor listener = make_socket(family);
    if (!listener.valid()) continue;
    sockaddr_storage any_address = {};
    any_address.ss_family = static_cast<sa_family_t>(family);
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const int off = 0;
    if (family == AF_INET6) {
      setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    auto* raw = reinterpret_cast<sockaddr*>(&any_address);
    if (bind(listener.get(), raw, length) != 0 || listen(listener.get(), backlog) != 0 ||
        getsockname(listener.get(), raw, &length) != 0) {
      continue;
    }
    port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(raw)->sin6_port
                                    : reinterpret_cast<sockaddr_in*>(raw)->sin_port);
    return listener;
  }
  return Descriptor();
}

bool finish_connect(int descriptor, const sockaddr* to, socklen_t length, Deadline deadline,
                    std::string& why) {
  if (connect(descriptor, to, length) == 0) return true;
  if (errno != EINPROGRESS && errno != EAGAIN) {
    why = error_text(errno);
    return false;
  }
  if (!wait_for(descriptor, POLLOUT, deadline)) {
    why = "no answer";
    return false;
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) why = error_text(error);
  return error == 0;
}

Descriptor connect_ip(const std::uint8_t* ip, std::uint32_t port, Deadline deadline,
                      std::string& why) {
  const bool v4 = is_mapped(ip);
  Descriptor result = make_socket(v4 ? AF_INET : AF_INET6);
  sockaddr_in to4 = {};
  sockaddr_in6 to6 = {};
  to4.sin_family = AF_INET, to6.sin6_family = AF_INET6;
  to4.sin_port = to6.sin6_port = htons(static_cast<std::uint16_t>(port));
  std::memcpy(&to4.sin_addr, ip + 12, 4);
  std::memcpy(&to6.sin6_addr, ip, 16);
  const auto* to =
      v4 ? reinterpret_cast<const sockaddr*>(&to4) : reinterpret_cast<const sockaddr*>(&to6);
  const socklen_t length = v4 ? sizeof to4 : sizeof to6;
  if (!result.valid() || !finish_connect(result.get(), to, length, deadline, why)) {
    return Descriptor();
  }
  return result;
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string error_text(int code) {
  return std::generic_category().message(code);
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

bool wait_for(int descriptor, short events, Deadline deadline) {
  for (;;) {
    pollfd entry = {descriptor, events, 0};
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::uint64_t random_number() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

std::uint64_t host_identity() {
  std::string text(256, '\0');
  gethostname(text.data(), text.size() - 1);
  text.resize(std::strlen(text.c_str()));
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[128] = {};
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) network[0] = '\0';
  text += "/" + boot + "/" + network;
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

Listener listen_for_ranks() {
  Listener listener;
  SocketAddress& address = listener.address;
  address.host = host_identity();
  address.key[0] = random_number(), address.key[1] = random_number();
  const char* given = std::getenv("DROPLESS_SOCKET_ADDRESS");
  if (given != nullptr && *given != '\0') {
    add_given(address, given);
  } else {
    add_interfaces(address);
    sockaddr_un local;
    const socklen_t length = fill_local(address, local);
    listener.local = make_socket(AF_UNIX);
    address.local = listener.local.valid() &&
                    bind(listener.local.get(), reinterpret_cast<sockaddr*>(&local), length) == 0 &&
                    ::listen(listener.local.get(), backlog) == 0;
  }
  listener.tcp = listen_tcp(address.port);
  if (!listener.tcp.valid() && address.local == 0) {
    throw Refusal{DROPLESS_INTERNAL_ERROR,
                  "exchange_open: no socket to listen on: " + error_text(errno)};
  }
  return listener;
}

Descriptor connect_to(const SocketAddress& address, std::uint64_t own_host, Deadline deadline,
                      std::string& why) {
  if (address.local != 0 && address.host == own_host) {
    Descriptor result = make_socket(AF_UNIX);
    sockaddr_un to;
    const socklen_t length = fill_local(address, to);
    // A full backlog answers EAGAIN at once.
    while (connect(result.get(), reinterpret_cast<sockaddr*>(&to), length) != 0) {
      if (errno != EAGAIN || Clock::now() >= deadline) {
        why = error_text(errno);
        return Descriptor();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return result;
  }
  why = "no address";
  for (std::int32_t i = 0; i < address.addresses; ++i) {  // a fair share of the time for each
    const auto share = (deadline - Clock::now()) / (address.addresses - i);
    Descriptor result = connect_ip(address.ip[i], address.port, Clock::now() + share, why);
    if (!result.valid()) continue;
    const int on = 1;
    setsockopt(result.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return result;
  }
  return Descriptor();
}

}  // namespace dropless::cpu::exchange
