// SPDX-License-Identifier: Apache-2.0
// The watchdog's verdict on the notes of stuck ranks.
#include "common/watchdog/verdict.h"

#include <gtest/gtest.h>

#include <utility>

namespace workshop {
namespace {

constexpr std::uint64_t kWorld = 7, kPair = 8;

CallNote collective(std::int64_t number, const std::string& operation, std::uint64_t count, bool completed = false) {
  return {operation, "world", kWorld, number, count, "float32", -1, "a.cu:1", completed};
}

CallNote message(const std::string& operation, int peer, std::uint64_t count = 4) {
  return {operation, "pair", kPair, 1, count, "float32", peer, "a.cu:2", false};
}

CallNote of_world(CallNote call) {
  call.communicator = "world", call.communicator_id = kWorld;
  return call;
}

// Returns the note of a rank that has made `collectives` calls on the world communicator and is rank `rank` - 2 of a
// communicator of ranks 2 and 3.
Note note(int rank, std::int64_t collectives, std::vector<CallNote> calls, const std::string& in_call = "") {
  return {rank,
          1.5,
          in_call,
          in_call.empty() ? "" : "a.cu:3",
          "",
          std::move(calls),
          {{kWorld, rank, collectives}, {kPair, rank - 2, 0}}};
}

bool starts_with(const std::string& text, const std::string& beginning) { return text.starts_with(beginning); }

TEST(Verdict, DifferentCountsOperationsAndRoots) {
  const CallNote sum = collective(3, "ncclAllReduce", 8);
  CallNote rooted = collective(3, "ncclBroadcast", 8), other_root = rooted;
  rooted.peer = 0, other_root.peer = 1;
  const auto verdict = [](const CallNote& a, const CallNote& b) {
    return find_verdict({note(0, 3, {a}), note(1, 3, {b})}, 2);
  };
  EXPECT_EQ(verdict(sum, collective(3, "ncclAllReduce", 4)),
            "different counts: rank 0 calls ncclAllReduce of 8 float32 (collective 3 of 'world', a.cu:1), "
            "rank 1 calls ncclAllReduce of 4 float32 (collective 3 of 'world', a.cu:1)");
  EXPECT_PRED2(starts_with, verdict(sum, rooted), "different operations: ");
  EXPECT_PRED2(starts_with, verdict(rooted, other_root), "different roots: ");
}

TEST(Verdict, TheFirstDifferenceCounts) {
  const Note a = note(0, 3, {collective(2, "ncclAllReduce", 8, true), collective(3, "ncclAllReduce", 1)});
  const Note b = note(1, 3, {collective(2, "ncclAllReduce", 4, true), collective(3, "ncclBroadcast", 1)});
  EXPECT_PRED2(starts_with, find_verdict({a, b}, 2), "different counts: rank 0 calls ncclAllReduce of 8");
}

CallNote at(CallNote call, const std::string& place) {
  call.place = place;
  return call;
}

// Rank 1 leaves out a call that looks like its next ones, so only a later call does not match.
TEST(Verdict, ACallThatOneRankLeavesOutAmongOthersAlike) {
  const auto sum = [](std::int64_t number, const std::string& place) {
    return at(collective(number, "ncclAllReduce", 8, true), place);
  };
  const auto large = [](std::int64_t number) { return at(collective(number, "ncclAllReduce", 99), "a.cu:40"); };
  const Note a = note(0, 5, {sum(1, "a.cu:9"), sum(2, "a.cu:10"), sum(3, "a.cu:20"), sum(4, "a.cu:30"), large(5)});
  const Note b = note(1, 4, {sum(1, "a.cu:9"), sum(2, "a.cu:20"), sum(3, "a.cu:30"), large(4)});
  const std::string expected =
      "missing call: rank 1 skips the call that rank 0 makes, ncclAllReduce of 8 float32 (collective 2 of 'world', "
      "a.cu:10), and goes on to ncclAllReduce of 8 float32 (collective 2 of 'world', a.cu:20)";
  EXPECT_EQ(find_verdict({a, b}, 2), expected);
  EXPECT_EQ(find_verdict({b, a}, 2), expected);
}

TEST(Verdict, ACallThatOneRankLeavesOut) {
  const Note a = note(0, 3, {collective(2, "ncclAllReduce", 8), collective(3, "ncclBroadcast", 1)});
  const Note b = note(1, 2, {collective(2, "ncclBroadcast", 1)});
  EXPECT_PRED2(starts_with, find_verdict({a, b}, 2),
               "missing call: rank 1 skips the call that rank 0 makes, ncclAllReduce of 8");
  EXPECT_PRED2(starts_with, find_verdict({b, a}, 2),
               "missing call: rank 1 skips the call that rank 0 makes, ncclAllReduce of 8");
}

TEST(Verdict, ARankThatDoesNotAnswer) {
  const Note a = note(0, 2, {collective(2, "ncclAllReduce", 8)});
  EXPECT_PRED2(starts_with, find_verdict({a}, 3), "missing rank: ranks 1, 2 do not answer");
}

TEST(Verdict, ACallThatWasNotMade) {
  const Note a = note(0, 2, {collective(2, "ncclAllReduce", 8)});
  const std::string verdict = find_verdict({a, note(1, 1, {}, "cudaFree")}, 2);
  EXPECT_PRED2(starts_with, verdict,
               "missing call: rank 1 has not made the call that rank 0 waits in, ncclAllReduce of 8");
  EXPECT_TRUE(verdict.ends_with("; it is in cudaFree (a.cu:3)")) << verdict;
}

TEST(Verdict, Messages) {
  const auto verdict = [](const CallNote& a, const CallNote& b) {
    return find_verdict({note(2, 0, {a}), note(3, 0, {b})}, 4);
  };
  EXPECT_PRED2(starts_with, verdict(message("ncclSend", 1), message("ncclRecv", 0, 5)), "different counts: ");
  const auto of_all = [](const CallNote& a, const CallNote& b) {
    return find_verdict({note(0, 0, {}), note(1, 0, {}), note(2, 0, {a}), note(3, 0, {b})}, 4);
  };
  EXPECT_PRED2(starts_with, of_all(message("ncclSend", 1), message("ncclSend", 0)), "all send first: ranks 2, 3 ");
  EXPECT_PRED2(starts_with, of_all(message("ncclRecv", 1), message("ncclRecv", 0)), "all receive first: ranks 2, 3 ");
  EXPECT_PRED2(starts_with, of_all(message("ncclRecv", 1), collective(1, "ncclAllReduce", 1)), "missing call: ");
}

// In a ring of three ranks, each rank sends to the one from which it also receives.
TEST(Verdict, MessagesOfAGroupToTheWrongRank) {
  const auto rank = [](int number, int sends_to, int receives_from) {
    return note(number, 0, {of_world(message("ncclSend", sends_to)), of_world(message("ncclRecv", receives_from))});
  };
  EXPECT_PRED2(starts_with, find_verdict({rank(0, 2, 2), rank(1, 0, 0), rank(2, 1, 1)}, 3),
               "missing call: no rank receives what rank 0 sends in ncclSend of 4 float32 to rank 2 of 'world'");
  EXPECT_PRED2(starts_with, find_verdict({rank(0, 1, 2), rank(1, 2, 0), rank(2, 0, 1)}, 3), "all send first: ");
}

TEST(Verdict, ARankThatKeepsAWholePipelineWaiting) {
  const auto receive = [](int peer) { return of_world(message("ncclRecv", peer)); };
  EXPECT_PRED2(starts_with, find_verdict({note(0, 0, {receive(1)}), note(1, 0, {receive(2)}), note(2, 0, {})}, 3),
               "missing call: no rank sends what rank 1 receives in ncclRecv of 4 float32 from rank 2 of 'world'");
}

TEST(Verdict, ACircleOfCallsThatFitTogether) {
  // Rank 0 reduces, then sends. Rank 1 receives this message first, then reduces.
  const CallNote sum = collective(1, "ncclAllReduce", 8);
  const std::vector<Note> notes = {note(0, 1, {sum, of_world(message("ncclSend", 1))}),
                                   note(1, 1, {of_world(message("ncclRecv", 0)), sum})};
  const std::string verdict = find_verdict(notes, 2);
  EXPECT_PRED2(starts_with, verdict, "deadlock: rank 0 waits in ncclAllReduce of 8 float32 (collective 1 of 'world'");
  EXPECT_NE(verdict.find("for rank 1; rank 1 waits in ncclRecv of 4 float32 from rank 0"), std::string::npos)
      << verdict;
}

TEST(Verdict, CallsThatFitTogether) {
  const CallNote call = collective(1, "ncclAllReduce", 8);
  EXPECT_PRED2(starts_with, find_verdict({note(0, 1, {call}), note(1, 1, {call})}, 2), "the calls of the ranks match");
}

TEST(Verdict, LineOfARank) {
  EXPECT_EQ(
      describe(note(1, 2, {collective(1, "ncclAllReduce", 8, true), message("ncclRecv", 0)}, "cudaFree")),
      "rank 1 waits in ncclRecv of 4 float32 from rank 0 of 'pair' (number 1, a.cu:2) for 1.5 s; the program is in "
      "cudaFree (a.cu:3); last completed: ncclAllReduce of 8 float32 (collective 1 of 'world', a.cu:1)");
  EXPECT_EQ(describe(note(0, 0, {})),
            "rank 0 waits in no NCCL call or other call: its own code runs; last completed: none");
}

}  // namespace
}  // namespace workshop
