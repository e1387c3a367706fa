// SPDX-License-Identifier: Apache-2.0
// Queues of frames: what was offered goes out in copies, what came in waits for its round.
#include "optimized/cpu/exchange/frame_transport.h"

namespace dropless::cpu::exchange {

FrameTransport::FramePointer FrameTransport::take_frame() {
  if (unused_.empty()) return std::make_unique<Frame>();
  FramePointer frame = std::move(unused_.back());
  unused_.pop_back();
  return frame;
}

void FrameTransport::give_back(FramePointer frame) {
  unused_.push_back(std::move(frame));
}

void FrameTransport::offer(int destination, const Parcel& parcel) {
  Lock lock(mutex_);
  FramePointer frame = take_frame();
  lock.unlock();
  make_frame(parcel, *frame);
  lock.lock();
  post(lock, destination, std::move(frame));
}

void FrameTransport::arrived(int source, FramePointer frame) {
  switch (frame->header.kind) {
    case FrameKind::rows:
      sources_[index(source)].queue.push_back(std::move(frame));
      return;
    case FrameKind::goodbye:
      lost(source, "it has closed the exchange");
      break;
    case FrameKind::gave_up:
      if (!failed_) {
        failed_ = true;
        failure_ = {static_cast<dropless_status>(frame->header.status),
                    gave_up_text(source, frame_text(*frame))};
      }
      break;
  }
  give_back(std::move(frame));
}

void FrameTransport::lost(int source, std::string why) {
  std::string& reason = sources_[index(source)].lost;
  if (reason.empty()) reason = std::move(why);
}

Parcel FrameTransport::await(const Expected& expected, Deadline deadline) {
  const int source = expected.tag.source;
  Lock lock(mutex_);
  Source& from = sources_[index(source)];
  for (bool in_time = true;;) {
    if (!from.queue.empty()) break;
    if (failed_) throw failure_;
    if (!from.lost.empty()) peer_lost(expected, from.lost);
    if (!in_time) timed_out(expected);
    in_time = pump(lock, deadline);
  }
  Parcel parcel = frame_parcel(*from.queue.front());
  check_tag(expected, parcel.tag);
  return parcel;
}

const Parcel& FrameTransport::open(int source) {
  const Lock lock(mutex_);
  Source& from = sources_[index(source)];
  from.open = frame_parcel(*from.queue.front());
  return from.open;
}

void FrameTransport::release(int source) {
  const Lock lock(mutex_);
  Source& from = sources_[index(source)];
  give_back(std::move(from.queue.front()));
  from.queue.erase(from.queue.begin());
}

void FrameTransport::post_text(Lock& lock, FrameKind kind, const Refusal& why) {
  for (int r = 0; r < ranks(); ++r) {
    if (r == rank()) continue;
    FramePointer frame = take_frame();
    make_text_frame(kind, own_, why, *frame);
    post(lock, r, std::move(frame));
  }
}

void FrameTransport::give_up(const Refusal& why) noexcept {
  try {
    Lock lock(mutex_);
    if (failed_) return;  // somebody said so first: the others know
    failed_ = true;
    failure_ = why;
    post_text(lock, FrameKind::gave_up, why);
  } catch (...) {  // no memory for a message: the others will run into their time-out
  }
}

}  // namespace dropless::cpu::exchange
