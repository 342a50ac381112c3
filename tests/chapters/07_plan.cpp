// SPDX-License-Identifier: Apache-2.0
// Chapter 07, plan: the numbers of the ZeRO and Megatron-LM papers, and memory and traffic of the workshop's own runs.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/harness/expect.h"
#include "tools/shared/json.h"

namespace workshop::tests {
namespace {

const Path plan = solution("07_3d/plan");

// Rajbhandari et al., SC 2020, Figure 1: 7.5 billion parameters, 64 GPUs, Adam in mixed precision.
TESTS(paper) {
  const char* gigabytes[] = {"120.0", "31.4", "16.6", "1.9"};  // 16Ψ, 4Ψ + 12Ψ/d, 2Ψ + 14Ψ/d, 16Ψ/d
  for (int stage : {0, 1, 2, 3}) {
    test(text("solution.07.plan.zero_paper.", stage), {}, [=] {
      expect_output(
          run(on(1, plan, "--parameters 7.5e9 --precision mixed --optimizer adamw --gpus 64 --dp 64 --zero", stage)), 0,
          {text(" ", gigabytes[stage], " GB [|]")});
    });
  }
}

// ---- planned and measured ------------------------------------------------------------------------------------------

using Kinds = std::vector<std::string>;  // of memory
const Kinds states = {"parameters", "gradients", "optimizer"};
const Kinds states_and_activations = {"parameters", "gradients", "optimizer", "activations"};
const Kinds states_and_buckets = {"parameters", "gradients", "optimizer", "buckets"};
const Kinds all_kinds = {"parameters", "gradients", "optimizer", "activations", "buckets"};

// Returns the differences between a run and the plan of its mesh, on all ranks: the peak memory of these kinds, and the
// bytes sent per step in each group. Allows 2 %, because a plan omits the padding of shards and what a run sends once
// or once per epoch, such as its losses.
std::string differences(const std::string& plan_file, const Run& run, const Kinds& kinds) {
  const auto plans = tools::read_json(plan_file).at("plans");
  if (plans.size() != 1) fail(plan_file + ": expected the plan of one mesh");
  const auto& mesh = plans[0];
  const int of_stage = mesh.at("dp").get<int>() * mesh.value("cp", 1) * mesh.at("tp").get<int>(),
            world = run.record.world;
  if (world != of_stage * mesh.at("pp").get<int>() || run.record.steps == 0)
    fail(report(run, "a run of the planned mesh", text(world, " ranks")));
  std::map<int, std::map<std::string, double>> sent;
  for (const auto& line : run.record.collectives) {
    sent[line.rank][tools::group(line, run.record.chapter)] += tools::bytes_sent(line) / run.record.steps;
  }
  // Of the rows, a rank sends those for its own experts to itself. They are an e-th where all experts have equally
  // many.
  const double ep = mesh.value("ep", 1);
  for (auto& [rank, by_group] : sent) by_group["experts"] *= (ep - 1) / ep;
  std::string lines;
  const auto compare = [&](int rank, const std::string& what, double found, double planned) {
    if (!(std::abs(found - planned) <= 0.02 * planned))
      lines += text("rank ", rank, ", ", what, ": ", found, " bytes, planned ", planned, "\n");
  };
  for (int rank = 0; rank < world; ++rank) {
    const auto& stage = mesh.at("stages").at(rank / of_stage);
    for (const std::string& kind : kinds)
      compare(rank, kind, run.record.peaks.at(rank).at(kind), stage.at("memory").at(kind));
    for (const auto& [name, planned] : stage.at("sent").items())
      compare(rank, "sent a step, " + name, sent[rank][name], planned);
  }
  return lines;
}

// Returns a run of six steps with only what four of them send: a run of two steps evaluates alike.
Run four_steps(const std::function<Run(int)>& run_of) {
  Run measured = run_of(6);
  const Run shorter = run_of(2);
  if (measured.record.collectives.size() != shorter.record.collectives.size())
    fail(report(measured, "as many kinds of calls as in a shorter run", ""));
  for (std::size_t i = 0; i < measured.record.collectives.size(); ++i) {
    tools::Collective& line = measured.record.collectives[i];
    const tools::Collective& less = shorter.record.collectives[i];
    if (line.op + line.communicator != less.op + less.communicator)
      fail(report(measured, less.op + " as in a shorter run", line.op));
    line.calls -= less.calls;
    line.bytes -= less.bytes;
  }
  measured.record.steps -= shorter.record.steps;
  return measured;
}

// Four pairs of layers whose inner widths are divisible by 2 and 4. In 100 steps, data that is sent once per run, such
// as stage 3's parameters for the record, is 1/300 of the traffic.
const std::string model = "--layers 24,32,16,32,16,32,24,32,8 --activation gelu --optimizer adamw ";

// Registers a test that compares a run with its plan. The run has 8 rows per replica and step.
void planned(const std::string& name, int ranks, int replicas, const Path& program, const std::string& options,
             const std::string& mesh, const Kinds& kinds) {
  test(text("solution.07.plan.measured.", name, ".", ranks), {.ranks = ranks}, [=] {
    const Run measured =
        record(on(ranks, program, model, "--batch-size 8 --log-every 0 --samples", 100 * 8 * replicas, options));
    succeed(on(1, plan, model, "--gpus", ranks, "--global-batch", 8 * replicas, mesh, "--json plan.json"));
    const std::string found = differences("plan.json", measured, kinds);
    if (!found.empty()) ADD_FAILURE() << report(measured, "what is planned", found);
  });
}

TESTS(measured) {
  for (int ranks : {2, 4}) {
    planned("ddp", ranks, ranks, solution("02_ddp/ddp"), "", text("--pp 1 --tp 1 --zero 0 --dp ", ranks), all_kinds);
    planned("pipeline", ranks, 1, solution("04_pipeline/pipeline"), "--micro-batches 8",
            text("--dp 1 --tp 1 --zero 0 --micro-batches 8 --pp ", ranks), all_kinds);
    planned("tensor_parallel", ranks, 1, solution("05_tensor_parallel/tensor_parallel"), "",
            text("--dp 1 --pp 1 --zero 0 --tp ", ranks), all_kinds);
  }
  // `activations` is not compared: each of zero's units has its own buffers for gradients of activations, while a plan
  // counts one pair for all. The layers' parameters are not divisible by three ranks.
  for (int stage : {0, 1, 2, 3}) {
    planned(text("zero", stage), 3, 3, solution("06_fsdp/zero"), text("--stage ", stage),
            text("--dp 3 --pp 1 --tp 1 --zero ", stage), states_and_buckets);
  }
  planned("fsdp", 3, 3, solution("06_fsdp/fsdp"), "", "--dp 3 --pp 1 --tp 1 --zero 3 --prefetch", states_and_buckets);
  struct Sizes {
    int dp, pp, tp, zero;
  };
  for (const auto& [dp, pp, tp, zero] : {Sizes{1, 1, 1, 0},
                                         {3, 1, 1, 1},
                                         {1, 4, 1, 0},
                                         {1, 1, 4, 0},
                                         {2, 2, 1, 0},
                                         {2, 2, 1, 1},
                                         {2, 1, 2, 1},
                                         {1, 2, 2, 0},
                                         {3, 2, 1, 1},
                                         {1, 3, 2, 0},
                                         {2, 2, 2, 0},
                                         {2, 2, 2, 1}}) {
    const std::string mesh = text("--dp ", dp, " --pp ", pp, " --tp ", tp, " --zero ", zero, " --micro-batches 4");
    planned(text("train_3d.", dp, "x", pp, "x", tp, ".zero", zero), dp * pp * tp, dp, solution("07_3d/train_3d"), mesh,
            mesh, all_kinds);
  }
  // A plan that does not match the run must be detected: ddp does not shard AdamW's state.
  test("solution.07.plan.measured.another_plan", {.ranks = 2}, [] {
    const Run measured = record(on(2, solution("02_ddp/ddp"), model, "--batch-size 8 --samples 160"));
    succeed(on(1, plan, model, "--gpus 2 --global-batch 16 --dp 2 --zero 1 --json plan.json"));
    const std::string found = differences("plan.json", measured, states);
    EXPECT_NE(found.find("rank 1, optimizer: 38400 bytes, planned 19200"), std::string::npos) << found;
  });
}

// Meshes that fit come first, then the faster ones: 33.6 million parameters of 16 bytes on two nodes of two GPUs.
TESTS(ranking) {
  const std::pair<std::string, std::string> firsts[] = {
      {"80", "2 +2 +1 +1 +8 .* fits"}, {"0.2", "1 +4 +1 +0 +16 .* fits"}, {"0.1", "2 +2 +1 +1 +8 .* too large"}};
  for (const auto& [memory, first] : firsts) {
    test("solution.07.plan.first_of." + memory + "GB", {}, [=] {
      expect_output(
          run(on(1, plan, "--width 2048 --depth 8 --optimizer adamw --gpus 4 --gpus-per-node 2 --rows 1 --memory",
                 memory)),
          0, {first, "and 11 more"});
    });
  }
  // Latency and bandwidth of a link, from a file as chapter 00 writes it and as options. Two ranks all-reduce 10⁸
  // parameters of 4 bytes: 20 µs, and 4·10⁸ bytes at 10⁹ bytes per second.
  for (const std::string link : {"--node-link link.json", "--node-latency 10 --node-bandwidth 1"}) {
    test(link.ends_with("json") ? "solution.07.plan.link.2" : "solution.07.plan.link.4", {}, [=] {
      std::ofstream("link.json") << R"({"op": "all_reduce", "ranks": 2, "bus_factor": 1, "alpha_seconds": 2e-05,
                                       "beta_seconds_per_byte": 1e-09, "measurements": []})";
      expect_output(run(on(1, plan, "--parameters 1e8 --gpus 2 --zero 1 --global-batch 2 --peak 1e6", link)), 0,
                    {"400.0 ms +fits"});
    });
  }
  test("solution.07.plan.measured_link", {.ranks = 2, .measures = true}, [] {
    succeed(on(2, solution("00_collectives/bandwidth"), "--op send_recv --max-mib 16 --json link.json"));
    succeed(on(1, plan, "--node-link link.json --network-link link.json"));
  });
}

// ---- the language model --------------------------------------------------------------------------------------------

const std::string gpt = "--model gpt ";

// Returns the plans that a command writes, best first.
nlohmann::json plans_of(const std::string& options) {
  succeed(on(1, plan, options, "--json plan.json"));
  return tools::read_json("plan.json").at("plans");
}

// Narayanan et al., SC 2021, table 1: GPT models of 1.7 billion to a trillion parameters, T = 2,048, on A100 GPUs with
// recomputation. Micro-batches and chunks are those of the scripts that the authors published with Megatron-LM.
struct Published {
  double billions;
  int blocks, width, heads, tp, pp, gpus, batch, sequences, chunks;  // sequences: per micro-batch
  double teraflops;                                                  // per second and GPU
};
const Published table_1[] = {
    {1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137},         {3.6, 30, 3072, 32, 2, 1, 64, 512, 16, 1, 138},
    {7.5, 36, 4096, 32, 4, 1, 128, 512, 16, 1, 142},        {18.4, 40, 6144, 48, 8, 1, 256, 1024, 8, 1, 135},
    {39.1, 48, 8192, 64, 8, 2, 512, 1536, 4, 1, 138},       {76.1, 60, 10240, 80, 8, 4, 1024, 1792, 2, 3, 140},
    {145.6, 80, 12288, 96, 8, 8, 1536, 2304, 2, 2, 148},    {310.1, 96, 16384, 128, 8, 16, 1920, 2160, 1, 2, 155},
    {529.6, 105, 20480, 128, 8, 35, 2520, 2520, 1, 3, 163}, {1008.0, 128, 25600, 160, 8, 64, 3072, 3072, 1, 1, 163}};

TESTS(megatron) {
  for (const Published& row : table_1) {
    test(text("solution.07.plan.megatron.", row.billions), {}, [=] {
      const int dp = row.gpus / row.tp / row.pp, micro_batches = row.batch / dp / row.sequences;
      const std::string model = text("--context 2048 --vocabulary 51200 --blocks ", row.blocks, " --width ", row.width,
                                     " --heads ", row.heads, " --global-batch ", row.batch, " --recompute blocks");
      const std::string mesh =
          text("--zero 0 --no-sequence-parallel --scatter-gather --gpus ", row.gpus, " --dp ", dp, " --pp ", row.pp,
               " --tp ", row.tp, " --micro-batches ", micro_batches, " --chunks ", row.chunks);
      const auto plans = plans_of(gpt + model + " " + mesh);
      ASSERT_EQ(plans.size(), 1u);
      const double planned = plans[0].at("flops_per_gpu").get<double>() / 1e12;
      EXPECT_NEAR(planned / row.teraflops, 1, 0.15) << planned << " teraFLOP/s planned, published " << row.teraflops;
      EXPECT_EQ(plans[0].at("fits"), true);
    });
  }
}

const std::string seventy_billion = "--blocks 80 --width 8192 --heads 64 --context 4096 --vocabulary 32000 ";

TESTS(advice) {
  // Either tensor parallelism within the node and few stages, or sharding with one block per unit. The literature has
  // both.
  const std::pair<std::string, std::string> given[] = {{"defaults", ""},
                                                       {"zero0", "--zero 0"},
                                                       {"zero1", "--zero 1"},
                                                       {"batch256", "--global-batch 256"},
                                                       {"h100", "--machine h100"}};
  for (const auto& [name, options] : given) {
    test("solution.07.plan.advice.70B." + name, {}, [options = options] {
      const auto best = plans_of(gpt + seventy_billion + "--gpus 512 " + options)[0];
      const int tp = best.at("tp"), pp = best.at("pp"), zero = best.at("zero");
      EXPECT_EQ(best.at("fits"), true);
      EXPECT_TRUE(tp <= 8 && pp <= 8 && (zero == 3 || tp >= 2)) << best;
      EXPECT_GT(best.at("mfu").get<double>(), 0.3);
    });
  }
  // If nothing fits, the output says what would help: other values for given options, more GPUs, more memory.
  test("solution.07.plan.advice.nothing_fits", {}, [] {
    expect_output(run(on(1, plan, gpt + seventy_billion, "--recompute none --tp 1 --gpus 8")), 0,
                  {"too large", "Nothing fits. The first row is the nearest: it needs .* GB of 72.0 GB, most of it for",
                   "  --gpus [0-9]+: .* GB, a step of", "  --memory [0-9]+: the first row fits"});
    expect_output(run(on(1, plan, gpt, "--recompute none --gpus 8 --zero 3 --tp 1 --global-batch 8")), 0,
                  {"Nothing fits.*activations", "  --recompute blocks: .* GB, a step of .*--zero 3"});
  });
}

TESTS(gpt_numbers) {
  // Memory of one process of chapter 01, in fp32.
  for (const std::string recompute : {"none", "blocks"}) {
    test("solution.07.plan.measured.gpt.recompute_" + recompute, {}, [=] {
      const std::string shape = "--blocks 3 --width 24 --heads 4 --context 12 --recompute " + recompute;
      const Run measured =
          record(on(1, solution("01_single_gpu/gpt"), shape, "--words 2000 --batch-size 6 --max-steps 3"));
      const auto head = std::ranges::find(measured.record.parameters, "head.weight", &tools::Tensor::name);
      ASSERT_NE(head, measured.record.parameters.end());
      succeed(on(1, plan, gpt, shape, "--precision fp32 --gpus 1 --micro-batches 1 --global-batch 6 --json plan.json",
                 "--vocabulary", head->shape[0]));
      const std::string found = differences("plan.json", measured, all_kinds);
      if (!found.empty()) ADD_FAILURE() << report(measured, "what is planned", found);
    });
  }
  // Sequences that are cut over 2 and 4 ranks: memory, and bytes by group.
  for (const int cp : {2, 4}) {
    for (const int tp : {1, 2}) {
      test(text("solution.07.plan.measured.gpt.cp_", cp, ".tp_", tp), {.ranks = cp * tp}, [=] {
        const std::string shape = "--blocks 3 --width 32 --heads 4 --context 64 ",
                          mesh = text(" --cp ", cp, " --tp ", tp);
        const Run measured = four_steps([=](int steps) {
          return record(
              on(cp * tp, solution("07_3d/train_3d"), gpt, shape, mesh,
                 "--words 8000 --vocabulary 60 --batch-size 6 --log-every 0 --micro-batches 1 --max-steps", steps),
              text(steps, ".jsonl"));
        });
        succeed(on(1, plan, gpt, shape, mesh, "--dp 1 --pp 1 --precision fp32 --gpus", cp * tp,
                   "--zero 0 --recompute none",
                   "--micro-batches 1 --global-batch 6 --vocabulary 60 --no-sequence-parallel --json plan.json"));
        const std::string found = differences("plan.json", measured, states_and_buckets);
        if (!found.empty()) ADD_FAILURE() << report(measured, "what is planned", found);
      });
    }
  }
  // Korthikanti et al.: a block keeps T·E(34 + 5HT/E) bytes per sequence. A tensor group splits 24 + 5HT/E of the 34 +
  // 5HT/E; with sequence parallelism it splits all. Two models that differ in one block differ by just these bytes;
  // HT/E = 1 here.
  struct Case {
    std::string name, options;
    int tp;
    double bytes;  // in units of T·E
  };
  const Case cases[] = {{"alone", "--recompute none", 1, 39},
                        {"blockwise", "--recompute none --attention blockwise", 1, 34 + 4 * 4 / 256.0},
                        {"blockwise_cut", "--recompute none --attention blockwise", 4, (34 + 4 * 4 / 256.0) / 4},
                        {"recomputed", "--recompute blocks", 1, 2},
                        {"cut", "--recompute none --no-sequence-parallel", 4, 10 + 29 / 4.0},
                        {"sequence", "--recompute none", 4, 39 / 4.0},
                        {"sequence_recomputed", "--recompute blocks", 4, 2 / 4.0}};
  for (const Case& c : cases) {
    test("solution.07.plan.activations." + c.name, {}, [=] {
      const auto activations = [&](int blocks) {
        const auto plans = plans_of(text(gpt, "--width 256 --heads 4 --context 64 --vocabulary 100 --gpus ", c.tp,
                                         " --dp 1 --pp 1 --tp ", c.tp, " --global-batch 2 --micro-batches 1 --blocks ",
                                         blocks, " ", c.options));
        return plans.at(0).at("stages").at(0).at("memory").at("activations").get<double>();
      };
      EXPECT_DOUBLE_EQ(activations(3) - activations(2), 2 * 64 * 256 * c.bytes);
    });
  }
  // Hybrid sharding on 2 nodes of 4 GPUs that share a model. Each rank gathers and reduces within the node, three times
  // 3/4 of 2 bytes per parameter, and all-reduces its quarter between the two nodes, 2 · 1/2 of 2 bytes.
  test("solution.07.plan.hybrid", {}, [] {
    const std::string mesh = "--gpus 8 --gpus-per-node 4 --global-batch 8 --dp 8 --zero 3 --recompute none ";
    const auto plans = plans_of(gpt + mesh + "--hybrid 4 --micro-batches 1");
    const auto& stage = plans.at(0).at("stages").at(0);
    const double parameters = stage.at("memory").at("parameters").get<double>() / 2 * 4;
    EXPECT_DOUBLE_EQ(parameters, 32 * (12.0 * 4096 * 4096 + 13 * 4096) + (2 * 32000.0 + 4096 + 2) * 4096);
    EXPECT_NEAR(stage.at("sent").at("data").get<double>(), parameters * (3 * 2 * 0.75 + 2 * 0.5 * 2 / 4),
                1e-9 * parameters);
  });
}

// ---- mixtures of experts -------------------------------------------------------------------------------------------

const std::string mixture_shape = "--blocks 2 --width 32 --heads 4 --context 32 --vocabulary 60 ";

// Four steps, with 4 sequences per replica and step.
Run train_mixture(int ranks, const std::string& program, const std::string& options) {
  return four_steps([=](int steps) {
    return record(on(ranks, solution(program), mixture_shape,
                     "--words 8000 --batch-size 4 --optimizer adamw --log-every 0", options, "--max-steps", steps),
                  text(steps, ".jsonl"));
  });
}

// Returns the differences between such a run and its plan.
std::string mixture_differences(const Run& measured, int replicas, const std::string& mesh, const Kinds& kinds) {
  succeed(on(1, plan, gpt, mixture_shape, "--precision fp32 --no-sequence-parallel --gpus", measured.record.world,
             "--global-batch", 4 * replicas, mesh, "--json plan.json"));
  const std::string found = differences("plan.json", measured, kinds);
  return found.empty() ? "" : report(measured, "what is planned", found);
}

TESTS(mixtures) {
  // If every token chooses all experts, the counts are known: all ranks have the same number of rows.
  struct Mesh {
    int dp, cp, ep, pp, tp, zero;
    std::string recompute;
  };
  for (const Mesh& m : {Mesh{2, 1, 1, 1, 1, 0, "none"},
                        {2, 1, 2, 1, 1, 0, "none"},
                        {4, 1, 2, 1, 1, 0, "blocks"},
                        {4, 1, 2, 1, 1, 1, "none"},
                        {2, 1, 2, 2, 1, 0, "none"},
                        {2, 1, 2, 1, 2, 0, "none"},
                        {2, 2, 4, 1, 1, 0, "none"},
                        {2, 2, 2, 1, 1, 1, "none"},
                        {2, 1, 2, 2, 2, 1, "none"}}) {
    const int ranks = m.dp * m.cp * m.pp * m.tp;
    const std::string name =
        text(m.dp, "x", m.cp, "x", m.pp, "x", m.tp, ".ep_", m.ep, ".zero_", m.zero, ".", m.recompute);
    test("solution.07.plan.measured.mixture." + name, {.ranks = ranks}, [=] {
      const std::string mesh =
          text("--experts 4 --top-k 4 --micro-batches 2 --dp ", m.dp, " --cp ", m.cp, " --ep ", m.ep, " --pp ", m.pp,
               " --tp ", m.tp, " --zero ", m.zero, " --recompute ", m.recompute);
      // A plan leaves out the buffer in which train_3d reduces and gathers spread shards.
      const Kinds& kinds = m.zero == 0 ? all_kinds : states_and_activations;
      const Run measured = train_mixture(ranks, "07_3d/train_3d", gpt + mesh);
      EXPECT_EQ(mixture_differences(measured, m.dp, mesh, kinds), "");
    });
  }
  // With fixed counts, all places travel, whoever takes them.
  const std::string alone = "--pp 1 --tp 1 --zero 0 --recompute none --micro-batches 1 --dp 4 --ep ";
  test("solution.07.plan.measured.mixture.fixed", {.ranks = 4}, [=] {
    const std::string mixture = "--experts 8 --top-k 2 --capacity-factor 1.2 ";
    const Run measured =
        train_mixture(4, "09_expert_parallel/moe_parallel", mixture + "--counts fixed --expert-ranks 2");
    EXPECT_EQ(mixture_differences(measured, 4, mixture + alone + "2", all_kinds), "");
  });
  // With exact counts, moe_parallel has room for the largest imbalance that is possible: the tokens of all 4 ranks
  // choose the two experts of the same rank. How many rows a rank sends depends on the router, but not their sum.
  test("solution.07.plan.measured.mixture.exact", {.ranks = 4}, [=] {
    const std::string mixture = "--experts 8 --top-k 2 ";
    const Run measured = train_mixture(4, "09_expert_parallel/moe_parallel", mixture + "--expert-ranks 4");
    double sent = 0;
    for (const auto& line : measured.record.collectives) {
      if (line.op == "ncclSend") sent += tools::bytes_sent(line);  // all sends are rows, or the numbers of rows
    }
    const auto stage_with = [&](const std::string& imbalance) {
      const std::string shape = gpt + mixture_shape + mixture;
      return plans_of(text(shape, "--precision fp32 --gpus 4 --global-batch 16 ", alone, 4, imbalance))
          .at(0)
          .at("stages")
          .at(0);
    };
    const auto fullest = stage_with(" --imbalance 4").at("memory");
    for (const std::string& kind : all_kinds) {
      const double planned = fullest.at(kind);
      EXPECT_NEAR(measured.record.peaks.at(0).at(kind), planned, 0.02 * planned) << kind;
    }
    // A plan does not count what a rank sends to itself: a quarter, if all experts are chosen equally often.
    const double planned = stage_with("").at("sent").at("experts").get<double>() * 4 / 0.75;
    EXPECT_NEAR(sent / measured.record.steps, planned, 1e-9 * planned);
  });
  test("solution.07.plan.imbalance", {}, [=] {
    const auto sent = [&](const std::string& imbalance) {
      const std::string shape = gpt + mixture_shape + "--experts 8 --capacity-factor 1 --gpus 4 --global-batch 16 ";
      return plans_of(shape + alone + "4" + imbalance).at(0).at("stages").at(0).at("sent").at("experts").get<double>();
    };
    // 3/4 of two rows per token leave a rank, and as many come back, forward and backward, in 2 blocks.
    EXPECT_DOUBLE_EQ(sent(""), 0.75 * 2 * 4 * 4 * 32 * 2 * 32 * 2);
  });
}

// Two descriptions of runs on H100 GPUs; plan_math.md says what they leave open. As far as they do, the planner
// chooses. The numbers are TFLOP/s per GPU without recomputation, of 989.5.
TESTS(published_mixtures) {
  struct Run {
    std::string name, model, mesh;
    double teraflops;
  };
  const std::string mixtral_22b = "--blocks 56 --width 6144 --heads 48 --kv-heads 8 --mlp-width 16384 --experts 8 ",
                    fine = "--blocks 56 --width 6144 --heads 48 --kv-heads 8 --mlp-width 2048 --experts 64 --top-k 8 ",
                    liu = "--pp 8 --tp 2 --capacity-factor 1 ";
  const auto scaled = [&](int gpus) {
    return text(liu, "--ep 4 --global-batch 1024 --gpus ", gpus, " --dp ", gpus / 16, " --hybrid ", gpus / 16);
  };
  const Run runs[] = {
      {"mixtral_8x7b", "--blocks 32 --width 4096 --heads 32 --kv-heads 8 --mlp-width 14336 --experts 8 ",
       "--gpus 64 --dp 16 --hybrid 16 --pp 4 --tp 1 --ep 8 --global-batch 256 --micro-batches 16 --chunks 8", 438},
      {"mixtral_8x22b", mixtral_22b, liu + "--gpus 128 --dp 8 --hybrid 8 --ep 4 --global-batch 256", 458.3},
      {"mixtral_8x22b_g8t8", fine, liu + "--gpus 128 --dp 8 --hybrid 8 --ep 8 --global-batch 256", 989.5 * 0.171},
      {"mixtral_8x22b.128", mixtral_22b, scaled(128), 989.5 * 0.494},
      {"mixtral_8x22b.256", mixtral_22b, scaled(256), 989.5 * 0.480},
      {"mixtral_8x22b.512", mixtral_22b, scaled(512), 989.5 * 0.455},
      {"mixtral_8x22b.1024", mixtral_22b, scaled(1024), 989.5 * 0.423}};
  for (const Run& run : runs) {
    test("solution.07.plan.published." + run.name, {}, [=] {
      const auto best =
          plans_of(gpt + "--machine h100 --attention blockwise --gated --context 4096 --vocabulary 32000 --zero 1 " +
                   run.model + run.mesh)
              .at(0);
      const double planned = best.at("mfu").get<double>() * 989;
      EXPECT_NEAR(planned / run.teraflops, 1, 0.15) << planned << " teraFLOP/s planned, published " << run.teraflops;
      EXPECT_EQ(best.at("fits"), true);
    });
  }
  // Jiang et al., 2024: Mixtral 8x7B has 47 billion parameters, and uses 13 billion per token.
  test("solution.07.plan.published.parameters", {}, [=] {
    succeed(on(1, plan, gpt, runs[0].model, "--gated --context 4096 --gpus 8 --json plan.json"));
    const auto json = tools::read_json("plan.json");
    EXPECT_NEAR(json.at("parameters").get<double>(), 46.7e9, 0.1e9);
    EXPECT_NEAR(json.at("active_parameters").get<double>(), 12.9e9, 0.1e9);
  });
}

TESTS(bad) {
  // A planner needs no ranks. If it is started on several, it prints its error once, too.
  refusals("solution.07.plan.bad.", on(4, plan),
           "ranks | --layers 8,12,8,12,8 --pp 8 | --pp is '8'; expected at most 4");
  refusals("solution.07.plan.bad.", on(1, plan), R"(
    product         | --dp 3 --pp 2 --tp 1                       | --dp, --pp and --tp make 6 GPUs; expected --gpus, 8
    multiple        | --tp 3                                     | --gpus is '8'; expected a multiple of the given --dp, --pp and --tp
    node            | --layers 8,12,8,12,8 --tp 4 --gpus-per-node 2 | --tp is '4'; expected a divisor of the 2 GPUs of a node
    pairs           | --layers 8,8,8,8 --dp 4 --pp 1 --tp 2      | --tp is '2'; expected 1 for 3 layers, which do not make pairs
    inside          | --layers 8,12,8,12,8 --tp 8                | --tp is '8'; expected a divisor of the width 12 inside a pair
    stages          | --layers 8,12,8,12,8 --pp 8                | --pp is '8'; expected at most 4, the model's layers
    stages_of_pairs | --layers 8,12,8,12,8 --dp 1 --pp 4 --tp 2  | --pp is '4'; expected at most 2, the model's pairs of layers
    batch           | --dp 8 --global-batch 100                  | --global-batch is '100'; expected a multiple of the 8 replicas
    micro_batches   | --dp 8 --micro-batches 3                   | --micro-batches is '3'; expected a divisor of the 128 rows
    zero            | --layers 8,12,8,12,8 --pp 2 --dp 4 --tp 1 --zero 2 | --zero is '2'; expected 0 or 1 with --pp
    zero_stage      | --zero 4                                   | --zero is '4'; expected 0, 1, 2, 3, any
    parameters      | --parameters 1e9 --pp 2                    | --pp is '2'; expected 1 with --parameters
    no_parameters   | --parameters=-1                            | --parameters is '-1'; expected a number greater than 0
    depth           | --width 8                                  | --width is given alone; expected --width and --depth
    both            | --width 8 --depth 2 --parameters 10        | --parameters is given; expected no --width and --depth
    precision       | --precision bf16                           | --precision is 'bf16'; expected fp32, mixed
    overflow        | --dp 1048576 --pp 1048576 --tp 1           | make 1099511627776 GPUs
    too_many        | --dp 1 --pp 1073741824 --tp 1              | --pp is .1073741824.; expected a whole number from 1 to
    efficiency      | --efficiency 50                            | --efficiency is above 1; expected a share
    link            | --node-link /nowhere/link.json             | --node-link is '/nowhere/link.json'; expected a file that 00_collectives/bandwidth has written
    json            | --json /nowhere/plan.json                  | --json is '/nowhere/plan.json', which cannot be written: No such file
    training        | --batch-size 8                             | --batch-size
    gpt_for_mlp     | --heads 4                                  | --heads is given; expected --model gpt
    recompute       | --recompute blocks                         | --recompute is given; expected --model gpt
    mlp_for_gpt     | --model gpt --parameters 7e9               | --parameters is given; expected --model mlp
    model           | --model bert                               | --model is 'bert'; expected mlp, gpt
    heads           | --model gpt --width 100 --heads 3          | --width is '100'; expected a multiple of the 3 of --heads
    heads_cut       | --model gpt --heads 4 --tp 8 --dp 1 --pp 1 | --tp is '8'; expected a divisor of the 4 heads
    blocks          | --model gpt --blocks 3 --pp 4              | --pp is '4'; expected at most 3, the model's blocks
    chunks          | --model gpt --blocks 6 --pp 2 --chunks 2   | --chunks is '2'; expected a number that divides the 6 blocks
    chunks_alone    | --model gpt --pp 1 --chunks 2              | --chunks is '2'; expected 1 without a pipeline
    interleaved     | --model gpt --pp 4 --tp 1 --chunks 2 --micro-batches 2 | --micro-batches is '2'; expected a multiple of the 4 stages
    cp_for_mlp      | --cp 2                                     | --cp is given; expected --model gpt
    cp              | --model gpt --cp 3 --gpus 6                | --cp is '3'; expected a number whose double divides --context, 4096
    ep_for_mlp      | --ep 2                                     | --ep is given; expected --experts then
    experts_for_mlp | --experts 8                                | --experts is given; expected --model gpt
    gated_for_mlp   | --gated                                    | --gated is given; expected --model gpt
    ep_alone        | --model gpt --ep 2                         | --ep is given; expected --experts then
    top_k_alone     | --model gpt --top-k 2                      | --top-k is given; expected --experts then
    capacity_alone  | --model gpt --capacity-factor 1            | --capacity-factor is given; expected --experts then
    top_k           | --model gpt --experts 4 --top-k 5          | --top-k is '5'; expected at most the 4 of --experts
    imbalance       | --model gpt --experts 4 --imbalance 0.5    | --imbalance is below 1; expected a multiple of the mean
    imbalance_fixed | --model gpt --experts 4 --imbalance 2 --capacity-factor 1 | --imbalance is given; expected no --capacity-factor
    ep_experts      | --model gpt --experts 6 --ep 4 --dp 8 --pp 1 --tp 1 | --ep is '4'; expected a divisor of the 6 of --experts
    ep_ranks        | --model gpt --experts 8 --ep 4 --dp 2 --pp 4 --tp 1 | --ep is '4'; expected a divisor of the 2 ranks that share
    ep_hybrid       | --model gpt --experts 8 --ep 8 --dp 8 --zero 3 --hybrid 4 | --ep is '8'; expected a divisor of the 4 ranks that share
    kv_heads        | --model gpt --heads 8 --kv-heads 3         | --kv-heads is '3'; expected a divisor of the 8 of --heads
    kv_heads_cut    | --model gpt --kv-heads 4 --tp 8 --dp 1 --pp 1 | --tp is '8'; expected a divisor of the 4 of --kv-heads
    mlp_width_cut   | --model gpt --mlp-width 100 --tp 8 --dp 1 --pp 1 | --tp is '8'; expected a divisor of the 100 of --mlp-width
    hybrid          | --model gpt --dp 8 --zero 3 --hybrid 3     | --hybrid is '3'; expected a divisor of the 8 replicas
    margin          | --model gpt --memory-margin 100            | --memory-margin is '100'; expected a whole number from 0 to 99
  )");
}

}  // namespace
}  // namespace workshop::tests
