// SPDX-License-Identifier: Apache-2.0
// The watchdogs' notes: which messages are accepted, and over which addresses they travel.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/watchdog/note_exchange.h"
#include "common/watchdog/note_message.h"

namespace workshop {
namespace {

constexpr std::uint64_t kJob = (std::uint64_t{1} << 60) + 1;

Note a_note(int rank) {
  return {rank,
          1.5,
          "cudaStreamSynchronize(stream)",
          "02_ddp/ddp.cu:7",
          "",
          {{"ncclAllReduce", "world", ~std::uint64_t{0}, 3, 64, "float32", -1, "02_ddp/ddp.cu:5", false}},
          {{~std::uint64_t{0}, rank, 3}}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << text;
  return text.replace(text.find(from), from.size(), to);
}

TEST(Notes, ThereAndBack) {
  const std::string message = make_note_message(kJob, a_note(1));
  const auto note = read_note_message(kJob, 2, message);
  ASSERT_TRUE(note);
  EXPECT_EQ(make_note_message(kJob, *note), message);
  EXPECT_EQ(note->calls.at(0).communicator_id, ~std::uint64_t{0});
}

TEST(Notes, OfAnotherJob) {
  const std::string message = make_note_message(kJob, a_note(1)), job = std::to_string(kJob);
  EXPECT_FALSE(read_note_message(kJob + 1, 2, message));
  // As floating-point numbers these are equal.
  for (const char* other : {"1152921504606846976", "1152921504606846976.0", "1.152921504606846977e18"}) {
    EXPECT_FALSE(read_note_message(kJob, 2, replaced(message, job, other))) << other;
  }
}

TEST(Notes, WhatIsNone) {
  const std::string message = make_note_message(kJob, a_note(1));
  EXPECT_FALSE(read_note_message(kJob, 1, message)) << "no such rank";
  for (const char* rank : {"-1", "1.5", "true", "4294967297", "\"1\"", "null"}) {
    EXPECT_FALSE(read_note_message(
        kJob, 2, replaced(message, "\"rank\":1,\"seconds\"", "\"rank\":" + std::string(rank) + ",\"seconds\"")))
        << rank;
  }
  EXPECT_FALSE(read_note_message(kJob, 2, ""));
  EXPECT_FALSE(read_note_message(kJob, 2, std::string(60'000, '[')));
  const std::string nested = std::string(30'000, '[') + std::string(30'000, ']');
  EXPECT_FALSE(read_note_message(kJob, 2, replaced(message, "\"error\":\"\"", "\"error\":\"\",\"more\":" + nested)));
}

TEST(Notes, AnErrorInAnyEncodingCanBeSent) {
  Note note = a_note(0);
  note.error = "\xff\xfe";
  EXPECT_TRUE(read_note_message(kJob, 1, make_note_message(kJob, note)));
}

TEST(Notes, InterfacesOfAJob) {
  const Ranks one_node{0, 2, 0, 2, "none", false}, two_nodes{0, 2, 0, 1, "none", false};
  const auto chosen = [](const char* variable, const Ranks& ranks) {
    const auto env = [variable](const char*) { return variable; };
    std::string names;
    for (const char* name : {"lo", "eth0", "eth1", "ib0"}) {
      if (uses_interface(env, ranks, name, name == std::string("lo"))) names += std::string(name) + " ";
    }
    return names;
  };
  EXPECT_EQ(chosen(nullptr, one_node), "lo ");
  EXPECT_EQ(chosen("eth0", one_node), "lo ");
  EXPECT_EQ(chosen(nullptr, two_nodes), "eth0 eth1 ib0 ");
  EXPECT_EQ(chosen("eth", two_nodes), "eth0 eth1 ");
  EXPECT_EQ(chosen("eth1,ib", two_nodes), "eth1 ib0 ");
  EXPECT_EQ(chosen("=eth,ib0", two_nodes), "ib0 ");
  EXPECT_EQ(chosen("^eth", two_nodes), "lo ib0 ");
  EXPECT_EQ(chosen("^=eth0,lo", two_nodes), "eth1 ib0 ");
  EXPECT_EQ(chosen("lo", two_nodes), "lo ");
}

// Returns the local addresses of the UDP sockets with this port.
std::vector<std::string> bound_to(in_port_t port) {
  std::ifstream table("/proc/net/udp");
  std::string line;
  std::vector<std::string> addresses;
  char number[8];
  std::snprintf(number, sizeof number, ":%04X", ntohs(port));
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string entry, local;
    words >> entry >> local;
    if (local.ends_with(number)) addresses.push_back(local.substr(0, 8));
  }
  return addresses;
}

TEST(Notes, SocketsAreBoundToTheJobsInterfacesAlone) {
  NoteExchange exchange;
  const auto address = exchange.open({0, 2, 0, 2, "none", false});
  EXPECT_EQ(address.sockets[0].host, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(address.sockets[1].host, 0u);
  const in_addr_t loopback = htonl(INADDR_LOOPBACK);
  char expected[16];
  std::snprintf(expected, sizeof expected, "%08X", loopback);
  const auto found = bound_to(address.sockets[0].port);
  EXPECT_EQ(std::count(found.begin(), found.end(), expected), 1);
  EXPECT_EQ(std::count(found.begin(), found.end(), "00000000"), 0);
}

}  // namespace
}  // namespace workshop
