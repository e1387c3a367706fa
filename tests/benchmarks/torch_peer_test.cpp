// SPDX-License-Identifier: Apache-2.0
// scripts/torch_peer.py keeps the protocol, whatever torch does; torch itself is a fake.
#include <gtest/gtest.h>

#include <cstdlib>

#include "conformance/benchmarks/device/peer.h"

namespace dropless::conformance {
namespace {

class TorchPeer : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c pass 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  }
  static std::string command(const std::string& fake) {
    const std::string source = DROPLESS_SOURCE;
    return "PYTHONDONTWRITEBYTECODE=1 FAKE_TORCH=" + fake + " PYTHONPATH='" + source +
           "/tests/benchmarks/fake_torch' exec python3 '" + source + "/scripts/torch_peer.py'";
  }
};

TEST_F(TorchPeer, AnswersAndGoesOnAfterErrors) {
  Peer peer(command("there"));
  EXPECT_EQ(peer.name(), "torch of a test, CUDA none, a device") << peer.trouble();
  // One round of two calls takes 1 ms: two rounds make 2 ms, of which each call has a quarter.
  const PeerAnswer permute =
      peer.ask("permute tokens=4 experts=8 top_k=2 hidden=3 sets=2 repetitions=3 rest_us=10");
  EXPECT_DOUBLE_EQ(permute.seconds, 250e-6) << permute.why;
  EXPECT_EQ(permute.how, "eager, queue");
  EXPECT_EQ(peer.ask("boil water=1").why, "torch_peer.py has no operation boil");
  EXPECT_EQ(peer.ask("gemm_fprop out=3 in=4 counts=1,2 sets=1").why,
            "RuntimeError: not on this chip");
  EXPECT_NE(peer.ask("permute tokens=four").why.find("ValueError"), std::string::npos);
  EXPECT_DOUBLE_EQ(peer.ask("permute tokens=4 experts=8 top_k=2 hidden=3 sets=1").seconds, 500e-6);
}

TEST_F(TorchPeer, SaysWhatIsMissing) {
  EXPECT_EQ(Peer(command("missing")).trouble(), "the peer says: No module named 'torch'");
  EXPECT_EQ(Peer(command("without_gpu")).trouble(), "the peer says: torch sees no GPU");
}

}  // namespace
}  // namespace dropless::conformance
