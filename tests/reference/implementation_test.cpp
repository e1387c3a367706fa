// SPDX-License-Identifier: Apache-2.0
// The reference's table: what it offers, its profiles, and calls of every declared length.
#include "reference/implementation.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/reference/contract_fixture.h"
#include "tests/reference/refusal.h"

namespace dropless::reference::testing {
namespace {

TEST(Implementation, OffersEverythingButModels) {
  const dropless_implementation& i = implementation();
  EXPECT_EQ(i.struct_size, sizeof(dropless_implementation));
  EXPECT_EQ(i.contract_version, DROPLESS_CONTRACT_VERSION);
  EXPECT_STREQ(i.name, "reference");
  EXPECT_NE(std::strlen(i.version) * std::strlen(i.build), 0u);
  EXPECT_EQ(i.memory_space, DROPLESS_HOST);
  int offered = 0;
#define DROPLESS_COUNT(name, args) offered += i.name != nullptr ? 1 : 0;
  DROPLESS_OPERATIONS(DROPLESS_COUNT)
#undef DROPLESS_COUNT
  EXPECT_EQ(offered, 34);
  EXPECT_NE(i.route_forward, nullptr);
  EXPECT_NE(i.layer_release, nullptr);
  EXPECT_NE(i.exchange_plan, nullptr);
  EXPECT_NE(i.synchronize, nullptr);
}

TEST(Implementation, OneTablePerProfile) {
  EXPECT_EQ(&implementation(), &implementation(default_profile()));
  dropless_profile profile = default_profile();
  profile.alignment = 128;
  const dropless_implementation& other = implementation(profile);
  EXPECT_NE(&other, &implementation());
  EXPECT_EQ(&other, &implementation(profile));
  EXPECT_EQ(other.profile->alignment, 128);
  EXPECT_EQ(implementation().profile->alignment, 0);
}

TEST(Implementation, AShorterProfileHasDefaultsBeyondItsEnd) {
  dropless_profile profile = default_profile();
  profile.tail_rows = DROPLESS_TAIL_ZERO;
  profile.scale_rule = 99;  // beyond the declared end
  profile.struct_size = offsetof(dropless_profile, scale_rule);
  const dropless_implementation& i = implementation(profile);
  EXPECT_EQ(i.profile->tail_rows, DROPLESS_TAIL_ZERO);
  EXPECT_EQ(i.profile->scale_rule, DROPLESS_SCALE_RCEIL);
}

TEST(Implementation, ProfilesOutsideTheAllowedSetAreRefused) {
  const auto refused = [](const std::function<void(dropless_profile&)>& spoil,
                          const char* culprit) {
    dropless_profile profile = default_profile();
    EXPECT_NO_THROW(implementation(profile));
    spoil(profile);
    expect_refused([&] { implementation(profile); }, culprit);
  };
  refused([](dropless_profile& p) { p.tie_rule = 4; }, "tie_rule = 4");
  refused([](dropless_profile& p) { p.tie_rule = DROPLESS_TIE_DECLARED; }, "tie_rank");
  refused([](dropless_profile& p) { p.scale_rule = -1; }, "scale_rule = -1");
  refused([](dropless_profile& p) { p.alignment = 48; }, "alignment = 48");
  refused([](dropless_profile& p) { p.gemm_alignment = 512; }, "gemm_alignment = 512");
  refused([](dropless_profile& p) { p.scale_padding_byte = 256; }, "scale_padding_byte = 256");
  refused([](dropless_profile& p) { p.struct_size = 4; }, "profile.struct_size");
}

struct Synchronize : Fixture {
  dropless_synchronize_args args = arguments<dropless_synchronize_args>();
  explicit Synchronize(Index gap = 0) : Fixture(gap) {}
  dropless_status run() override { return table().synchronize(table().context, &call, &args); }
};

TEST(Call, NullOrTooShortIsRefusedWithoutATrace) {
  Synchronize o;
  EXPECT_EQ(o.table().synchronize(o.table().context, nullptr, &o.args), DROPLESS_INVALID_ARGUMENT);
  EXPECT_EQ(o.table().synchronize(nullptr, &o.call, &o.args), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(o.message().find("context"), std::string::npos);
  o.call.struct_size = 4;
  std::memset(o.call.message, 'm', sizeof o.call.message);
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_EQ(o.call.message[0], 'm');
}

// A call struct that ends before message or path: they are not written.
TEST(Call, ShortCallsKeepWhatLiesBeyond) {
  Synchronize o;
  std::memset(o.call.message, 'm', sizeof o.call.message);
  std::memset(o.call.path, 'p', sizeof o.call.path);
  o.call.struct_size = offsetof(dropless_call, message);
  EXPECT_EQ(o.run(), DROPLESS_OK);
  EXPECT_EQ(o.call.message[0], 'm');
  EXPECT_EQ(o.call.path[0], 'p');
  o.call.struct_size = offsetof(dropless_call, path);
  EXPECT_EQ(o.run(), DROPLESS_OK);
  EXPECT_STREQ(o.call.message, "");
  EXPECT_EQ(o.call.path[0], 'p');
  o.call.struct_size = sizeof o.call;
  EXPECT_EQ(o.run(), DROPLESS_OK);
  EXPECT_STREQ(o.call.path, "reference");
}

TEST(Call, WhatIsNoOpenExchangeIsRefused) {
  Synchronize o;
  int nothing = 0;
  o.args.exchange = reinterpret_cast<dropless_exchange*>(&nothing);
  EXPECT_EQ(o.run(), DROPLESS_INVALID_ARGUMENT);
  EXPECT_FALSE(o.message().empty());
}

// Sizes whose product does not fit are refused before anything is allocated.
TEST(Call, HugeShapesAreRefused) {
  HostTensor logits("logits", DROPLESS_FP32, {1, 1}, false, 0);
  logits.tensor.shape[0] = Index{1} << 40;
  logits.tensor.shape[1] = Index{1} << 40;
  dropless_z_loss_args args{};
  args.struct_size = sizeof args;
  args.logits = logits;
  dropless_call call{};
  call.struct_size = sizeof call;
  const dropless_implementation& i = implementation();
  EXPECT_EQ(i.z_loss_forward(i.context, &call, &args), DROPLESS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(call.message).find("too many elements"), std::string::npos);
}

// A request that fits no memory ends in a status, not in an exception. (So many doubles that no
// allocation is tried: a sanitizer's allocator would abort.)
TEST(Call, OutOfMemoryIsAStatus) {
  HostTensor logits("logits", DROPLESS_FP32, {1, 1}, false, 0);
  logits.tensor.shape[0] = Index{1} << 61;
  logits.tensor.strides[0] = 0;
  dropless_z_loss_args args{};
  args.struct_size = sizeof args;
  args.logits = logits;
  dropless_call call{};
  call.struct_size = sizeof call;
  const dropless_implementation& i = implementation();
  EXPECT_EQ(i.z_loss_forward(i.context, &call, &args), DROPLESS_OUT_OF_MEMORY);
  EXPECT_FALSE(std::string(call.message).empty());
}

}  // namespace
}  // namespace dropless::reference::testing
