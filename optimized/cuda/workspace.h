// SPDX-License-Identifier: Apache-2.0
// Scratch memory of one stream: chunks that are handed out from the front and taken back as a
// whole when a call ends. Calls on a stream run one after another, so all of them share it.
// A sequence of calls that was seen before allocates nothing. Chunks are never freed or moved:
// captured graphs still point to them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace dropless::cuda {

class Workspace {
 public:
  // 256-byte aligned, contents undefined. Throws Refusal: out of memory, or growth while the
  // stream is being captured (make the same call once before).
  void* take(std::size_t bytes, cudaStream_t stream);

  struct Mark {
    std::size_t chunk = 0, used = 0;
  };
  [[nodiscard]] Mark mark() const { return {chunk_, used_}; }
  // Everything taken since then may be handed out again (in stream order).
  void release(Mark mark) { chunk_ = mark.chunk, used_ = mark.used; }

  // The word of device_refusal.h.
  int* refusal_word(cudaStream_t stream);

  [[nodiscard]] std::size_t allocated() const;  // bytes of all chunks

 private:
  struct Chunk {
    std::byte* memory;
    std::size_t bytes;
  };
  void* allocate(std::size_t bytes, cudaStream_t stream);

  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0;  // the one that is being handed out
  std::size_t used_ = 0;   // bytes of it
  int* refusal_word_ = nullptr;
};

// The workspace of a stream of a device; it lives as long as the process. Thread-safe.
Workspace& workspace_of(int device, cudaStream_t stream);

}  // namespace dropless::cuda
