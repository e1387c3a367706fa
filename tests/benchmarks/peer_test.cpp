// SPDX-License-Identifier: Apache-2.0
// The line protocol, against peers that keep it and peers that do not. Our own figures survive.
#include "conformance/benchmarks/device/peer.h"

#include <gtest/gtest.h>

#include "conformance/benchmarks/device/benchmark.h"
#include "optimized/cpu/implementation.h"
#include "tests/benchmarks/host_queue.h"

namespace dropless::conformance {
namespace {

using std::chrono::milliseconds;

// A peer that is greeted for, and answers every request with these words of the shell.
std::string answering(const std::string& words) {
  return "echo 'ready a shell'; while read -r name keys; do " + words + "; done";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Peer, AnswersInMicroseconds) {
  Peer peer(answering("echo \"12.5 as $name with $keys\""));
  EXPECT_EQ(peer.name(), "a shell");
  const PeerAnswer answer = peer.ask("swiglu rows=3 width=4");
  EXPECT_DOUBLE_EQ(answer.seconds, 12.5e-6);
  EXPECT_EQ(answer.how, "as swiglu with rows=3 width=4");
  EXPECT_EQ(answer.why, "");
  EXPECT_DOUBLE_EQ(peer.ask("again").seconds, 12.5e-6);
  EXPECT_EQ(peer.trouble(), "");
}

TEST(Peer, NeedNotSayHow) {
  Peer peer(answering("echo 7"));
  const PeerAnswer answer = peer.ask("route");
  EXPECT_DOUBLE_EQ(answer.seconds, 7e-6);
  EXPECT_EQ(answer.how, "");
}

TEST(Peer, MayHaveNoTimeForOneOperation) {
  Peer peer(answering("case $name in route) echo 'none: no router here';; *) echo 3;; esac"));
  const PeerAnswer none = peer.ask("route tokens=1");
  EXPECT_EQ(none.seconds, 0);
  EXPECT_EQ(none.why, "no router here");
  EXPECT_DOUBLE_EQ(peer.ask("permute").seconds, 3e-6);
}

TEST(Peer, ThatCannotServeSaysSo) {
  Peer peer("echo \"none: No module named 'torch'\"");
  EXPECT_EQ(peer.name(), "");
  EXPECT_EQ(peer.trouble(), "the peer says: No module named 'torch'");
  EXPECT_EQ(peer.ask("route").why, peer.trouble());
}

TEST(Peer, ThatDoesNotExistIsTold) {
  Peer peer("/nowhere/torch_peer.py");
  EXPECT_TRUE(holds(peer.trouble(), "the peer ended (exit(127))")) << peer.trouble();
  EXPECT_TRUE(holds(peer.trouble(), "/nowhere/torch_peer.py")) << peer.trouble();
}

TEST(Peer, ThatCrashesIsQuoted) {
  Peer peer(answering("echo noise >&2; echo 'RuntimeError: CUDA out of memory' >&2; exit 3"));
  const PeerAnswer answer = peer.ask("route");
  EXPECT_EQ(answer.seconds, 0);
  EXPECT_EQ(answer.why,
            "the peer ended (exit(3)), its last words: 'RuntimeError: CUDA out of memory'");
  EXPECT_EQ(peer.ask("permute").why, answer.why);
}

TEST(Peer, ThatIsKilledIsTold) {
  Peer peer(answering("kill -SEGV $$"));
  EXPECT_EQ(peer.ask("route").why, "the peer ended (SIGSEGV)");
}

TEST(Peer, ThatHasGoneBeforeTheQuestionIsTold) {
  Peer peer("echo 'ready a shell'");
  std::string why;
  for (int i = 0; i < 3; ++i) why = peer.ask("route").why;
  EXPECT_EQ(why, "the peer ended (exit(0))");
}

TEST(Peer, NonsenseIsNoTime) {
  for (const char* words : {"echo fast", "echo", "echo -5", "echo 0", "echo nan", "echo inf",
                            "echo 12.5us", "echo 1e999", "echo none"}) {
    Peer peer(answering(words));
    const PeerAnswer answer = peer.ask("route");
    EXPECT_EQ(answer.seconds, 0) << words;
    EXPECT_TRUE(holds(answer.why, "instead of microseconds")) << words << ": " << answer.why;
    EXPECT_EQ(peer.ask("route").why, answer.why) << words;
  }
}

TEST(Peer, TwoAnswersAreOneTooMany) {
  Peer peer(answering("printf '1\\n2\\n'"));
  EXPECT_TRUE(holds(peer.ask("route").why, "wrote 2 lines where one was due"));
}

TEST(Peer, NonsenseAtTheBeginningIsQuoted) {
  Peer peer("echo Loading...; cat");
  EXPECT_TRUE(holds(peer.trouble(), "began with 'Loading...'")) << peer.trouble();
}

TEST(Peer, ThatIsSilentIsNotWaitedForForever) {
  Peer peer(answering("sleep 60"), nullptr, milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(peer.ask("route").why, "the peer did not answer within 0.3 s");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Peer, AnInterruptEndsTheWaiting) {
  const std::atomic<int> interrupt{2};
  Peer peer("sleep 60", &interrupt);
  EXPECT_EQ(peer.trouble(), "the run was interrupted");
}

TEST(Peer, ThatPrintsMuchIsNotStuck) {
  Peer peer(answering("head -c 300000 /dev/zero | tr '\\0' x >&2; echo 4"));
  EXPECT_DOUBLE_EQ(peer.ask("route").seconds, 4e-6);
  EXPECT_DOUBLE_EQ(peer.ask("route").seconds, 4e-6);
}

DeviceBenchmark swiglu() {
  DeviceSizes sizes;
  sizes.tokens = 16, sizes.top_k = 2, sizes.hidden = 64, sizes.intermediate = 32;
  sizes.router_tokens = 16, sizes.experts = 8, sizes.local_experts = 4, sizes.even_experts = 2;
  for (DeviceBenchmark& one : device_benchmarks(cpu::implementation(), sizes)) {
    if (one.name == "activation.swiglu") return std::move(one);
  }
  throw std::logic_error("no swiglu");
}

DeviceResult measured(Peer& peer, int repetitions) {
  HostQueue queue;
  DeviceBench bench(queue, cpu::implementation(), 1);
  return measure(bench, swiglu(), {repetitions, 1e-6, 0, nullptr}, &peer);
}

TEST(Peer, TakesTurnsWithTheImplementation) {
  // Asked three times, for a third of the repetitions each: 10, 30 and 20 us.
  const std::string command = answering(
      "n=$((n + 1)); case $keys in *'repetitions=4 rest_us=0') ;; *) echo \"none: $keys\"; "
      "continue;; esac; "
      "case $n in 1) echo 10;; 2) echo 30;; 3) echo 20;; *) echo 'none: a fourth time';; esac");
  Peer peer(command);
  const DeviceResult result = measured(peer, 12);
  EXPECT_EQ(result.failed, "");
  EXPECT_DOUBLE_EQ(result.peer.seconds, 20e-6) << result.peer.why;
}

TEST(Peer, ThatDiesOnTheWayCostsNoFigureOfOurs) {
  Peer peer(answering("n=$((n + 1)); [ $n -lt 2 ] || exit 1; echo 10"));
  const DeviceResult result = measured(peer, 12);
  EXPECT_EQ(result.failed, "");
  EXPECT_GT(result.seconds, 0);
  EXPECT_EQ(result.peer.seconds, 0);
  EXPECT_EQ(result.peer.why, "the peer ended (exit(1))");
}

}  // namespace
}  // namespace dropless::conformance
