// SPDX-License-Identifier: Apache-2.0
// Ranks that launch NCCL calls of several communicators in different orders.
#include "common/nccl/launch_order.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "04_pipeline/schedule.h"

namespace workshop {
namespace {

constexpr std::uint64_t kA = 1, kB = 2, kC = 3;

// Writes down what a rank launches.
class Rank {
 public:
  using Operations = std::vector<LaunchedOperation>;

  // One launch of these operations.
  Rank& launch(const Operations& group) {
    for (LaunchedOperation o : group) {
      o.launch = launches_;
      log_.push_back(o);
    }
    ++launches_;
    return *this;
  }
  operator Operations() const { return log_; }

 private:
  Operations log_;
  int launches_ = 0;
};

LaunchedOperation sum(std::uint64_t communicator, std::int64_t number = 1) {
  return {.communicator = communicator, .number = number};
}
LaunchedOperation beside(LaunchedOperation o) {
  o.runs_beside_others = true;
  return o;
}
LaunchedOperation message(std::uint64_t communicator, int sender, int receiver, std::int64_t number = 1) {
  return {.communicator = communicator, .sender = sender, .receiver = receiver, .number = number};
}

// "0: A1 < B1, 1: B1 < A1": each rank launches the first before the second.
std::string circle(const std::vector<std::vector<LaunchedOperation>>& logs) {
  const auto name = [](const LaunchedOperation& o) {
    return std::string(1, static_cast<char>('A' + o.communicator - 1)) + std::to_string(o.number);
  };
  std::string text;
  for (const LaunchOrder& order : find_circle(logs)) {
    text +=
        (text.empty() ? "" : ", ") + std::to_string(order.rank) + ": " + name(order.first) + " < " + name(order.second);
  }
  return text;
}

TEST(LaunchOrder, NothingToCompare) {
  EXPECT_EQ(circle({}), "");
  EXPECT_EQ(circle({{}, {}}), "");
  EXPECT_EQ(circle({Rank().launch({sum(kA)}).launch({sum(kB)})}), "");
}

TEST(LaunchOrder, TheSameOrderOrAGroup) {
  const Rank both = Rank().launch({sum(kA)}).launch({sum(kB)}).launch({sum(kA, 2)});
  EXPECT_EQ(circle({both, both, both}), "");
  EXPECT_EQ(circle({both, Rank().launch({sum(kB), sum(kA)}).launch({sum(kA, 2)})}), "");
}

TEST(LaunchOrder, TwoRanksTwoOrders) {
  EXPECT_EQ(circle({Rank().launch({sum(kA)}).launch({sum(kB)}), Rank().launch({sum(kB)}).launch({sum(kA)})}),
            "0: A1 < B1, 1: B1 < A1");
  // The first step is right, and rank 0 has nothing to do with it.
  EXPECT_EQ(circle({Rank().launch({sum(kC)}), Rank().launch({sum(kC)}).launch({sum(kA)}).launch({sum(kB)}),
                    Rank().launch({sum(kC)}).launch({sum(kB)}).launch({sum(kA)})}),
            "1: A1 < B1, 2: B1 < A1");
  // Other calls in between.
  EXPECT_EQ(circle({Rank().launch({sum(kA)}).launch({sum(kC)}).launch({sum(kB)}),
                    Rank().launch({sum(kB)}).launch({sum(kC)}).launch({sum(kA)})}),
            "0: A1 < B1, 1: B1 < A1");
}

// Rank 0 only waits for ranks 1 and 2, which wait for each other.
TEST(LaunchOrder, ARankThatLeadsToTheCircleIsNotInIt) {
  EXPECT_EQ(circle({Rank().launch({sum(kC)}), Rank().launch({sum(kA)}).launch({sum(kB)}).launch({sum(kC)}),
                    Rank().launch({sum(kB)}).launch({sum(kA)})}),
            "1: A1 < B1, 2: B1 < A1");
}

TEST(LaunchOrder, ThreeRanksInACircle) {
  EXPECT_EQ(circle({Rank().launch({sum(kA)}).launch({sum(kC)}), Rank().launch({sum(kB)}).launch({sum(kA)}),
                    Rank().launch({sum(kC)}).launch({sum(kB)})}),
            "0: A1 < C1, 1: B1 < A1, 2: C1 < B1");
}

TEST(LaunchOrder, Messages) {
  const LaunchedOperation up = message(kA, 0, 1), down = message(kA, 1, 0);
  EXPECT_EQ(circle({Rank().launch({up}).launch({down}), Rank().launch({up}).launch({down})}), "");
  EXPECT_EQ(circle({Rank().launch({up}).launch({down}), Rank().launch({down}).launch({up})}), "0: A1 < A1, 1: A1 < A1");
  EXPECT_EQ(circle({Rank().launch({up, down}), Rank().launch({down}).launch({up})}), "");
  const LaunchedOperation itself = message(kA, 0, 0);
  EXPECT_EQ(circle({Rank().launch({itself, itself})}), "");
  EXPECT_EQ(circle({Rank().launch({up}).launch({sum(kB)}), Rank().launch({sum(kB)}).launch({up})}),
            "0: A1 < B1, 1: B1 < A1");
  // A group is done when all of it is: the message to rank 1 does not wait for that from rank 2.
  EXPECT_EQ(circle({Rank().launch({up, message(kA, 2, 0)}), Rank().launch({up}).launch({message(kA, 1, 2)}),
                    Rank().launch({message(kA, 1, 2)}).launch({message(kA, 2, 0)})}),
            "");
}

TEST(LaunchOrder, BesideOthers) {
  const LaunchedOperation a = sum(kA), b = beside(sum(kB)), second = beside(sum(kB, 2));
  EXPECT_EQ(circle({Rank().launch({a}).launch({b}), Rank().launch({b}).launch({a})}), "");
  // It holds up no others, but is held up by them, and by itself.
  EXPECT_EQ(
      circle({Rank().launch({sum(kC)}).launch({a}).launch({b}), Rank().launch({b}).launch({a}).launch({sum(kC)})}),
      "0: C1 < A1, 1: A1 < C1");
  EXPECT_EQ(circle({Rank().launch({b}).launch({second}), Rank().launch({second}).launch({b})}),
            "0: B1 < B2, 1: B2 < B1");
  // Two communicators that run beside others do so beside each other, too.
  const LaunchedOperation c = beside(sum(kC));
  EXPECT_EQ(circle({Rank().launch({b}).launch({c}).launch({a}), Rank().launch({a}).launch({c}).launch({b})}), "");
}

// What the stages of a pipeline launch in two steps (04_pipeline/pipeline.h), each channel on a communicator of its
// own. `others_beside`: all but the first run beside others.
std::vector<std::vector<LaunchedOperation>> launches_of(const Schedule& schedule, bool others_beside) {
  std::vector<std::vector<LaunchedOperation>> logs;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    Rank rank;
    std::map<std::tuple<std::uint64_t, int, int>, std::int64_t> numbers;
    const std::vector<Task> tasks = make_tasks(schedule, stage);
    for (int step = 0; step < 2; ++step) {
      for (const Task& task : tasks) {
        Rank::Operations group;
        for (const Instruction& i : task.instructions) {
          if (!is_message(i.kind)) continue;
          const int other = peer(schedule, stage, i);
          const int sender = is_send(i.kind) ? stage : other, receiver = is_send(i.kind) ? other : stage;
          const std::uint64_t on = kA + channel_of(schedule, stage, i);
          const LaunchedOperation o = message(on, sender, receiver, ++numbers[{on, sender, receiver}]);
          group.push_back(on != kA && others_beside ? beside(o) : o);
        }
        if (!group.empty()) rank.launch(group);
      }
    }
    logs.push_back(rank);
  }
  return logs;
}

TEST(LaunchOrder, Pipelines) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int micro_batches : {1, 2, 3, 4, 7, 8, 16, 24}) {
      EXPECT_EQ(circle(launches_of(gpipe(stages, micro_batches), false)), "") << stages << " " << micro_batches;
      const Schedule alternating = one_f_one_b(stages, micro_batches);
      EXPECT_EQ(circle(launches_of(alternating, true)), "") << stages << " " << micro_batches;
      EXPECT_EQ(circle(launches_of(zb_h1(stages, micro_batches), true)), "") << stages << " " << micro_batches;
      // As soon as there is a steady state, neighbors launch activations and gradients in different orders.
      EXPECT_EQ(circle(launches_of(alternating, false)).empty(), micro_batches <= 2) << stages << " " << micro_batches;
      for (int chunks = 1; chunks <= 3 && micro_batches % stages == 0; ++chunks) {
        EXPECT_EQ(circle(launches_of(interleaved(stages, micro_batches, chunks), true)), "")
            << stages << " " << micro_batches << " " << chunks;
      }
      if (micro_batches >= 2 * stages) {
        EXPECT_EQ(circle(launches_of(zb_v(stages, micro_batches), true)), "") << stages << " " << micro_batches;
      }
    }
  }
}

// A log holds a limited number of operations; what other ranks have logged beyond its end cannot be judged.
TEST(LaunchOrder, LogsThatEnd) {
  EXPECT_EQ(circle({Rank().launch({sum(kA)}).launch({sum(kB)}), Rank().launch({sum(kB)})}), "");
}

}  // namespace
}  // namespace workshop
