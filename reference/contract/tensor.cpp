// SPDX-License-Identifier: Apache-2.0
// Checks of tensor arguments, and their way into and out of vectors.
#include "reference/contract/tensor.h"

#include <vector>

#include "reference/checks.h"
#include "reference/contract/call.h"

namespace dropless::reference::contract {
namespace {

constexpr Index kMostElements = Index{1} << 62;

struct Allowed {
  const char* words;
  std::vector<dropless_dtype> dtypes;
};

Allowed allowed(Element element) {
  switch (element) {
    case Element::real:
      return {"fp32 or bf16", {DROPLESS_FP32, DROPLESS_BF16}};
    case Element::fp32:
      return {"fp32", {DROPLESS_FP32}};
    case Element::id:
      return {"i32 or i64", {DROPLESS_I32, DROPLESS_I64}};
    case Element::i64:
      return {"i64", {DROPLESS_I64}};
    case Element::u8:
      return {"u8", {DROPLESS_U8}};
    case Element::code:
      return {"e4m3 or e5m2", {DROPLESS_E4M3, DROPLESS_E5M2}};
    case Element::value:
      return {"fp32, bf16, e4m3 or e5m2",
              {DROPLESS_FP32, DROPLESS_BF16, DROPLESS_E4M3, DROPLESS_E5M2}};
    case Element::e8m0:
      return {"e8m0", {DROPLESS_E8M0}};
    case Element::byte:
      return {"u8 or e8m0", {DROPLESS_U8, DROPLESS_E8M0}};
    case Element::any:
      break;
  }
  return {"a dtype of the contract",
          {DROPLESS_FP32, DROPLESS_BF16, DROPLESS_FP16, DROPLESS_E4M3, DROPLESS_E5M2, DROPLESS_E8M0,
           DROPLESS_I32, DROPLESS_I64, DROPLESS_U8}};
}

[[noreturn]] void refuse(const char* name, const std::string& why) {
  throw Refused(std::string(name) + " " + why);
}

std::string shape_text(const Index* shape, std::size_t rank) {
  std::string text = "[";
  for (std::size_t i = 0; i < rank; ++i) {
    if (i > 0) text += ",";
    text += shape[i] == kAny ? "any" : std::to_string(shape[i]);
  }
  return text + "]";
}

void check_dtype(const dropless_tensor& t, const char* name, Element element) {
  const Allowed set = allowed(element);
  for (const dropless_dtype dtype : set.dtypes) {
    if (dtype == t.dtype) return;
  }
  refuse(name, "has dtype " + std::to_string(t.dtype) + ", not " + set.words);
}

void check_shape(const dropless_tensor& t, const char* name, std::initializer_list<Index> shape) {
  const std::size_t rank = shape.size();
  const std::string expected = shape_text(shape.begin(), rank);
  if (t.rank != static_cast<std::int32_t>(rank)) {
    refuse(name, "has rank " + std::to_string(t.rank) + ", not the shape " + expected);
  }
  Index elements = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const Index extent = t.shape[i], wanted = shape.begin()[i];
    if (extent < 0 || (wanted != kAny && extent != wanted)) {
      refuse(name, "has the shape " + shape_text(t.shape, rank) + ", not " + expected);
    }
    if (extent != 0 && elements > kMostElements / extent) refuse(name, "has too many elements");
    elements *= extent;
  }
  if (elements > 0 && t.data == nullptr) refuse(name, "has elements but no data");
}

}  // namespace

TensorView tensor(const dropless_tensor* argument, const char* name, Element element,
                  std::initializer_list<Index> shape) {
  const dropless_tensor t = completed(argument, name, sizeof(dropless_tensor));
  check_dtype(t, name, element);
  if (t.memory_space != DROPLESS_HOST) refuse(name, "is not in host memory");
  check_shape(t, name, shape);
  return TensorView(t);
}

std::optional<TensorView> optional_tensor(const dropless_tensor* argument, const char* name,
                                          Element element, std::initializer_list<Index> shape) {
  if (argument == nullptr) return std::nullopt;
  return tensor(argument, name, element, shape);
}

void check_pair(const void* a, const char* name_a, const void* b, const char* name_b) {
  if ((a == nullptr) == (b == nullptr)) return;
  refuse(a == nullptr ? name_a : name_b,
         "is null although " + std::string(a == nullptr ? name_b : name_a) + " is given");
}

Doubles read_values(const TensorView& view) {
  Doubles values(at(view.size()));
  for (Index i = 0; i < view.size(); ++i) values[at(i)] = view.load_flat(i);
  return values;
}

Doubles read_values(const std::optional<TensorView>& view) {
  return view ? read_values(*view) : Doubles{};
}

std::vector<Index> read_integers(const TensorView& view) {
  std::vector<Index> values(at(view.size()));
  for (Index i = 0; i < view.size(); ++i) values[at(i)] = view.load_integer_flat(i);
  return values;
}

std::vector<Index> read_integers(const std::optional<TensorView>& view) {
  return view ? read_integers(*view) : std::vector<Index>{};
}

std::vector<std::uint8_t> read_bytes(const TensorView& view) {
  std::vector<std::uint8_t> bytes(at(view.size()));
  for (Index i = 0; i < view.size(); ++i) {
    bytes[at(i)] = static_cast<std::uint8_t>(view.load_integer_flat(i));
  }
  return bytes;
}

std::vector<std::uint8_t> read_bytes(const std::optional<TensorView>& view) {
  return view ? read_bytes(*view) : std::vector<std::uint8_t>{};
}

std::vector<std::byte> read_raw(const TensorView& view) {
  const std::size_t element = static_cast<std::size_t>(element_bytes(view.dtype()));
  std::vector<std::byte> bytes(at(view.size()) * element);
  for (Index i = 0; i < view.size(); ++i) {
    std::memcpy(&bytes[at(i) * element], view.address_flat(i), element);
  }
  return bytes;
}

void write_values(const TensorView& view, Input values) {
  for (Index i = 0; i < view.size(); ++i) view.store_flat(values[at(i)], i);
}

void write_integers(const TensorView& view, Indices values) {
  for (Index i = 0; i < view.size(); ++i) view.store_integer_flat(values[at(i)], i);
}

}  // namespace dropless::reference::contract
