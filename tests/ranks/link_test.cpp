// SPDX-License-Identifier: Apache-2.0
// Lines over pipes and TCP, and what is said when there is nobody.
#include "conformance/ranks/link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "conformance/cases/case_id.h"
#include "conformance/ranks/tcp.h"

namespace dropless::conformance {
namespace {

LinkClock::time_point soon() {
  return LinkClock::now() + std::chrono::seconds(10);
}

struct Pair {
  Listener listener{0};
  std::string why;
  std::unique_ptr<Link> one = try_to_connect("127.0.0.1", listener.port(), why);
  std::unique_ptr<Link> other = listener.accept();
};

TEST(Link, CarriesLinesInBothDirections) {
  Pair pair;
  ASSERT_TRUE(pair.one && pair.other) << pair.why;
  pair.one->send("first");
  pair.one->send("");
  pair.one->send("third");
  EXPECT_EQ(pair.other->next_line(soon()), "first");
  EXPECT_EQ(pair.other->next_line(soon()), "");
  pair.other->send("back");
  EXPECT_EQ(pair.one->next_line(soon()), "back");
  EXPECT_EQ(pair.other->next_line(soon()), "third");
}

TEST(Link, ALineLargerThanAnyBufferArrivesWhole) {
  Pair pair;
  ASSERT_TRUE(pair.one && pair.other);
  std::string large(20u << 20, 'x');
  large[12345] = 'y';
  pair.one->send(large);
  EXPECT_TRUE(pair.one->has_output());  // it did not wait
  std::vector<std::string> lines;
  while (lines.empty()) {
    ASSERT_TRUE(pair.one->flush());
    lines = pair.other->take_lines();
  }
  EXPECT_TRUE(lines.front() == large);
}

TEST(Link, TheEndIsSeenAfterTheLastLine) {
  Pair pair;
  ASSERT_TRUE(pair.one && pair.other);
  pair.one->send("last");
  pair.one.reset();
  EXPECT_EQ(pair.other->next_line(soon()), "last");
  EXPECT_EQ(pair.other->next_line(soon()), std::nullopt);
  EXPECT_FALSE(pair.other->open());
  pair.other->send("into the void");  // no signal
}

TEST(Link, Pipes) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Link link(ends[0], ends[1]);
  link.send("echo");
  EXPECT_EQ(link.next_line(soon()), "echo");
  EXPECT_EQ(link.next_line(LinkClock::now()), std::nullopt);
  EXPECT_TRUE(link.open());
}

// An agent that outlives its rank process writes to it once more.
TEST(Link, APipeThatNobodyReadsIsNoSignal) {
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  Link link(in[0], out[1]);
  close(out[0]);
  link.send("into the void");  // the default of SIGPIPE would end this test
  link.send("and again");
  EXPECT_TRUE(link.open());  // for reading
  close(in[1]);
}

TEST(Link, Hexadecimal) {
  const std::string bytes("\0\x7f\xff a", 5);
  EXPECT_EQ(hex_of(bytes), "007fff2061");
  EXPECT_EQ(bytes_of(hex_of(bytes)), bytes);
  EXPECT_EQ(bytes_of("0"), std::nullopt);
  EXPECT_EQ(bytes_of("0g"), std::nullopt);
  EXPECT_EQ(bytes_of(""), "");
}

TEST(Tcp, APortInUseIsNamed) {
  const Listener first(0);
  try {
    const Listener second(first.port());
    FAIL() << "two listeners at one port";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("port " + std::to_string(first.port()) + " is in use"), std::string::npos)
        << text;
  }
}

TEST(Tcp, NobodyThere) {
  int port = 0;
  { port = Listener(0).port(); }
  std::string why;
  EXPECT_EQ(try_to_connect("127.0.0.1", port, why), nullptr);
  EXPECT_NE(why.find("refused"), std::string::npos) << why;
}

}  // namespace
}  // namespace dropless::conformance
