// SPDX-License-Identifier: Apache-2.0
// Chapter 10: the parameter server. Asynchronous runs are repeatable from a record of who made each update.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path server = solution("10_less_communication/parameter_server");
const Path ddp = solution("02_ddp/ddp");
const std::string gpt = "--model gpt --words 2000 --width 16 --context 8 --log-every 0 --lr 0.01 --max-steps 12";

// The worker that made an update, and the staleness of its gradient.
struct Update {
  int worker;
  long staleness;
};

std::vector<Update> updates_of(const Run& run) {
  std::vector<Update> updates;
  const auto value = [&](const std::string& name) {
    const auto found = run.record.values.find({0, text(name, " of update ", updates.size())});
    return found == run.record.values.end() ? -1 : found->second;
  };
  while (value("worker") >= 0) {
    updates.push_back({static_cast<int>(value("worker")), static_cast<long>(value("staleness"))});
  }
  if (updates.empty()) fail(report(run, "a record of the updates", "none"));
  return updates;
}

// For each update, returns by how many updates its worker was ahead of the slowest when it received its parameters.
std::vector<long> leads(const std::vector<Update>& updates, int workers) {
  std::vector<std::vector<long>> made{std::vector<long>(workers + 1)};  // before update i, by worker
  std::vector<long> leads;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto& then = made.at(i - updates[i].staleness);
    leads.push_back(then[updates[i].worker] - *std::min_element(then.begin() + 1, then.end()));
    made.push_back(made.back());
    ++made.back()[updates[i].worker];
  }
  return leads;
}

// A single worker is never ahead or behind: it trains what one process trains.
TESTS(one_worker) {
  for (const std::string options : {"", "--optimizer adamw --validation-samples 101 --epochs 2"}) {
    same_training(text("solution.10.server_one_worker.", options.empty() ? "sgd" : "adamw"), kSameBits,
                  on(1, solution("01_single_gpu/mlp"), "--no-shuffle --layers 16,9,3 --activation gelu", options),
                  on(2, server, "--no-shuffle --layers 16,9,3 --activation gelu", options, "--staleness 0"));
  }
  const std::string bf16 = "--precision bf16 --no-shuffle --layers 16,9,3 --activation gelu";
  same_training("solution.bf16.server_one_worker", kSameBits, on(1, solution("01_single_gpu/mlp"), bf16),
                on(2, server, bf16, "--staleness 0"));
  const std::string regularized = "--dropout 0.2 --clip-norm 0.3 --warmup-steps 4 --lr-schedule cosine";
  same_training("solution.10.server_one_worker.gpt", kSameBits, on(1, ddp, gpt, regularized),
                on(2, server, gpt, regularized));
  same_training("solution.10.server_one_worker.shuffled", kSameBits, on(1, ddp, "--epochs 3"),
                on(2, server, "--epochs 3"));
}

// Any order of gradients can be replayed, by the same ranks and by one process.
TESTS(replay) {
  const struct {
    std::string name, options;
  } runs[] = {{"sgd", "--samples 1000 --epochs 2 --log-every 0 --batch-size 16 --validation-samples 40"},
              {"bounded", "--samples 1000 --epochs 2 --log-every 0 --batch-size 16 --staleness 1 --optimizer adamw"},
              {"bf16", "--precision bf16 --samples 1000 --epochs 2 --log-every 0 --batch-size 16 --optimizer adamw"},
              {"gpt", gpt + " --dropout 0.2 --clip-norm 0.3 --warmup-steps 4"}};
  for (const auto& run : runs) {
    test("solution.10.server_replay." + run.name, {.ranks = 4}, [=] {
      const Command command = on(4, server, run.options);
      const Run first = record(with(command, "--straggler 2:5"), "first.jsonl");
      const std::vector<Update> updates = updates_of(first);
      const Run again = record(with(command, "--replay first.jsonl"), "again.jsonl");
      expect_same_training(first, again, kSameBits);
      const std::vector<Update> same = updates_of(again);
      EXPECT_TRUE(std::ranges::equal(updates, same, [](const Update& a, const Update& b) {
        return a.worker == b.worker && a.staleness == b.staleness;
      })) << report(again, "the updates of the record", "others");
      const Path delayed_sgd{WORKSHOP_BUILD "/tests/chapters/delayed_sgd"};
      std::string alone = run.options;
      if (const auto at = alone.find("--staleness 1"); at != alone.npos) alone.erase(at, 13);
      expect_same_training(first,
                           record(on(1, delayed_sgd, alone, "--replay first.jsonl --workers-of-run 3"), "alone.jsonl"),
                           kSameBits);
    });
  }
}

// However slow a rank is, no worker starts a step further ahead than the bound σ, and some worker reaches it. While a
// worker computes, each of the K - 1 others makes at most 2σ + 1 updates. The order of arrival depends on the real
// clock, not on a simulated machine, so kernels are slow.
TESTS(staleness) {
  const int workers = 3;
  const Command slow =
      on(workers + 1, server, "--straggler 1:10 --epochs 2 --max-steps 40").in("WORKSHOP_SLOW=kernels");
  for (int bound : {0, 2}) {
    test(text("solution.10.server_staleness.", bound),
         {.ranks = workers + 1, .cpu_only = "WORKSHOP_SLOW is a setting of the cpu backend"}, [=] {
           const Run run = record(with(slow, "--staleness", bound));
           const std::vector<Update> updates = updates_of(run);
           EXPECT_EQ(updates.size(), 40u);
           EXPECT_EQ(std::ranges::max(leads(updates, workers)), bound) << run.command;
           const long most = std::ranges::max_element(updates, {}, &Update::staleness)->staleness;
           EXPECT_LE(most, (workers - 1) * (2 * bound + 1)) << run.command;
           // With a bound of 0 there are rounds: every worker makes one update, with the gradient at the start of the
           // round.
           for (std::size_t i = 0; bound == 0 && i < updates.size(); ++i) {
             EXPECT_EQ(updates[i].staleness, static_cast<long>(i % workers)) << run.command;
           }
         });
  }
  // Without a bound no worker waits for the slow one.
  test("solution.10.server_staleness.none",
       {.ranks = workers + 1, .cpu_only = "WORKSHOP_SLOW is a setting of the cpu backend"}, [=] {
         const Run run = record(slow);
         EXPECT_GT(std::ranges::max(leads(updates_of(run), workers)), 2) << run.command;
       });
}

// Without staleness, K updates equal a step of ddp with K times the learning rate: η Σ g instead of Kη · 1/K Σ g. The
// bound is that of chapter 02 for a parameter, with K times the learning rate.
TESTS(synchronous) {
  test("solution.10.server_is_ddp", {.ranks = 4}, [] {
    const std::string training = "--samples 960 --epochs 2 --log-every 0 --batch-size 32 --lr";
    const Run expected = record(on(3, ddp, training, 0.03));
    const Run found = record(on(4, server, training, 0.01, "--staleness 0"));
    ASSERT_EQ(expected.record.parameters.size(), found.record.parameters.size());
    for (std::size_t p = 0; p < expected.record.parameters.size(); ++p) {
      const tools::Tensor &a = expected.record.parameters[p], &b = found.record.parameters[p];
      ASSERT_EQ(a.values.size(), b.values.size());
      for (std::size_t i = 0; i < a.values.size(); ++i) {
        EXPECT_TRUE(std::fabs(a.values[i] - b.values[i]) <= 1.2e-4) << a.name << "[" << i << "] of " << found.command;
      }
    }
  });
}

// Traffic, as in the README: Ψ = 38 parameters, a message of 39 floats. Of 32 updates, each of two workers makes 16,
// taking turns.
TESTS(ledger) {
  const int message = 4 * 39;
  ledger("solution.10.ledger.parameter_server", on(3, server, "--order turns"),
         {{0, "ncclSend", 32 + 2, (32 + 2) * message},
          {0, "ncclRecv", 32, 32 * message},
          {1, "ncclRecv", 16 + 1, (16 + 1) * message},
          {1, "ncclSend", 16, 16 * message},
          {2, "ncclRecv", 16 + 1, (16 + 1) * message},
          {2, "ncclSend", 16, 16 * message}});
  test("solution.10.memory.parameter_server", on(3, server), [=](const Run& run) {
    expect_memory(run, 0, {{"parameters", 4 * 38}, {"gradients", 0}, {"optimizer", 0}, {"buckets", 2 * 2 * message}});
    for (int worker : {1, 2}) {
      expect_memory(
          run, worker,
          {{"parameters", message}, {"gradients", message}, {"optimizer", 0}, {"activations", 1792}, {"buckets", 0}});
    }
    for (const auto& [rank, host] : run.record.host) EXPECT_EQ(host.at("allocations"), 0) << run.command;
  });
}

TESTS(bad) {
  refusals("solution.10.bad.parameter_server.", on(3, server), R"(
    staleness      | --staleness -1               | --staleness is '-1'; expected a whole number of at least 0
    order          | --order random               | --order is 'random'; expected arrival, turns
    straggler      | --straggler 1                | --straggler is '1'; expected RANK:FACTOR, a worker from 1 to 2
    straggler_0    | --straggler 0:3              | --straggler is '0:3'; expected RANK:FACTOR, a worker from 1 to 2
    straggler_3    | --straggler 3:3              | --straggler is '3:3'; expected RANK:FACTOR, a worker from 1 to 2
    straggler_less | --straggler 1:0              | --straggler is '1:0'; expected RANK:FACTOR
    straggler_text | --straggler 1:2x             | --straggler is '1:2x'; expected RANK:FACTOR
    no_replay      | --replay nowhere             | --replay: nowhere: .*; expected the --record of a run of
    two_orders     | --replay a --order turns     | --order and --replay are two orders; expected one
    checkpoints    | --checkpoints saved          | --checkpoints
  )");
  refused("solution.10.bad.parameter_server.alone", "needs a server and a worker; .* 1 rank, expected at least 2",
          on(1, server));
  test("solution.10.bad.parameter_server.replay", {.ranks = 3}, [] {
    const Command command = on(3, server, "--max-steps 9 --log-every 0");
    record(with(command, "--order turns"), "turns.jsonl");
    const auto refuses = [](const Command& again, const std::string& regex) { expect_one_line(run(again), 2, regex); };
    refuses(with(command, "--replay turns.jsonl --staleness 0"),
            "^error: --replay: update 2 cannot be worker 1's: its staleness is 0; expected a record of a run with the "
            "same");
    refuses(with(command, "--replay turns.jsonl --max-steps 8"),
            "^error: --replay is 'turns.jsonl', which has 9 updates; expected the run's number, 8");
    refuses(with(on(2, server), "--replay turns.jsonl"), "turns.jsonl: update 1 is by no worker of this run");
    record(on(3, ddp), "ddp.jsonl");
    refuses(with(command, "--replay ddp.jsonl"), "^error: --replay: ddp.jsonl: no record of updates; expected");
  });
}

// ---- what it gains, on a simulated machine -------------------------------------------------------------------------

// Writes the order in which gradients arrive at a server whose updates take no time. Worker w needs `step_of[w]` time
// units per step and never starts one more than `bound` updates ahead of the slowest.
void write_order(const std::string& file, const std::vector<int>& step_of, long bound, int updates) {
  struct State {
    long made = 0, due = -1, version = 0;  // due: end of the current step; -1: waiting
  };
  std::vector<State> workers(step_of.size());
  std::ofstream out(file);
  long now = 0;
  for (int update = 0, starts = 0; update < updates; ++update) {
    const long slowest = std::ranges::min(workers, {}, &State::made).made;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      State& worker = workers[w];
      if (worker.due >= 0 || starts == updates || worker.made - slowest > bound) continue;
      worker = {worker.made, now + step_of[w], update};
      ++starts;
    }
    State* first = nullptr;
    for (State& worker : workers) {
      if (worker.due >= 0 && (first == nullptr || worker.due < first->due)) first = &worker;
    }
    now = first->due;
    const auto value = [&](const std::string& name, long is) {
      out << text(R"({"type":"value","rank":0,"name":")", name, " of update ", update, R"(","value":)", is, "}\n");
    };
    value("worker", first - workers.data() + 1);
    value("staleness", update - first->version);
    first->due = -1;
    ++first->made;
  }
}

// The README's batches per second of K workers, one of them φ times slower: K/(φ·τ_w) if all wait for it, and (K -
// 1)/τ_w + 1/(φ·τ_w) if none does. The time does not depend on the machine that runs the test: it is simulated, and the
// order of arrival is replayed.
TESTS(straggler) {
  constexpr int kWorkers = 3, kSlowness = 10;
  constexpr int kUpdates = 8 * 21;  // during which the slow worker makes 8 and each of the others 80
  const std::string machine = "WORKSHOP_SIMULATE=compute=1G,link=10us+1G/s";
  const std::string training = text("--layers 64,64,16 --log-every 0 --samples ", 32 * kUpdates);
  const auto seconds = [=](const Command& command) { return record(command).record.seconds_per_step; };
  const auto of_server = [=](int workers, const std::string& options) {
    return seconds(on(workers + 1, server, training, options).in(machine));
  };
  const auto add = [=](const std::string& name, std::function<void(double fast, double slow, double rest)> check) {
    test("solution.10.straggler." + name, {.ranks = kWorkers + 1, .cpu_only = "only the cpu backend simulates"}, [=] {
      const double fast = of_server(1, "");                                 // τ_w
      const double slow = of_server(1, text("--straggler 1:", kSlowness));  // φ·τ_w
      // The part of a step that is not the worker's own computation: the update and the server's messages. It may have
      // to wait for those of other workers.
      const double rest = fast - (slow - fast) / (kSlowness - 1);
      EXPECT_GT(rest, 0);
      check(fast, slow, rest);
    });
  };
  const auto within = [](double found, double least, double most) {
    EXPECT_TRUE(least <= found && found <= most) << text(found, " s a batch, expected ", least, " to ", most);
  };
  // A batch takes as long as the formula says, or longer by this much if each step waits for the rest of all other
  // workers' steps.
  for (const long bound : {0L, 2L, 1L << 30}) {
    const std::string name = bound < 1 << 30 ? text("bound_", bound) : "no_bound";
    add(name, [=](double fast, double slow, double rest) {
      write_order("order.jsonl", {kSlowness, 1, 1}, bound, kUpdates);
      const double found =
          of_server(kWorkers, text("--straggler 1:", kSlowness, " --replay order.jsonl --staleness ", bound));
      const auto formula = [=](double wait) {
        const double all = kWorkers / (slow + wait), none = (kWorkers - 1) / (fast + wait) + 1 / (slow + wait);
        return 1 / (bound < 1 << 30 ? all : none);
      };
      // The first three updates are not timed and need not take the mean time.
      within(found, formula(0) * (1 - 3.0 / kUpdates), formula((kWorkers - 1) * rest) * (1 + 3.0 / kUpdates));
    });
  }
  add("ddp", [=](double, double slow, double) {
    const double found =
        seconds(on(kWorkers, ddp, training).in("WORKSHOP_SIMULATE=compute=100M,link=10us+1G/s")) / kWorkers;
    within(found, 0.95 * slow / kWorkers, 1.05 * slow / kWorkers);
  });
}

}  // namespace
}  // namespace workshop::tests
