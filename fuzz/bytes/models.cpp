// SPDX-License-Identifier: Apache-2.0
// Bytes as a model file: refused, or models whose settings agree with each other.
#include "conformance/cases/models.h"

#include "fuzz/bytes/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dropless::conformance;
  using dropless::fuzz::demand;
  const dropless::fuzz::MemoryFile file(dropless::fuzz::text_of(data, size));
  if (!dropless::fuzz::accepted([&] { load_models(file.path()); })) return 0;
  demand(!models().empty(), "an accepted file has a model");
  for (const Model& model : models()) {
    demand(find_model(model.name)->name == model.name, "a model is found by its name");
    demand(model.top_k >= 1 && model.top_k <= model.experts, "1 <= K <= E");
    demand(model.route.num_groups >= 1 && model.experts % model.route.num_groups == 0,
           "the groups divide the experts");
    for (const Index divisor : {1, 7, 1024}) {
      const Model small = scaled(model, divisor);
      demand(small.hidden >= 32 && small.hidden % 32 == 0, "widths are multiples of 32");
    }
  }
  return 0;
}
