// SPDX-License-Identifier: Apache-2.0
// The half of a transport that all wires share: packing what is offered, and a queue of arrived
// frames per source. A wire posts frames and reports what arrived.
#pragma once

#include <mutex>
#include <vector>

#include "optimized/cpu/exchange/frame.h"

namespace dropless::cpu::exchange {

class FrameTransport : public Transport {
 public:
  void offer(int destination, const Parcel& parcel) final;
  Parcel await(const Expected& expected, Deadline deadline) final;
  const Parcel& open(int source) final;
  void release(int source) final;
  void give_up(const Refusal& why) noexcept final;

 protected:
  using Lock = std::unique_lock<std::mutex>;
  using FramePointer = std::unique_ptr<Frame>;

  FrameTransport(const Tag& own, int ranks)
      : own_(own), sources_(static_cast<std::size_t>(ranks)) {}

  // Puts a frame on its way; never blocks. Called with the lock held.
  virtual void post(Lock& lock, int destination, FramePointer frame) = 0;
  // Waits until something may have changed, not longer than `until`. False: the time is over.
  virtual bool pump(Lock& lock, Deadline until) = 0;

  // For the wire, with the lock held: a whole frame came in; a rank cannot be reached any more.
  void arrived(int source, FramePointer frame);
  void lost(int source, std::string why);
  [[nodiscard]] bool is_lost(int source) const { return !sources_[index(source)].lost.empty(); }
  // Frames are few and keep their memory.
  [[nodiscard]] FramePointer take_frame();
  void give_back(FramePointer frame);
  void post_text(Lock& lock, FrameKind kind, const Refusal& why);

  [[nodiscard]] int ranks() const { return static_cast<int>(sources_.size()); }
  [[nodiscard]] int rank() const { return own_.source; }
  [[nodiscard]] const Tag& own() const { return own_; }
  std::mutex mutex_;

 private:
  struct Source {
    std::vector<FramePointer> queue;
    Parcel open;
    std::string lost;  // why nothing will come any more; empty: it may
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  Tag own_;  // handle and source of everything this rank sends
  std::vector<Source> sources_;
  std::vector<FramePointer> unused_;
  bool failed_ = false;
  Refusal failure_{DROPLESS_OK, {}};
};

}  // namespace dropless::cpu::exchange
