// SPDX-License-Identifier: Apache-2.0
// Memory that grows and is kept for the next use, never initialised: no allocation in steady state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "optimized/cpu/threads.h"

namespace dropless::cpu::exchange {

class Bytes {
 public:
  // At least `bytes` bytes; what was in them is lost.
  std::byte* reserve(Index bytes) {
    if (bytes > capacity_) {
      capacity_ = std::max<Index>(bytes, capacity_ + capacity_ / 2);
      memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(capacity_));
    }
    return memory_.get();
  }
  template <class T>
  T* reserve_as(Index count) {
    return reinterpret_cast<T*>(reserve(std::max<Index>(1, count) * static_cast<Index>(sizeof(T))));
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] Index capacity() const { return capacity_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  Index capacity_ = 0;
};

}  // namespace dropless::cpu::exchange
