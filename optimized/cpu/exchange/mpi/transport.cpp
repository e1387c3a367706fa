// SPDX-License-Identifier: Apache-2.0
// Frames over MPI: nonblocking messages on a communicator of their own, always with a deadline. MPI
// is called by the thread that makes the exchange calls and by no other.
#include <mpi.h>

#include <thread>

#include "optimized/cpu/exchange/frame_transport.h"
#include "optimized/cpu/exchange/mpi/offer.h"
#include "optimized/cpu/exchange/mpi_hook.h"

namespace dropless::cpu::exchange {
namespace {

constexpr int header_tag = 1, payload_tag = 2;
constexpr Index most_in_a_message = Index{1} << 30;
constexpr auto nap = std::chrono::microseconds(50);
constexpr auto longest_nap = std::chrono::microseconds(500);
// How long a call waits for what it has sent to leave, when a receiver is late (EXCHANGE-12).
constexpr auto grace = std::chrono::milliseconds(20);

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  throw Refusal{DROPLESS_PEER_LOST, std::string("MPI: ") + what + " failed"};
}

bool is_done(MPI_Request& request) {
  int done = 0;
  check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "a message");
  return done != 0;
}

// All pieces of a payload at once: each takes an int for its length.
template <class Start>
void start_pieces(const Frame& frame, std::vector<MPI_Request>& requests, const Start& start) {
  for (Index begin = 0; begin < frame.header.payload_bytes; begin += most_in_a_message) {
    const Index size = std::min(most_in_a_message, frame.header.payload_bytes - begin);
    requests.push_back(MPI_REQUEST_NULL);
    start(frame.payload.data() + begin, static_cast<int>(size), &requests.back());
  }
}

class MpiTransport final : public FrameTransport {
 public:
  MpiTransport(const Tag& own_tag, int ranks_of_group, MPI_Comm communicator)
      : FrameTransport(own_tag, ranks_of_group),
        communicator_(communicator),
        incoming_(static_cast<std::size_t>(ranks_of_group)) {
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    for (int r = 0; r < ranks(); ++r) {
      if (r != rank()) listen(r);
    }
  }
  // After a failure MPI may still write into what it was given, and the others may never come to
  // free the communicator: then both live as long as the process.
  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0 || !orderly_) {
      static std::vector<std::vector<Incoming>> kept_incoming;
      static std::vector<std::vector<Outgoing>> kept_outgoing;
      kept_incoming.push_back(std::move(incoming_));
      kept_outgoing.push_back(std::move(outgoing_));
      return;
    }
    MPI_Comm_free(&communicator_);
  }

  const char* name() const override { return "mpi"; }

  void settle(const Expected&, Deadline deadline) override {
    Lock lock(mutex_);
    const Deadline until = std::min(deadline, Clock::now() + grace);
    while (!outgoing_.empty() && pump(lock, until)) continue;
  }

  void close(Deadline deadline) noexcept override {
    try {
      Lock lock(mutex_);
      post_text(lock, FrameKind::goodbye, {DROPLESS_OK, {}});
      while (!parted() && pump(lock, deadline)) continue;
      orderly_ = parted();
    } catch (...) {  // the others will see no more messages
    }
  }

 protected:
  void post(Lock&, int destination, FramePointer frame) override {
    outgoing_.push_back({std::move(frame), {MPI_REQUEST_NULL}});
    Outgoing& out = outgoing_.back();
    check(MPI_Isend(&out.frame->header, static_cast<int>(sizeof(FrameHeader)), MPI_BYTE,
                    destination, header_tag, communicator_, &out.requests[0]),
          "a send");
    start_pieces(*out.frame, out.requests, [&](void* data, int size, MPI_Request* request) {
      check(MPI_Isend(data, size, MPI_BYTE, destination, payload_tag, communicator_, request),
            "a send");
    });
  }

  // Drives all messages once; sleeps only when nothing has moved, a little longer each time.
  bool pump(Lock&, Deadline until) override {
    bool moved = false;
    for (int r = 0; r < ranks(); ++r) moved = (r != rank() && receive(r)) || moved;
    std::erase_if(outgoing_, [&](Outgoing& out) {
      for (MPI_Request& request : out.requests) {
        if (!is_done(request)) return false;
      }
      give_back(std::move(out.frame));
      return moved = true;
    });
    if (moved) {
      nap_ = nap;
      return true;
    }
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(nap_);
    nap_ = std::min<Clock::duration>(2 * nap_, longest_nap);
    return true;
  }

 private:
  struct Outgoing {
    FramePointer frame;
    std::vector<MPI_Request> requests;
  };
  struct Incoming {
    FrameHeader header;
    MPI_Request header_request = MPI_REQUEST_NULL;
    FramePointer frame;
    std::vector<MPI_Request> pieces;
  };
  Incoming& incoming(int rank) { return incoming_[static_cast<std::size_t>(rank)]; }

  bool parted() const {
    if (!outgoing_.empty()) return false;
    for (int r = 0; r < ranks(); ++r) {
      if (r != rank() && !is_lost(r)) return false;
    }
    return true;
  }

  void listen(int source) {
    Incoming& in = incoming(source);
    check(MPI_Irecv(&in.header, static_cast<int>(sizeof(FrameHeader)), MPI_BYTE, source, header_tag,
                    communicator_, &in.header_request),
          "a receive");
  }

  bool receive(int source) {
    Incoming& in = incoming(source);
    if (in.frame == nullptr) {
      if (in.header_request == MPI_REQUEST_NULL || !is_done(in.header_request)) return false;
      if (!is_sound(in.header)) {
        lost(source, "its messages are foreign bytes");
        return true;
      }
      in.frame = take_frame();
      in.frame->header = in.header;
      in.frame->payload.reserve(in.header.payload_bytes);
      start_pieces(*in.frame, in.pieces, [&](void* data, int size, MPI_Request* request) {
        check(MPI_Irecv(data, size, MPI_BYTE, source, payload_tag, communicator_, request),
              "a receive");
      });
    }
    for (MPI_Request& request : in.pieces) {
      if (request != MPI_REQUEST_NULL && !is_done(request)) return false;
    }
    in.pieces.clear();
    const bool last = in.header.kind == FrameKind::goodbye;
    arrived(source, std::move(in.frame));
    if (!last) listen(source);
    return true;
  }

  MPI_Comm communicator_;
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;
  Clock::duration nap_ = nap;
  bool orderly_ = false;
};

MpiState state() {
  MpiState result;
  int initialized = 0, finalized = 0, main_thread = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return result;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&main_thread);
  if (level < MPI_THREAD_SERIALIZED && main_thread == 0) return result;
  result.usable = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &result.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &result.ranks);
  return result;
}

std::unique_ptr<Transport> open(const Tag& own, double timeout_seconds) {
  const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double>(timeout_seconds));
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &communicator, &request), "duplicating the communicator");
  while (!is_done(request)) {
    if (Clock::now() >= deadline) {
      throw Refusal{DROPLESS_TIMEOUT, "exchange_open: the communicator was not duplicated in time"};
    }
    std::this_thread::sleep_for(nap);
  }
  int ranks = 0;
  MPI_Comm_size(communicator, &ranks);
  return std::make_unique<MpiTransport>(own, ranks, communicator);
}

}  // namespace
}  // namespace dropless::cpu::exchange

namespace dropless::cpu {

void offer_mpi_transport() {
  exchange::set_mpi_hook({exchange::state, exchange::open});
}

}  // namespace dropless::cpu
