// SPDX-License-Identifier: Apache-2.0
// Chapter 00. Every program checks its own results and ends with status 1 if they are wrong. These tests compare what
// it sends with the README's formulas.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/harness/expect.h"
#include "tools/shared/json.h"

namespace workshop::tests {
namespace {

const Path hello = solution("00_collectives/hello");
const Path collectives = solution("00_collectives/collectives");
const Path ring = solution("00_collectives/ring_allreduce");
const Path all_reduces = solution("00_collectives/all_reduces");
const Path bandwidth = solution("00_collectives/bandwidth");

// hello lists the ranks and their devices. It ends with status 1 if the job does not use all it was given; all other
// programs only warn about idle devices.
TESTS(hello) {
  ledger("solution.00.hello.2", on(2, hello), {{kAll, "ncclAllGather", 1, 248}});
  const auto add = [](const std::string& name, const Command& command, int status,
                      const std::vector<std::string>& regexes) {
    test("solution.00.hello." + name, {.ranks = command.ranks, .cpu_only = "as many devices as the test says"},
         [=] { expect_output(run(command), status, regexes); });
  };
  const Command three = on(3, hello).in("WORKSHOP_DEVICE_COUNT=3").in("SLURMD_NODENAME=node7");
  add("all_used", three, 0,
      {R"(^rank 2 of 3 on node7, local rank 2 of 3: device 2 of 3, CPU \(no GPU\), .* GiB, GPU-[0-9a-f-]{36}, bus 0000:02:00.0; no driver, NCCL 2\.)",
       R"(^  0 rank 0 +- +P2P\+ +P2P\+$)", R"(^  2 rank 2 +P2P\+ +P2P\+ +-$)",
       "^The job uses what it was given: nodes 1, ranks 3, devices 3$"});
  add("idle", on(2, hello).in("WORKSHOP_DEVICE_COUNT=4").in("SLURMD_NODENAME=node7"), 1,
      {R"(^warning: this node has 4 GPUs for this job and 2 ranks: 2 stay idle; .*\(mpirun -n 4\) or take 2)",
       "^  3 idle ", "^WRONG: node7 has 4 devices for this job, and its ranks use 2$"});
  add("shared", on(3, hello).in("WORKSHOP_DEVICE_COUNT=2"), 0, {"^  0 rank 0,2 ", "ranks 3, devices 2$"});
  // A batch script that starts the program without srun.
  add("without_srun",
      on(1, hello).in("SLURM_JOB_ID=1").in("SLURM_PROCID=0").in("SLURM_NTASKS=4").in("SLURM_JOB_NUM_NODES=2"), 1,
      {"^WRONG: Slurm has given the job 4 tasks, and 1 of them run this program: start it with srun$",
       "^WRONG: the job has 2 nodes, and its ranks are on 1$"});
}

// Every call has `count` floats per rank, except the all-reduce, which has `count` floats for each of the P ranks.
TESTS(collectives) {
  const auto add = [](int ranks, int count, int root) {
    const int bytes = 4 * count;
    std::vector<Traffic> expected = {{kAll, "ncclBroadcast", 1, bytes},
                                     {kAll, "ncclReduce", 1, bytes},
                                     {kAll, "ncclAllGather", 2, 2 * bytes},
                                     {kAll, "ncclReduceScatter", 2, 2 * bytes},
                                     {kAll, "ncclAllReduce", 1, ranks * bytes}};
    for (int rank = 0; rank < ranks; ++rank) {
      const int calls = rank == root ? 2 * ranks + 1 : ranks + 1;
      expected.push_back({rank, "ncclSend", calls, calls * bytes});
      expected.push_back({rank, "ncclRecv", calls, calls * bytes});
    }
    ledger(text("solution.00.collectives.count", count, ".root", root, ".", ranks),
           on(ranks, collectives, "--count", count, "--root", root), expected);
  };
  for (int ranks : {1, 2, 3, 4, 8}) add(ranks, 2, 0);
  add(3, 1, 2);
  add(4, 64, 1);
}

// In each half of the algorithm, every rank keeps one chunk of the vector and sends all others.
TESTS(ring) {
  const auto add = [](int ranks, int count) {
    const auto chunk = [=](int index) { return count / ranks + (index % ranks < count % ranks ? 1 : 0); };
    std::vector<Traffic> expected = {{kAll, "ncclAllReduce", 1, 4 * count}};
    for (int rank = 0; rank < ranks; ++rank) {
      const int messages = 2 * (ranks - 1);
      expected.push_back({rank, "ncclSend", messages, 4 * (2 * count - chunk(rank + 1) - chunk(rank + 2))});
      expected.push_back({rank, "ncclRecv", messages, 4 * (2 * count - chunk(rank) - chunk(rank + 1))});
    }
    ledger(text("solution.00.ring.count", count, ".", ranks), on(ranks, ring, "--count", count), expected);
  };
  for (int ranks : {1, 2, 3, 4, 8}) add(ranks, 1000);
  add(3, 100001);
  add(8, 5);
}

// Recursive doubling and the tree send whole vectors; in two levels, each rank sends a shard.
TESTS(all_reduces) {
  for (const auto& [ranks, on_node] :
       {std::pair{1, 1}, {2, 1}, {2, 2}, {3, 3}, {3, 1}, {4, 2}, {6, 3}, {8, 4}, {8, 2}}) {
    const int count = 1200, bytes = 4 * count, shard = count / on_node;
    const bool doubles = (ranks & (ranks - 1)) == 0;
    std::vector<Traffic> expected = {{kAll, "ncclReduceScatter", 1, 4 * shard}, {kAll, "ncclAllGather", 1, 4 * shard}};
    expected.push_back({kAll, "ncclAllReduce", 3, 2 * bytes + 4 * shard});
    for (int rank = 0; rank < ranks; ++rank) {
      int steps = 0, children = 0;
      for (int distance = 1; distance < ranks; distance *= 2) {
        steps += doubles ? 1 : 0;
        children += rank % (2 * distance) == 0 && rank + distance < ranks ? 1 : 0;
      }
      const int messages = steps + children + (rank > 0 ? 1 : 0);  // to the parent, to the children
      expected.push_back({rank, "ncclSend", messages, messages * bytes});
      expected.push_back({rank, "ncclRecv", messages, messages * bytes});
    }
    ledger(text("solution.00.all_reduces.", ranks, "ranks.", on_node, "_per_node"),
           on(ranks, all_reduces, "--count", count, "--ranks-per-node", on_node), expected);
  }
  refused("solution.00.all_reduces.bad", "--ranks-per-node is '2'; expected a divisor of the 3 ranks",
          on(3, all_reduces, "--ranks-per-node 2"));
}

// The formulas of math.md, for two nodes of four ranks.
TESTS(times) {
  test("solution.00.times", {.ranks = 8, .cpu_only = "simulates a machine"}, [] {
    const double a = 1e-6, b = 1e-9, A = 1e-5, B = 1e-8;  // α and β within a node and between nodes
    for (const int count : {8, 8000, 800000}) {
      const auto seconds = [&](const Path& program, const std::string& more) {
        const Run run = record(
            on(8, program, "--count", count, more).in("WORKSHOP_SIMULATE=link=1us+1G/s,node=4,between=10us+100M/s"),
            "run.jsonl");
        std::map<std::string, double> values;
        for (const auto& [rank_and_name, value] : run.record.values) values[rank_and_name.second] = value;
        return values;
      };
      const double n = 4.0 * count;
      auto found = seconds(all_reduces, "--ranks-per-node 4");
      const auto expect = [&](const std::string& name, double expected) {
        EXPECT_NEAR(found.at("seconds of " + name), expected, 0.001 * expected) << name << ", " << count;
      };
      expect("recursive doubling", 2 * (a + b * n) + A + B * n);
      expect("tree", 2 * (2 * (a + b * n) + A + B * n));
      expect("two levels", 2 * (3 * a + 3.0 / 4 * b * n) + 2 * A + B * n / 4);
      found = seconds(ring, "");
      expect("the ring", 14 * (A + B * n / 8));
    }
  });
}

// ---- bandwidth -----------------------------------------------------------------------------------------------------

using Json = nlohmann::json;

// Returns the sum of squared relative errors, which the fit of α and β minimizes.
double squared_error(const Json& measurements, double alpha, double beta) {
  double sum = 0;
  for (const Json& m : measurements) {
    const double seconds = m.at("seconds");
    const double relative = (alpha + beta * m.at("bytes").get<double>() - seconds) / seconds;
    sum += relative * relative;
  }
  return sum;
}

// Checks that every number follows from the measured times, and that no other α and β nearby fits them better.
void expect_fit(const Run& run, const std::string& path, std::size_t sizes, double bus_factor) {
  const Json json = tools::read_json(path);
  const Json& measurements = json.at("measurements");
  EXPECT_EQ(measurements.size(), sizes) << run.command;
  const auto expect_close = [&](const std::string& what, double found, double expected) {
    EXPECT_TRUE(std::abs(found - expected) <= 1e-6 * std::abs(expected))
        << report(run, text(what, " ", expected), text(found));
  };
  expect_close("the bus factor", json.at("bus_factor"), bus_factor);
  for (const Json& m : measurements) {
    const double algorithm = m.at("bytes").get<double>() / m.at("seconds").get<double>() / 1e9;
    expect_close("the algorithm bandwidth", m.at("algorithm_gb_per_s"), algorithm);
    expect_close("the bus bandwidth", m.at("bus_gb_per_s"), algorithm * bus_factor);
  }
  const double alpha = json.at("alpha_seconds"), beta = json.at("beta_seconds_per_byte");
  EXPECT_TRUE(alpha >= 0 && beta >= 0 && alpha + beta > 0)
      << report(run, "an alpha and a beta", text(alpha, " and ", beta));
  for (const double a : {0.99, 1.0, 1.01}) {
    for (const double b : {0.99, 1.0, 1.01}) {
      EXPECT_TRUE(squared_error(measurements, a * alpha, b * beta) >=
                  squared_error(measurements, alpha, beta) * (1 - 1e-6))
          << report(run, "the best fit", text("a better one with alpha·", a, " and beta·", b));
    }
  }
}

// The sizes are 4, 16, 64, 256 and 1,024 KiB, each with 3 warm-up and 2 timed calls. The program compares its measured
// times with the times that the host waits, which requires the real clock, not a simulated machine. Slow collectives
// make both times long compared with the delay of a host that wakes up on a busy machine.
TESTS(bandwidth) {
  const auto add = [](const std::string& op, int ranks, double bus_factor) {
    const int calls = (3 + 2) * 5, bytes = (3 + 2) * (4 + 16 + 64 + 256 + 1024) * 1024;
    const std::map<std::string, std::vector<Traffic>> ledgers = {
        {"all_reduce", {{kAll, "ncclAllReduce", calls, bytes}}},
        {"all_gather", {{kAll, "ncclAllGather", calls, bytes / ranks}}},
        {"reduce_scatter", {{kAll, "ncclReduceScatter", calls, bytes / ranks}}},
        {"broadcast", {{kAll, "ncclBroadcast", calls, bytes}}},
        {"send_recv", {{kAll, "ncclSend", calls, bytes}, {kAll, "ncclRecv", calls, bytes}}}};
    const Command command = on(ranks, bandwidth, "--op", op, "--max-mib 1 --iterations 2 --json bandwidth.json");
    test(text("solution.00.bandwidth.", op, ".", ranks), kCuda ? command : command.in("WORKSHOP_SLOW=collectives"),
         [=](const Run& run) {
           expect_ledger(run, ledgers.at(op));
           expect_fit(run, "bandwidth.json", 5, bus_factor);
         });
  };
  add("all_reduce", 1, 0);
  add("all_reduce", 2, 1);
  add("all_reduce", 4, 1.5);
  add("all_gather", 2, 0.5);
  add("all_gather", 4, 0.75);
  add("reduce_scatter", 4, 0.75);
  add("broadcast", 3, 1);
  add("send_recv", 1, 1);
  add("send_recv", 3, 1);
}

// On a simulated machine the fit must find the given α in seconds and β in seconds per byte.
TESTS(simulated) {
  const auto add = [](const std::string& name, const std::string& machine, int ranks, const std::string& op,
                      double alpha, double beta) {
    const Command command =
        on(ranks, bandwidth, "--op", op, "--min-kib 64 --max-mib 1 --iterations 2 --json bandwidth.json");
    test("solution.00.simulated." + name, {.ranks = ranks, .cpu_only = "only the cpu backend simulates"}, [=] {
      const Run run = succeed(command.in("WORKSHOP_SIMULATE=" + machine));
      const Json json = tools::read_json("bandwidth.json");
      const double found_alpha = json.at("alpha_seconds"), found_beta = json.at("beta_seconds_per_byte");
      EXPECT_TRUE(std::abs(found_alpha - alpha) <= 0.01 * alpha) << report(run, text(alpha), text(found_alpha));
      EXPECT_TRUE(std::abs(found_beta - beta) <= 0.01 * beta) << report(run, text(beta), text(found_beta));
    });
  };
  const std::string node = "link=5us+1G/s", nodes = node + ",node=2,between=20us+100M/s";
  add("send_recv", node, 3, "send_recv", 5e-6, 1e-9);
  add("all_reduce", node, 4, "all_reduce", 2 * 3 * 5e-6, 1.5e-9);
  add("all_gather", node, 4, "all_gather", 3 * 5e-6, 0.75e-9);
  add("two_nodes", nodes, 4, "all_gather", 3 * 20e-6, 0.75e-8);
  add("within_a_node", nodes, 2, "all_gather", 5e-6, 0.5e-9);
}

// Bad input: status 2 and one line that names the option, the value and the accepted values.
TESTS(bad) {
  const std::string bad = "solution.00.bad_input.";
  refusals(bad, on(2, collectives), R"(
    root_outside       | --root 2                        | --root is '2'; expected .* 0 to 1
    root_negative      | --root=-1                       | --root is '-1'; expected
    count_zero         | --count 0                       | --count is '0'; expected .* from 1 to 64
    training_option    | --lr 0.1                        | --lr
  )");
  refusals(bad, on(2, ring), "count_not_a_number | --count x | --count is 'x'; expected a whole number");
  refusals(bad, on(2, bandwidth), R"(
    unknown_op         | --op all                        | --op is 'all'; expected all_reduce, all_gather
    min_above_max      | --min-kib 4096 --max-mib 1      | --min-kib is '4096'; expected at most .* 1024 KiB
    no_iterations      | --iterations 0                  | --iterations is '0'; expected
    json_not_writable  | --json /nowhere/x.json          | --json is '/nowhere/x.json', which cannot be written: No such file
  )");
}

}  // namespace
}  // namespace workshop::tests
