// SPDX-License-Identifier: Apache-2.0
// Buffers must see every byte that a call should not have written.
#include "conformance/judge/buffers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

#include "conformance/judge/memory.h"

namespace dropless::conformance {
namespace {

using Doubles = std::vector<double>;
using Indices = std::vector<Index>;
using Bytes = std::vector<std::uint8_t>;

std::uint8_t* data(const Buffer& buffer) {
  return static_cast<std::uint8_t*>(buffer.tensor()->data);
}

TEST(Buffers, TensorDescribesStridedRows) {
  Buffers buffers;
  const Buffer& b = buffers.output("b", DROPLESS_BF16, {2, 3, 5},
                                   {.row_gap = 3, .offset_bytes = 6, .poison = Poison::all_ones});
  const dropless_tensor& t = *b.tensor();
  EXPECT_EQ(t.struct_size, sizeof t);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.dtype, DROPLESS_BF16);
  EXPECT_EQ(t.memory_space, DROPLESS_HOST);
  EXPECT_EQ(t.shape[0], 2);
  EXPECT_EQ(t.shape[2], 5);
  EXPECT_EQ(t.strides[2], 1);
  EXPECT_EQ(t.strides[1], 8);
  EXPECT_EQ(t.strides[0], 24);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 256, 6u);
}

TEST(Buffers, ValuesSkipTheGapsAndRoundOnTheWayIn) {
  Buffers buffers;
  const Doubles in = {1, 2, 3, 4, 5, 1.0 + 0x1p-9};
  Buffer& b = buffers.input("b", DROPLESS_BF16, {2, 3}, in, {.row_gap = 1});
  EXPECT_EQ(b.values(), (Doubles{1, 2, 3, 4, 5, 1}));
  EXPECT_EQ(b.bytes().size(), 12u);
  const auto* elements = static_cast<const std::uint16_t*>(b.tensor()->data);
  EXPECT_EQ(elements[4], 0x4080);  // 4.0 begins the second row, after one unused element
  EXPECT_FALSE(representable(DROPLESS_BF16, in));
  EXPECT_TRUE(representable(DROPLESS_FP32, in));
  EXPECT_TRUE(representable(DROPLESS_BF16, Doubles{std::nan(""), -0.0, 0x1p-133}));
  EXPECT_FALSE(representable(DROPLESS_E4M3, Doubles{449}));
  EXPECT_FALSE(representable(DROPLESS_E8M0, Doubles{3}));
  EXPECT_TRUE(representable(DROPLESS_I32, Doubles{3}));
  EXPECT_FALSE(representable(DROPLESS_I32, Doubles{3.5}));
}

TEST(Buffers, PoisonIsNotAResult) {
  Buffers buffers;
  EXPECT_TRUE(std::isnan(buffers.output("f", DROPLESS_FP32, {1}).values()[0]));
  EXPECT_TRUE(std::isnan(buffers.output("c", DROPLESS_E4M3, {1}).values()[0]));
  EXPECT_EQ(buffers.output("i", DROPLESS_I64, {1}).integers()[0], -1);
  const Layout plausible{.poison = Poison::plausible};
  EXPECT_EQ(buffers.output("f", DROPLESS_FP16, {1}, plausible).values()[0], 1);
  EXPECT_EQ(buffers.output("i", DROPLESS_I32, {1}, plausible).integers()[0], 1);
  EXPECT_EQ(buffers.output("s", DROPLESS_E8M0, {1}, plausible).bytes()[0], 127);
  EXPECT_EQ(buffers.output("s", DROPLESS_U8, {1}, plausible).bytes()[0], 127);
}

TEST(Buffers, NothingWrittenNoDamage) {
  Buffers buffers;
  buffers.input("x", DROPLESS_FP32, {2, 2}, Doubles{1, 2, 3, 4}, {.row_gap = 5});
  Buffer& y = buffers.output("y", DROPLESS_FP32, {2, 2}, {.row_gap = 2, .offset_bytes = 4});
  buffers.in_out("z", DROPLESS_I64, {2}, Indices{1, 2});
  for (std::size_t row = 0; row < 2; ++row) std::memset(data(y) + row * 16, 7, 8);
  EXPECT_TRUE(buffers.damage().empty());
}

struct Write {
  const char* name;
  std::ptrdiff_t offset;  // from the first element
  const char* seen;       // "" = legal
};

class StrayWrite : public ::testing::TestWithParam<Write> {};

// Output [2,3] fp32 with one unused element after each row: bytes 0..11 and 16..27 are its own.
TEST_P(StrayWrite, IsSeenToTheByte) {
  Buffers buffers;
  buffers.output("before", DROPLESS_FP32, {3});
  Buffer& y = buffers.output("y", DROPLESS_FP32, {2, 3}, {.row_gap = 1});
  buffers.output("after", DROPLESS_FP32, {3});
  data(y)[GetParam().offset] = 0;
  const auto damage = buffers.damage();
  if (GetParam().seen[0] == 0) {
    EXPECT_TRUE(damage.empty());
  } else {
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_EQ(damage[0].label, "y");
    EXPECT_EQ(damage[0].what, GetParam().seen);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, StrayWrite,
    ::testing::Values(
        Write{"own", 0, ""}, Write{"last", 27, ""},
        Write{"before", -1, "1 bytes written before the start, nearest at -1"},
        Write{"far_before", -1000, "1 bytes written before the start, nearest at -1000"},
        Write{"gap", 12, "1 bytes of the row gaps written, first after row 0 at +0"},
        Write{"last_gap", 31, "1 bytes of the row gaps written, first after row 1 at +3"},
        Write{"after", 32, "1 bytes written after the end, first at +0"},
        Write{"far_after", 1055, "1 bytes written after the end, first at +1023"}),
    [](const auto& one) { return one.param.name; });

TEST(Buffers, NeitherZeroNorOnesHideInTheCanaries) {
  for (const int fill : {0x00, 0xFF}) {
    Buffers buffers;
    Buffer& y = buffers.output("y", DROPLESS_U8, {4});
    std::memset(data(y) + 4, fill, 1024);
    std::memset(data(y) - 1024, fill, 1024);
    const auto damage = buffers.damage();
    ASSERT_EQ(damage.size(), 2u);
    EXPECT_EQ(damage[0].what, "1024 bytes written before the start, nearest at -1");
    EXPECT_EQ(damage[1].what, "1024 bytes written after the end, first at +0");
  }
}

TEST(Buffers, AShiftedCopyOfCanariesIsSeen) {
  Buffers buffers;
  Buffer& y = buffers.output("y", DROPLESS_U8, {64});
  std::memmove(data(y) + 64, data(y) + 64 + 16, 256);
  EXPECT_EQ(buffers.damage().size(), 1u);
}

TEST(Buffers, ChangedInputIsNamed) {
  Buffers buffers;
  Buffer& x = buffers.input("x", DROPLESS_I32, {2, 3}, Indices{0, 1, 2, 3, 4, 5});
  const std::int32_t nine = 9;
  std::memcpy(data(x) + 20, &nine, 4);
  const auto damage = buffers.damage();
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].what, "input changed at [1,2]: 5 became 9 (1 elements in all)");
}

TEST(Buffers, InputNanPayloadAndSignOfZeroCount) {
  Buffers buffers;
  Buffer& x = buffers.input("x", DROPLESS_FP32, {2}, Doubles{0, std::nan("")});
  data(x)[3] = 0x80;  // -0
  EXPECT_EQ(buffers.damage().size(), 1u);
  data(x)[3] = 0x00;
  EXPECT_TRUE(buffers.damage().empty());
  data(x)[4] ^= 1;  // another NaN
  EXPECT_EQ(buffers.damage().size(), 1u);
}

TEST(Buffers, UntouchedIsPerElement) {
  Buffers buffers;
  Buffer& y = buffers.output("y", DROPLESS_BF16, {2, 2}, {.row_gap = 1});
  data(y)[2] = 0;  // low byte of [0,1]
  EXPECT_EQ(y.untouched(), (std::vector<bool>{true, false, true, true}));
  buffers.poison_outputs();
  EXPECT_EQ(y.untouched(), (std::vector<bool>{true, true, true, true}));
}

TEST(Buffers, OverwriteIsTheNewContents) {
  Buffers buffers;
  Buffer& x = buffers.input("x", DROPLESS_U8, {2, 2}, Bytes{1, 2, 3, 4}, {.row_gap = 2});
  x.overwrite(Bytes{5, 6, 7, 8});
  EXPECT_EQ(x.integers(), (Indices{5, 6, 7, 8}));
  EXPECT_TRUE(buffers.damage().empty());
  EXPECT_THROW(x.overwrite(Bytes{1}), std::logic_error);
}

TEST(Buffers, InOutMayChangeAndIsNotPoisoned) {
  Buffers buffers;
  Buffer& p = buffers.in_out("p", DROPLESS_FP32, {2}, Doubles{1, 2});
  Buffer& y = buffers.output("y", DROPLESS_FP32, {1});
  const Buffer& x = buffers.input("x", DROPLESS_FP32, {1}, Doubles{1});
  std::memset(data(p), 0, 4);
  buffers.poison_outputs();
  EXPECT_EQ(p.values(), (Doubles{0, 2}));
  EXPECT_TRUE(buffers.damage().empty());
  EXPECT_EQ(buffers.outputs(), (std::vector<const Buffer*>{&p, &y}));
  EXPECT_EQ(x.values(), Doubles{1});
}

TEST(Buffers, ZeroElementsHaveANullPointer) {
  Buffers buffers;
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 4}}) {
    const Buffer& y = buffers.output("y", DROPLESS_FP32, shape, {.row_gap = 2, .offset_bytes = 4});
    EXPECT_EQ(y.tensor()->data, nullptr);
    EXPECT_EQ(y.size(), 0);
    EXPECT_TRUE(y.values().empty());
    EXPECT_TRUE(y.untouched().empty());
  }
  EXPECT_EQ(buffers.input("x", DROPLESS_FP32, {0}, Doubles{}).tensor()->data, nullptr);
  buffers.poison_outputs();
  EXPECT_TRUE(buffers.damage().empty());
}

TEST(Buffers, MistakesOfTheSuite) {
  Buffers buffers;
  EXPECT_THROW(buffers.input("x", DROPLESS_FP32, {2}, Doubles{1}), std::logic_error);
  EXPECT_THROW(buffers.input("x", DROPLESS_I32, {1}, Indices{Index{1} << 40}), std::logic_error);
  EXPECT_THROW(buffers.input("x", DROPLESS_BF16, {2}, Bytes{1, 2, 3}), std::logic_error);
  EXPECT_THROW(buffers.output("y", DROPLESS_FP32, {2}, {.offset_bytes = 2}), std::logic_error);
  EXPECT_THROW(buffers.output("y", DROPLESS_FP32, {2, -1}), std::logic_error);
  EXPECT_THROW(buffers.output("y", DROPLESS_FP32, {1, 1, 1, 1, 1}), std::logic_error);
  EXPECT_THROW(Buffers(77).output("y", DROPLESS_FP32, {2}), std::logic_error);
}

// A memory that is not addressable as host memory: what a device looks like to Buffers.
class FarMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    next_ += 1 << 20;
    blocks_[next_] = Bytes(bytes);
    return reinterpret_cast<void*>(next_);
  }
  void release(void* pointer) noexcept override {
    blocks_.erase(reinterpret_cast<std::uintptr_t>(pointer));
  }
  void copy_in(void* to, const void* host, std::size_t bytes) override {
    std::memcpy(at(to), host, bytes);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) override {
    std::memcpy(host, at(from), bytes);
  }
  std::uint8_t* at(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto block = std::prev(blocks_.upper_bound(address));
    return block->second.data() + (address - block->first);
  }
  [[nodiscard]] std::size_t blocks() const { return blocks_.size(); }

 private:
  std::map<std::uintptr_t, Bytes> blocks_;
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

TEST(Buffers, LiveInAnyMemoryThatIsProvided) {
  const auto far = std::make_shared<FarMemory>();
  provide_memory(DROPLESS_CUDA_DEVICE, far);
  {
    Buffers buffers(DROPLESS_CUDA_DEVICE);
    Buffer& x = buffers.input("x", DROPLESS_FP32, {2, 2}, Doubles{1, 2, 3, 4}, {.row_gap = 1});
    Buffer& y = buffers.output("y", DROPLESS_FP32, {2});
    EXPECT_EQ(x.tensor()->memory_space, DROPLESS_CUDA_DEVICE);
    EXPECT_EQ(x.values(), (Doubles{1, 2, 3, 4}));
    const float two = 2;
    std::memcpy(far->at(y.tensor()->data), &two, 4);
    EXPECT_EQ(y.values()[0], 2);
    EXPECT_TRUE(buffers.damage().empty());
    *far->at(static_cast<std::uint8_t*>(y.tensor()->data) + 8) = 0;
    EXPECT_EQ(buffers.damage().size(), 1u);
    EXPECT_EQ(far->blocks(), 2u);
  }
  EXPECT_EQ(far->blocks(), 0u);
  provide_memory(DROPLESS_CUDA_DEVICE, nullptr);
}

TEST(Buffers, ElementNames) {
  EXPECT_EQ(element_name({3, 20}, 57), "[2,17]");
  EXPECT_EQ(element_name({5}, 4), "[4]");
  EXPECT_EQ(element_name({2, 3, 4}, 23), "[1,2,3]");
  EXPECT_EQ(element_name({}, 0), "[]");
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({4, 0}), 0);
}

}  // namespace
}  // namespace dropless::conformance
