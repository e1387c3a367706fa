// SPDX-License-Identifier: Apache-2.0
// The thread that serves all connections of a rank. A closed connection is a lost rank.
#include "optimized/cpu/exchange/socket_transport.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <thread>

#include "optimized/cpu/exchange/frame_transport.h"

namespace dropless::cpu::exchange {
namespace {

constexpr Index bytes_per_turn = 8 << 20;  // then the other connections have their turn
constexpr auto patience = std::chrono::seconds(1);

struct Connection {
  Descriptor socket;
  // Coming in; the serving thread's own.
  FrameHeader header;
  std::size_t header_bytes = 0, payload_bytes = 0;
  std::unique_ptr<Frame> frame;
  // Going out; guarded. The first frame stays in place while it is being sent.
  std::vector<std::unique_ptr<Frame>> out;
  std::size_t out_bytes = 0;  // of the first frame, its header included; the serving thread's own
  bool broken = false;        // guarded: nothing comes or goes any more
};

class SocketTransport final : public FrameTransport {
 public:
  SocketTransport(const Tag& own_tag, std::vector<Descriptor> sockets)
      : FrameTransport(own_tag, static_cast<int>(sockets.size())),
        connections_(sockets.size()),
        bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!bell_.valid()) {
      throw Refusal{DROPLESS_INTERNAL_ERROR, "exchange_open: eventfd: " + error_text(errno)};
    }
    for (std::size_t r = 0; r < sockets.size(); ++r) {
      connections_[r].socket = std::move(sockets[r]);
    }
    // Signals are for the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~SocketTransport() override {
    {
      const Lock lock(mutex_);
      stop_ = true;
    }
    ring();
    thread_.join();
  }

  const char* name() const override { return "sockets"; }
  // Everything that was offered is in frames of our own; but a process that ends after a call
  // should not take with it what the call has sent. Late ranks take it all the same, by their own
  // serving threads.
  void settle(const Expected&, Deadline deadline) override {
    Lock lock(mutex_);
    changed_.wait_until(lock, std::min(deadline, Clock::now() + patience), [this] {
      return std::all_of(connections_.begin(), connections_.end(),
                         [](const Connection& c) { return c.out.empty(); });
    });
  }

  void close(Deadline deadline) noexcept override {
    try {
      Lock lock(mutex_);
      post_text(lock, FrameKind::goodbye, {DROPLESS_OK, {}});
      // Who closes a socket before the other side has spoken its last takes away what that one has
      // not read yet.
      changed_.wait_until(lock, deadline, [this] {
        for (int r = 0; r < ranks(); ++r) {
          if (r != rank() && !(is_lost(r) && connection(r).out.empty())) return false;
        }
        return true;
      });
    } catch (...) {  // no memory for a farewell: the end of the connection says it
    }
  }

 protected:
  void post(Lock&, int destination, FramePointer frame) override {
    Connection& to = connection(destination);
    if (!to.socket.valid() || to.broken) return give_back(std::move(frame));
    to.out.push_back(std::move(frame));
    if (to.out.size() == 1) ring();
  }
  bool pump(Lock& lock, Deadline until) override {
    return changed_.wait_until(lock, until) == std::cv_status::no_timeout;
  }

 private:
  Connection& connection(int rank) { return connections_[static_cast<std::size_t>(rank)]; }

  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof one);
  }

  void serve() {
    std::vector<pollfd> entries(connections_.size() + 1);
    for (;;) {
      {
        const Lock lock(mutex_);
        if (stop_) return;
        for (std::size_t r = 0; r < connections_.size(); ++r) {
          const Connection& c = connections_[r];
          const short wanted = c.out.empty() ? POLLIN : POLLIN | POLLOUT;
          entries[r] = {c.broken ? -1 : c.socket.get(), wanted, 0};
        }
      }
      entries.back() = {bell_.get(), POLLIN, 0};
      if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
      if (entries.back().revents != 0) {
        std::uint64_t rings = 0;
        [[maybe_unused]] const ssize_t got = read(bell_.get(), &rings, sizeof rings);
      }
      for (std::size_t r = 0; r < connections_.size(); ++r) serve_one(r, entries[r].revents);
    }
  }

  void serve_one(std::size_t r, short events) {
    Connection& c = connections_[r];
    std::string why;
    try {
      if ((events & POLLOUT) != 0 && !send_some(c, why)) return end(r, why);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive_some(r, why)) end(r, why);
    } catch (const std::bad_alloc&) {
      end(r, "no memory for what it sends");
    }
  }

  void end(std::size_t r, const std::string& why) {
    const Lock lock(mutex_);
    Connection& c = connections_[r];
    c.broken = true;
    c.out.clear();
    lost(static_cast<int>(r), why);
    changed_.notify_all();
  }

  bool send_some(Connection& c, std::string& why) {
    for (;;) {
      Frame* frame = nullptr;
      {
        const Lock lock(mutex_);
        if (c.out.empty()) return true;
        frame = c.out.front().get();
      }
      const std::size_t header = sizeof frame->header;
      const std::size_t payload = static_cast<std::size_t>(frame->header.payload_bytes);
      iovec parts[2] = {};
      const std::size_t done = c.out_bytes > header ? c.out_bytes - header : 0;
      if (c.out_bytes < header) {
        parts[0] = {reinterpret_cast<char*>(&frame->header) + c.out_bytes, header - c.out_bytes};
      }
      parts[1] = {frame->payload.data() + done, payload - done};
      msghdr message = {};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      const ssize_t sent = sendmsg(c.socket.get(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR) return true;
        why = "its connection broke: " + error_text(errno);
        return false;
      }
      c.out_bytes += static_cast<std::size_t>(sent);
      if (c.out_bytes < header + payload) continue;
      const Lock lock(mutex_);
      give_back(std::move(c.out.front()));
      c.out.erase(c.out.begin());
      c.out_bytes = 0;
      if (c.out.empty()) changed_.notify_all();
    }
  }

  bool receive_some(std::size_t r, std::string& why) {
    Connection& c = connections_[r];
    for (Index budget = bytes_per_turn; budget > 0;) {
      const bool in_header = c.header_bytes < sizeof(FrameHeader);
      std::byte* to = in_header ? reinterpret_cast<std::byte*>(&c.header) + c.header_bytes
                                : c.frame->payload.data() + c.payload_bytes;
      const std::size_t size =
          in_header ? sizeof(FrameHeader) - c.header_bytes
                    : static_cast<std::size_t>(c.header.payload_bytes) - c.payload_bytes;
      const ssize_t got = recv(c.socket.get(), to, size, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (got <= 0) {
        why = got == 0 ? "its process closed the connection"
                       : "its connection broke: " + error_text(errno);
        return false;
      }
      budget -= got;
      if (in_header) {
        c.header_bytes += static_cast<std::size_t>(got);
        if (c.header_bytes < sizeof(FrameHeader)) continue;
        if (!is_sound(c.header) || c.header.source != static_cast<std::int32_t>(r) ||
            c.header.handle != own().handle) {
          why = "its connection carries foreign bytes";
          return false;
        }
        {
          const Lock lock(mutex_);
          c.frame = take_frame();
        }
        c.frame->payload.reserve(c.header.payload_bytes);
        c.payload_bytes = 0;
      } else {
        c.payload_bytes += static_cast<std::size_t>(got);
      }
      if (c.payload_bytes < static_cast<std::size_t>(c.header.payload_bytes)) continue;
      c.frame->header = c.header;
      c.header_bytes = 0;
      const Lock lock(mutex_);
      arrived(static_cast<int>(r), std::move(c.frame));
      changed_.notify_all();
    }
    return true;
  }

  std::vector<Connection> connections_;
  Descriptor bell_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(const Tag& own,
                                                 std::vector<Descriptor> connections) {
  return std::make_unique<SocketTransport>(own, std::move(connections));
}

}  // namespace dropless::cpu::exchange
