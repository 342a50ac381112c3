// SPDX-License-Identifier: Apache-2.0
// How ranks meet without MPI. Threads stand in for the processes.
#include "common/job/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "common/job/hmac.h"
#include "common/job/rendezvous_messages.h"

namespace workshop {
namespace {

// A connection from a process that need not be a rank or, for port 0, a socket that listens on a free port.
class PlainSocket {
 public:
  explicit PlainSocket(int port) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address_.sin_port = htons(static_cast<std::uint16_t>(port));
    auto* address = reinterpret_cast<sockaddr*>(&address_);
    socklen_t size = sizeof address_;
    if (port > 0) {
      while (connect(fd_, address, size) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else {
      EXPECT_EQ(bind(fd_, address, size) | listen(fd_, 8) | getsockname(fd_, address, &size), 0);
    }
  }
  ~PlainSocket() { close(fd_); }
  PlainSocket(const PlainSocket&) = delete;
  PlainSocket& operator=(const PlainSocket&) = delete;

  int port() const { return ntohs(address_.sin_port); }
  void say(const std::string& text) { send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  std::string hear(std::size_t size) {
    std::string text(size, '\0');
    EXPECT_EQ(recv(fd_, text.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return text;
  }
  void wait_for_end() {
    char buffer[256];
    while (recv(fd_, buffer, sizeof buffer, 0) > 0) {
    }
  }
  PlainSocket let_in() const { return PlainSocket(Guest{accept(fd_, nullptr, nullptr)}); }
  // Answers the first connection.
  void answer(const std::string& text) const {
    PlainSocket guest = let_in();
    guest.say(text);
    guest.wait_for_end();
  }

 private:
  struct Guest {
    int fd;
  };
  explicit PlainSocket(Guest guest) : fd_(guest.fd) {}

  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_{};
};

MeetingPoint free_point(int seconds) { return {"127.0.0.1", PlainSocket(0).port(), seconds}; }

// The outcome of a rank: rank 0's message, or the error.
using Outcome = std::future<std::string>;
Outcome come(const MeetingPoint& point, int rank, int world, const std::string& key = "key") {
  return std::async(std::launch::async, [=]() -> std::string {
    try {
      return meet(point, key, rank, world, rank == 0 ? "the id" : "");
    } catch (const MeetingFailed& failure) {
      return std::string("error: ") + failure.what();
    }
  });
}

std::vector<std::string> come_all(const MeetingPoint& point, const std::vector<int>& ranks, int world) {
  std::vector<Outcome> outcomes;
  for (int rank : ranks) outcomes.push_back(come(point, rank, world));
  std::vector<std::string> texts;
  for (Outcome& outcome : outcomes) texts.push_back(outcome.get());
  return texts;
}

void expect_all(const std::vector<std::string>& texts, const std::string& expected) {
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

std::string at(const MeetingPoint& point) { return "127.0.0.1:" + std::to_string(point.port); }

TEST(Rendezvous, AllCome) {
  for (int world : {1, 2, 3, 8, 16}) {
    std::vector<int> ranks(world);
    for (int rank = 0; rank < world; ++rank) ranks[rank] = world - 1 - rank;  // rank 0 last: the others wait for it
    expect_all(come_all(free_point(30), ranks, world), "the id");
  }
}

TEST(Rendezvous, OneJobAfterTheOtherOnOnePort) {
  const MeetingPoint point = free_point(30);
  for (int job = 0; job < 5; ++job) expect_all(come_all(point, {0, 1, 2}, 3), "the id");
}

TEST(Rendezvous, AnAddressMayBeAName) {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) GTEST_SKIP() << "localhost has no address here";
  freeaddrinfo(found);
  MeetingPoint point = free_point(30);
  point.address = "localhost";
  expect_all(come_all(point, {1, 0}, 2), "the id");
}

TEST(Rendezvous, WhoIsMissingIsCounted) {
  const MeetingPoint point = free_point(3);
  expect_all(come_all(point, {0, 2}, 4), "error: 2 of 4 ranks reached " + at(point) +
                                             " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 2, ranks 1, 3");
  expect_all(come_all(point, {0, 2, 1}, 4),
             "error: 3 of 4 ranks reached " + at(point) + " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 1, rank 3");
  expect_all(come_all(point, {0}, 16), "error: 1 of 16 ranks reached " + at(point) +
                                           " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 15, ranks 1, 2, 3, 4, 5, 6, "
                                           "7, 8, …");
}

TEST(Rendezvous, RankZeroIsMissing) {
  const MeetingPoint point = free_point(3);
  expect_all(come_all(point, {1, 2}, 3), "error: rank 0 cannot be reached at MASTER_ADDR:MASTER_PORT, " + at(point) +
                                             ", within 3 s (WORKSHOP_JOIN_TIMEOUT): Connection refused");
}

TEST(Rendezvous, ARankTwice) {
  for (int world : {3, 4, 8}) {
    expect_all(come_all(free_point(30), {0, 2, 2}, world),
               "error: two processes claim to be rank 2 of " + std::to_string(world));
  }
}

TEST(Rendezvous, RankZeroTwice) {
  const MeetingPoint point = free_point(3);
  const std::vector<std::string> texts = come_all(point, {0, 0}, 2);
  const auto late = [&](const std::string& text) {
    return text == "error: rank 0 cannot listen on port " + std::to_string(point.port) +
                       ": Address already in use; another job uses it, or another process is rank 0 too";
  };
  EXPECT_EQ(std::count_if(texts.begin(), texts.end(), late), 1) << texts[0] << "\n" << texts[1];
}

TEST(Rendezvous, OtherNumbersOfRanks) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 4), guest = come(point, 1, 8);
  const std::string expected = "error: rank 1 has WORLD_SIZE 8, but rank 0 has 4";
  EXPECT_EQ(host.get(), expected);
  EXPECT_EQ(guest.get(), expected);
}

std::string not_rank_0(int port) {
  return "error: the process that listens at MASTER_ADDR:MASTER_PORT, 127.0.0.1:" + std::to_string(port) +
         ", is not this job's rank 0; each job needs its own MASTER_PORT, and all its ranks need the same "
         "WORKSHOP_JOB_TOKEN";
}

// A connection without the key is rejected, whatever rank and world size it claims.
TEST(Rendezvous, WhoDoesNotKnowTheKeyIsTurnedAway) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 3), first = come(point, 1, 3);
  for (const char* key : {"", "kez", "key2"}) {
    for (int world : {3, 8}) EXPECT_EQ(come(point, 2, world, key).get(), not_rank_0(point.port));
  }
  EXPECT_EQ(come(point, 2, 3).get(), "the id");
  EXPECT_EQ(first.get(), "the id");
  EXPECT_EQ(host.get(), "the id");
}

TEST(Rendezvous, WhoWasTurnedAwayIsCounted) {
  const MeetingPoint point = free_point(2);
  Outcome host = come(point, 0, 2);
  come(point, 1, 2, "another key").get();
  EXPECT_EQ(host.get(), "error: 1 of 2 ranks reached " + at(point) +
                            " within 2 s (WORKSHOP_JOIN_TIMEOUT); missing: 1, rank 1; disconnected without this job's "
                            "WORKSHOP_JOB_TOKEN: 1");
}

// An overheard meeting cannot be replayed in another meeting, neither as a rank nor as rank 0.
TEST(Rendezvous, AProofHoldsOnce) {
  const Nonce challenge = make_nonce(), nonce = make_nonce();
  const std::string hello = make_hello("key", challenge, {1, 2, nonce});
  EXPECT_TRUE(read_hello("key", challenge, hello));
  EXPECT_FALSE(read_hello("key", make_nonce(), hello));
  const std::string answer = make_answer("key", nonce, {true, "the id"});
  EXPECT_EQ(read_answer("key", nonce, answer).value().text, "the id");
  EXPECT_FALSE(read_answer("key", make_nonce(), answer));
  EXPECT_FALSE(read_answer("another key", nonce, answer));
}

TEST(Rendezvous, NothingOfAMessageCanBeChanged) {
  const Nonce challenge = make_nonce(), nonce = make_nonce();
  std::string hello = make_hello("key", challenge, {1, 2, nonce});
  std::string answer = make_answer("key", nonce, {true, "the id"});
  for (char& byte : hello) {
    byte ^= 1;
    EXPECT_FALSE(read_hello("key", challenge, hello));
    byte ^= 1;
  }
  for (char& byte : answer) {
    byte ^= 1;
    EXPECT_FALSE(read_answer("key", nonce, answer));
    byte ^= 1;
  }
  EXPECT_FALSE(read_hello("key", challenge, hello + "x"));
  EXPECT_FALSE(read_answer("key", nonce, answer.substr(1)));
}

// RFC 4231, test cases 2 and 6.
TEST(Hmac, KnownValues) {
  const auto hex = [](const Proof& proof) {
    std::string text;
    for (const unsigned byte : proof)
      text += std::string(1, "0123456789abcdef"[byte >> 4]) + "0123456789abcdef"[byte & 15];
    return text;
  };
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// More silent connections than rank 0 may have open files.
TEST(Rendezvous, SilentCrowd) {
  const MeetingPoint point = free_point(30);
  const pid_t host = fork();
  if (host == 0) {
    alarm(40);
    const rlimit few{200, 200};
    setrlimit(RLIMIT_NOFILE, &few);
    _exit(meet(point, "key", 0, 3, "the id") == "the id" ? 0 : 1);
  }
  std::vector<std::unique_ptr<PlainSocket>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<PlainSocket>(point.port));
  Outcome first = come(point, 1, 3);
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<PlainSocket>(point.port));
  EXPECT_EQ(come(point, 2, 3).get(), "the id");
  EXPECT_EQ(first.get(), "the id");
  int status = -1;
  waitpid(host, &status, 0);
  EXPECT_EQ(status, 0);
}

// A rank that has not yet spoken when rank 0 runs out of room for unknown connections is disconnected with them, and
// connects again.
TEST(Rendezvous, OneOfTheCrowd) {
  const PlainSocket rank_0(0);
  Outcome rank = come({"127.0.0.1", rank_0.port(), 30}, 1, 2);
  { PlainSocket turned_out = rank_0.let_in(); }
  PlainSocket guest = rank_0.let_in();
  const Nonce challenge = make_nonce();
  guest.say(make_challenge(challenge));
  const auto hello = read_hello("key", challenge, guest.hear(kHelloSize));
  guest.say(make_answer("key", hello.value().nonce, {true, "the id"}));
  EXPECT_EQ(rank.get(), "the id");
}

// A connection that sends nothing, or an incomplete message, is soon closed.
TEST(Rendezvous, TheSilentAreTurnedOut) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 2);
  PlainSocket silent(point.port), halting(point.port);
  halting.say("ws-meet2 ");
  const auto start = std::chrono::steady_clock::now();
  silent.wait_for_end();
  halting.wait_for_end();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(come(point, 1, 2).get(), "the id");
  EXPECT_EQ(host.get(), "the id");
}

TEST(Rendezvous, StrangersDoNotDisturb) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 3);
  { PlainSocket gone(point.port); }
  PlainSocket silent(point.port), browser(point.port), slow(point.port), longwinded(point.port);
  browser.say("GET / HTTP/1.0\r\n\r\n");
  slow.say("ws-");  // how a rank begins
  longwinded.say(std::string(100'000, 'x'));
  Outcome first = come(point, 1, 3);
  slow.say("and then something else");
  EXPECT_EQ(come(point, 2, 3).get(), "the id");
  EXPECT_EQ(first.get(), "the id");
  EXPECT_EQ(host.get(), "the id");
}

TEST(Rendezvous, ARankThatEndsEarly) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 3);
  {
    PlainSocket second(point.port);
    const auto challenge = read_challenge(second.hear(kChallengeSize));
    second.say(make_hello("key", challenge.value(), {2, 3, make_nonce()}));
  }
  EXPECT_EQ(host.get(), "error: rank 2 ended before all ranks arrived");
}

TEST(Rendezvous, WrongAddresses) {
  // Without a name server this may take until the timeout.
  const std::string unknown = come({"no.such.host.invalid", 29500, 1}, 1, 2).get();
  EXPECT_NE(unknown.find("MASTER_ADDR"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("no.such.host.invalid"), std::string::npos) << unknown;
  PlainSocket other(0);  // another process listens there
  Outcome rank = come({"127.0.0.1", other.port(), 5}, 1, 2);
  other.answer("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n");
  EXPECT_EQ(rank.get(), not_rank_0(other.port()));
}

TEST(Rendezvous, RankZeroIsStopped) {
  PlainSocket silent(0);
  const MeetingPoint point{"127.0.0.1", silent.port(), 1};
  EXPECT_EQ(come(point, 1, 2).get(), "error: rank 0 at MASTER_ADDR:MASTER_PORT, " + at(point) +
                                         ", did not answer within 1 s (WORKSHOP_JOIN_TIMEOUT)");
}

}  // namespace
}  // namespace workshop
