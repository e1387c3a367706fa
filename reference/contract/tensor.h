// SPDX-License-Identifier: Apache-2.0
// Tensors of a call: checked once (GENERAL-3), then read into and written from plain vectors in
// row-major order, whatever their strides.
//
//     const TensorView logits = tensor(a.logits, "logits", Element::real, {kAny, num_experts});
//     const Index tokens = logits.shape(0);
//     const Doubles values = read_values(logits);
#pragma once

#include <dropless/contract.h>
#include <dropless/formats/tensor_view.h>

#include <initializer_list>
#include <optional>

#include "reference/value.h"

namespace dropless::reference::contract {

// What an argument may be made of.
enum class Element {
  real,   // fp32 or bf16
  fp32,   //
  id,     // i32 or i64
  i64,    //
  u8,     //
  code,   // e4m3 or e5m2
  value,  // real or code
  e8m0,   //
  byte,   // u8 or e8m0
  any     // every dtype of the contract
};

inline constexpr Index kAny = -1;  // a free extent

// Throws Refused, naming the argument: null, a struct that is too short, another memory space than
// the host, a dtype outside `element`, a rank or extent other than `shape`, a negative extent, more
// than 2^62 elements, null data although there are elements.
TensorView tensor(const dropless_tensor* argument, const char* name, Element element,
                  std::initializer_list<Index> shape);
// The same, or nothing for a null argument.
std::optional<TensorView> optional_tensor(const dropless_tensor* argument, const char* name,
                                          Element element, std::initializer_list<Index> shape);
// Throws Refused when exactly one of two arguments that belong together is null.
void check_pair(const void* a, const char* name_a, const void* b, const char* name_b);

Doubles read_values(const TensorView& view);
Doubles read_values(const std::optional<TensorView>& view);  // empty when there is none
std::vector<Index> read_integers(const TensorView& view);
std::vector<Index> read_integers(const std::optional<TensorView>& view);
std::vector<std::uint8_t> read_bytes(const TensorView& view);  // one-byte dtypes
std::vector<std::uint8_t> read_bytes(const std::optional<TensorView>& view);
// The bytes of all elements one after the other, of any dtype.
std::vector<std::byte> read_raw(const TensorView& view);

// Rounded once to the dtype of the tensor. The vector holds exactly the tensor's elements.
void write_values(const TensorView& view, Input values);
void write_integers(const TensorView& view, Indices values);

}  // namespace dropless::reference::contract
