// How ranks meet without MPI: threads stand for the processes.
#include "common/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <thread>

namespace workshop {
namespace {

// A connection of somebody who may be anything but a rank, or, for port 0, a socket that listens on a free port.
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
  // Answers the first who comes.
  void answer(const std::string& text) {
    const int guest = accept(fd_, nullptr, nullptr);
    send(guest, text.data(), text.size(), MSG_NOSIGNAL);
    char buffer[256];
    while (recv(guest, buffer, sizeof buffer, 0) > 0) {
    }
    close(guest);
  }

 private:
  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_{};
};

MeetingPoint free_point(int seconds) { return {"127.0.0.1", PlainSocket(0).port(), seconds}; }

// What came of a rank: rank 0's message, or the error.
using Outcome = std::future<std::string>;
Outcome come(const MeetingPoint& point, int rank, int world, const std::string& job = "job") {
  return std::async(std::launch::async, [=]() -> std::string {
    try {
      return meet(point, job, rank, world, rank == 0 ? "the id" : "");
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
  MeetingPoint point = free_point(30);
  point.address = "localhost";
  expect_all(come_all(point, {1, 0}, 2), "the id");
}

TEST(Rendezvous, WhoIsMissingIsCounted) {
  const MeetingPoint point = free_point(3);
  expect_all(come_all(point, {0, 2}, 4), "error: 2 of 4 ranks came to " + at(point) +
                                             " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 2, ranks 1, 3");
  expect_all(come_all(point, {0, 2, 1}, 4),
             "error: 3 of 4 ranks came to " + at(point) + " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 1, rank 3");
  expect_all(come_all(point, {0}, 16), "error: 1 of 16 ranks came to " + at(point) +
                                           " within 3 s (WORKSHOP_JOIN_TIMEOUT); missing: 15, ranks 1, 2, 3, 4, 5, 6, "
                                           "7, 8, …");
}

TEST(Rendezvous, RankZeroIsMissing) {
  const MeetingPoint point = free_point(3);
  expect_all(come_all(point, {1, 2}, 3), "error: rank 0 is not to be found at MASTER_ADDR:MASTER_PORT, " + at(point) +
                                             ", within 3 s (WORKSHOP_JOIN_TIMEOUT): Connection refused");
}

TEST(Rendezvous, ARankTwice) {
  for (int world : {3, 4, 8}) {
    expect_all(come_all(free_point(30), {0, 2, 2}, world),
               "error: two processes say that they are rank 2 of " + std::to_string(world));
  }
}

TEST(Rendezvous, RankZeroTwice) {
  const MeetingPoint point = free_point(3);
  const std::vector<std::string> texts = come_all(point, {0, 0}, 2);
  const auto late = [&](const std::string& text) {
    return text == "error: rank 0 cannot listen on port " + std::to_string(point.port) +
                       ": Address already in use; another job uses it, or another process has rank 0 too";
  };
  EXPECT_EQ(std::count_if(texts.begin(), texts.end(), late), 1) << texts[0] << "\n" << texts[1];
}

TEST(Rendezvous, OtherNumbersOfRanks) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 4), guest = come(point, 1, 8);
  const std::string expected = "error: rank 1 says that WORLD_SIZE is 8, rank 0 that it is 4";
  EXPECT_EQ(host.get(), expected);
  EXPECT_EQ(guest.get(), expected);
}

TEST(Rendezvous, AnotherJobIsTurnedAway) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 2);
  EXPECT_EQ(come(point, 1, 2, "other").get(),
            "error: another job meets at " + at(point) + "; each job needs a MASTER_PORT of its own");
  EXPECT_EQ(come(point, 1, 2, "").get(), "the id");  // on a node where the job has no name
  EXPECT_EQ(host.get(), "the id");
}

TEST(Rendezvous, StrangersDoNotDisturb) {
  const MeetingPoint point = free_point(30);
  Outcome host = come(point, 0, 3);
  { PlainSocket gone(point.port); }
  PlainSocket silent(point.port), browser(point.port), slow(point.port), longwinded(point.port);
  browser.say("GET / HTTP/1.0\r\n\r\n");
  slow.say("ws-");  // as a rank begins
  longwinded.say(std::string(100'000, 'x'));
  Outcome first = come(point, 1, 3);
  slow.say("and then something else");
  EXPECT_EQ(come(point, 2, 3).get(), "the id");
  EXPECT_EQ(first.get(), "the id");
  EXPECT_EQ(host.get(), "the id");
}

TEST(Rendezvous, ARankThatEndsEarly) {
  const MeetingPoint point = free_point(30);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    meet(point, "job", 2, 3, "");
    _exit(0);
  }
  Outcome host = come(point, 0, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(host.get(), "error: rank 2 ended before all had come");
}

TEST(Rendezvous, WrongAddresses) {
  // Without a name server this may take until the time is over.
  const std::string unknown = come({"no.such.host.invalid", 29500, 1}, 1, 2).get();
  EXPECT_NE(unknown.find("MASTER_ADDR"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("no.such.host.invalid"), std::string::npos) << unknown;
  PlainSocket other(0);  // something else listens there
  Outcome rank = come({"127.0.0.1", other.port(), 5}, 1, 2);
  other.answer("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n");
  EXPECT_EQ(rank.get(), "error: what listens at MASTER_ADDR:MASTER_PORT, 127.0.0.1:" + std::to_string(other.port()) +
                            ", is not this job's rank 0");
}

}  // namespace
}  // namespace workshop
