// SPDX-License-Identifier: Apache-2.0
// Checkpoints in all chapters: common/checkpoint/parts.h.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

namespace fs = std::filesystem;

const Path mlp = solution("01_single_gpu/mlp");
const Path ddp = solution("02_ddp/ddp");
const Path overlap = solution("02_ddp/ddp_overlap");
const Path compressed = solution("10_less_communication/ddp_compressed");
const Path decentralized = solution("10_less_communication/decentralized");
const Path local_sgd = solution("10_less_communication/local_sgd");
const Path stages = solution("03_model_parallel/model_parallel");
const Path pipeline = solution("04_pipeline/pipeline");
const Path tensor = solution("05_tensor_parallel/tensor_parallel");
const Path gather = solution("05_tensor_parallel/tensor_parallel_gather");
const Path zero = solution("06_fsdp/zero");
const Path fsdp = solution("06_fsdp/fsdp");
const Path train_3d = solution("07_3d/train_3d");

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the contents of all regular files in a folder, by relative path.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    // The lock says which run has had it last.
    if (!entry.is_regular_file() || entry.path().filename() == ".lock") continue;
    files[fs::relative(entry.path(), folder)] = content(entry.path());
  }
  return files;
}

// ---- a run that is stopped and resumed becomes the same to the last bit --------------------------------------------

// Registers a test: resuming must give the same results as training without interruption. Also resumes from the copy
// that a run writes if it resumes and has no steps left.
void resumes(const std::string& name, const Command& training, int saved, int last) {
  test("solution.06.resume." + name, {.ranks = training.ranks}, [=] {
    const Run expected = record(with(training, "--max-steps", last), "expected.jsonl");
    const Run saving = succeed(with(training, "--max-steps", saved, "--checkpoints saved --save-every 2 --keep 2"));
    int checkpoints = 0;
    for (const auto& [path, _] : contents("saved"))
      checkpoints += path.starts_with("step-") && path.ends_with("index.json");
    EXPECT_EQ(checkpoints, 2) << report(saving, "the two newest checkpoints", text(checkpoints, " checkpoints"));
    succeed(with(training, "--max-steps", saved, "--resume saved --checkpoints copy"));
    for (const char* from : {"saved", "copy"}) {
      const Run resumed =
          record(with(training, "--max-steps", last, "--resume", from, "--checkpoints", from), "resumed.jsonl");
      EXPECT_FALSE(resumed.record.losses.empty()) << report(resumed, "steps after the checkpoint", "none");
      expect_same_training(expected, resumed, 0, /*resumed=*/true);
    }
  });
}

TESTS(resume) {
  // Stops within the second epoch, where the order of the samples depends on the random state. AdamW's moments must be
  // restored too.
  const auto add = [](const std::string& name, int ranks, const Path& program, const std::string& options) {
    resumes(name, on(ranks, program, "--optimizer adamw --samples 96 --epochs 3 --log-every 0", options), 5, 9);
  };
  const std::string pairs = " --layers 6,8,5,8,3";
  add("mlp", 1, mlp, "--batch-size 32");
  add("ddp", 3, ddp, "--batch-size 8 --validation-samples 10");
  add("ddp_accumulation", 2, ddp, "--batch-size 4 --accumulation-steps 4");
  add("ddp_overlap", 2, overlap, "--batch-size 16");
  // State of each replica: its own parameters, an unfinished round, and the remainders of compression.
  add("decentralized", 4, decentralized,
      "--batch-size 8 --own-initial-values --validation-samples 10 --average-at-end");
  add("local_sgd", 3, local_sgd, "--batch-size 8 --sync-every 3");
  add("local_sgd_outer", 3, local_sgd, "--batch-size 8 --sync-every 3 --outer-lr 0.7 --outer-momentum 0.9");
  for (const std::string kind : {"topk", "randomk", "int8"}) {
    add("compressed_" + kind, 3, compressed, "--batch-size 8 --error-feedback --compress " + kind);
  }
  add("model_parallel", 2, stages, "--batch-size 32");
  add("one_process", 1, solution("03_model_parallel/one_process"), "--batch-size 32 --devices 2");
  add("pipeline", 2, pipeline, "--batch-size 32 --schedule interleaved" + pairs);
  add("tensor_parallel", 4, tensor, "--shuffle --batch-size 32" + pairs);
  add("tensor_parallel_gather", 2, gather, "--batch-size 32");
  for (int stage : {0, 1, 2, 3}) add(text("zero_", stage), 3, zero, text("--batch-size 8 --stage ", stage));
  add("fsdp", 4, fsdp, "--batch-size 8 --unit-layers 2" + pairs);
  add("fsdp_hybrid", 4, fsdp, "--batch-size 8 --hybrid 2 --checkpoint-format full");
  add("fsdp_offload", 2, fsdp, "--batch-size 16 --cpu-offload");
  add("train_3d", 8, train_3d, "--batch-size 16 --dp 2 --pp 2 --tp 2 --zero 1" + pairs);
  const std::string async = "--checkpoint-mode async ";
  add("async_mlp", 1, mlp, async + "--batch-size 32");
  add("async_ddp", 3, ddp, async + "--batch-size 8 --validation-samples 10");
  add("async_zero", 3, zero, async + "--batch-size 8 --stage 2");
  add("async_fsdp", 4, fsdp, async + "--batch-size 8 --hybrid 2");
  add("async_fsdp_offload", 2, fsdp, async + "--batch-size 16 --cpu-offload");
  add("async_train_3d", 8, train_3d, async + "--batch-size 16 --dp 2 --pp 2 --tp 2 --zero 1" + pairs);
  // A run that goes on with one rank fewer makes the same steps if --global-batch says how large they are.
  test("solution.06.resume.fewer_ranks", {.ranks = 4}, [] {
    for (const Path& program : {ddp, fsdp}) {
      const auto training = [&](int ranks, const std::string& options) {
        return on(ranks, program, "--optimizer adamw --samples 96 --epochs 3 --global-batch 12 --log-every 0", options);
      };
      fs::remove_all("saved");
      const Run expected = record(training(4, "--max-steps 20"), "expected.jsonl");
      succeed(training(4, "--max-steps 11 --checkpoints saved"));
      expect_same_training(expected, record(training(3, "--max-steps 20 --resume saved"), "resumed.jsonl"), 1e-5,
                           /*resumed=*/true);
    }
    expect_one_line(run(on(4, ddp, "--global-batch 10")), 2,
                    "^error: --global-batch is '10'; expected a multiple of 4");
    expect_one_line(run(on(2, ddp, "--global-batch 8 --batch-size 4")), 2, "^error: --global-batch sets");
  });
  // What all ranks hold stays equal; unit.common has the comparison of what does not.
  test("solution.06.check_replicas", {.ranks = 4}, [] {
    const std::string options = "--max-steps 6 --check-replicas 2 --optimizer adamw --batch-size 8";
    for (const Path& program : {ddp, overlap, zero, fsdp, compressed, decentralized, local_sgd})
      succeed(on(4, program, options));
    succeed(on(4, train_3d, options + " --dp 2 --tp 2"));
  });
  // A replica's own state fits only the same number of replicas. A step has 48 samples.
  test("solution.06.resume.other_replicas", {.ranks = 4}, [] {
    const auto training = [](int ranks, const Path& program, const std::string& options) {
      return on(ranks, program, "--max-steps 2 --checkpoints saved --batch-size", 48 / ranks, options);
    };
    const auto refuses = [](const Command& command, const std::string& tensor) {
      expect_one_line(run(command), 2,
                      "^error: '" + tensor + "' has a different shape in the checkpoint saved/step-00000002");
    };
    succeed(training(4, decentralized, ""));
    refuses(training(3, decentralized, "--resume saved"), "0.bias");
    refuses(training(4, ddp, "--resume saved"), "0.bias");
    fs::remove_all("saved");
    succeed(training(3, compressed, "--error-feedback"));
    refuses(training(2, compressed, "--error-feedback --resume saved"), "left_out");
  });
  resumes("sequence_parallel",
          on(2, tensor, "--model gpt --sequence-parallel --words 1000 --lr-schedule constant --epochs 3 --log-every 0"),
          5, 9);
}

// ---- saved by one strategy, loaded by another ----------------------------------------------------------------------

struct Strategy {
  int ranks, rows;  // rows per replica and step; all replicas together have 24
  Path program;
  std::string options;
};
// Neighbors differ in strategy and in number of ranks.
const std::vector<Strategy> some_strategies = {
    {1, 24, mlp, ""},
    {3, 8, fsdp, ""},
    {2, 24, tensor, ""},
    {8, 3, zero, "--stage 3"},
    {4, 12, train_3d, "--dp 2 --pp 2 --zero 1"},
    {2, 12, ddp, ""},
    {4, 6, fsdp, "--hybrid 2 --unit-layers 3"},
    {8, 24, pipeline, "--schedule 1f1b --micro-batches 8"},
    {2, 12, zero, "--stage 1"},
    {8, 12, train_3d, "--dp 2 --pp 2 --tp 2"},
    {3, 8, zero, "--stage 2"},
    {2, 24, stages, "--partition parameters"},
    {2, 12, fsdp, "--cpu-offload"},
    {4, 24, tensor, ""},
};
const std::vector<Strategy> more_strategies = {
    {1, 24, ddp, ""},
    {3, 8, ddp, ""},
    {4, 6, ddp, ""},
    {8, 3, ddp, ""},
    {4, 6, overlap, ""},
    {1, 24, zero, "--stage 0"},
    {4, 6, zero, "--stage 1"},
    {8, 3, zero, "--stage 2"},
    {3, 8, zero, "--stage 3"},
    {2, 12, zero, "--stage 3"},
    {1, 24, fsdp, ""},
    {2, 12, fsdp, "--no-reshard-after-forward"},
    {4, 6, fsdp, ""},
    {8, 3, fsdp, "--unit-layers 2"},
    {8, 3, fsdp, "--hybrid 4 --cpu-offload"},
    {3, 24, stages, ""},
    {4, 24, pipeline, "--schedule gpipe"},
    {2, 24, pipeline, "--schedule interleaved"},
    {8, 24, tensor, ""},
    {8, 6, train_3d, "--dp 4 --tp 2 --zero 1"},
    {4, 24, train_3d, "--pp 4"},
    {6, 8, train_3d, "--dp 3 --pp 2 --zero 1"},
};

// Returns the lines with step, epoch and samples of an index.
std::string place(const std::string& folder) {
  std::ifstream index(folder + "/step-00000006/index.json");
  std::string lines;
  for (std::string line; std::getline(index, line);) {
    for (const char* key : {"\"step\":", "\"epoch\":", "\"samples\":"}) {
      if (line.find(key) != std::string::npos) lines += line + "\n";
    }
  }
  return lines;
}

// A checkpoint that another strategy loads and saves again as one file must have the same bits, in parameters and
// optimizer state, and the same place in the epoch. With the next strategy in the list, training must also continue as
// if it had not stopped. Later results are not bitwise equal, because sums have a different order, and no bound on the
// gradients bounds this error, because AdamW divides by the size of the gradient. State that is lost or mixed up
// changes each parameter by about η = 10⁻² per step; measured: 10⁻⁷.
void check_matrix(const std::vector<Strategy>& strategies, bool all_pairs) {
  const double bound = 1e-5;
  // 8 layers, in pairs whose inner widths are divisible by 8; 4 steps of 24 samples per epoch; saved in the second
  // epoch.
  const auto train = [](const Strategy& s, const std::string& options) {
    return on(s.ranks, s.program,
              "--layers 6,8,5,8,7,8,3,8,2 --activation gelu --optimizer adamw --no-shuffle --samples 96 --epochs 3",
              "--log-every 0 --batch-size", s.rows, s.options, options);
  };
  const auto folder = [](const char* name, std::size_t number) { return text(name, "/", number); };
  const std::string whole = "/step-00000006/model.safetensors";
  const Run expected = record(train(strategies[0], "--max-steps 9"), "expected.jsonl");
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    succeed(train(strategies[i], "--max-steps 6 --checkpoints " + folder("saved", i)));
    succeed(train(strategies[i], "--max-steps 6 --checkpoint-format full --checkpoints " + folder("whole", i)));
  }
  for (std::size_t from = 0; from < strategies.size(); ++from) {
    const std::size_t next = (from + 1) % strategies.size();
    for (std::size_t to = all_pairs ? 0 : next; to < (all_pairs ? strategies.size() : next + 1); ++to) {
      fs::remove_all("again");
      const Run again =
          succeed(train(strategies[to], "--max-steps 6 --checkpoints again --checkpoint-format full --resume " +
                                            folder("saved", from)));
      if (content(folder("whole", from) + whole) != content("again" + whole) ||
          place(folder("whole", from)) != place("again")) {
        fail(report(again, "the checkpoint that it was given, saved by " + train(strategies[from], "").words[0],
                    "another one"));
      }
    }
    expect_same_training(
        expected, record(train(strategies[next], "--max-steps 9 --resume " + folder("saved", from)), "resumed.jsonl"),
        bound,
        /*resumed=*/true);
  }
}

TESTS(matrix) {
  test("solution.06.checkpoint_matrix", {.ranks = 8, .timeout = 900}, [] { check_matrix(some_strategies, false); });
  test("soak.checkpoint_matrix", {.ranks = 8, .timeout = 7200}, [] {
    std::vector<Strategy> strategies = some_strategies;
    strategies.insert(strategies.end(), more_strategies.begin(), more_strategies.end());
    check_matrix(strategies, true);
  });
}

// ---- killed at any moment ------------------------------------------------------------------------------------------

TESTS(kills) {
  const auto add = [](const std::string& name, int timeout, int kills, int ranks, const Path& program,
                      const std::string& options) {
    test(name, {.ranks = ranks, .timeout = timeout, .processors = 2}, [=] {
      const Command training = on(ranks, program, options);
      std::vector<std::string> arguments = {source("tests/chapters/06_fsdp/check_kills.py").path,
                                            fs::read_symlink("/proc/self/exe"), std::to_string(kills),
                                            std::to_string(ranks)};
      arguments.insert(arguments.end(), training.words.begin(), training.words.end());
      script(source("tests/python/with_python"), arguments);
    });
  };
  add("solution.06.kills", 300, 4, 2, fsdp, "--batch-size 16");
  add("soak.kills.fsdp", 1800, 50, 2, fsdp, "--batch-size 16");
  add("soak.kills.ddp", 1800, 50, 3, ddp, "--batch-size 8 --validation-samples 96");
}

// ---- damaged files -------------------------------------------------------------------------------------------------

// Damages a file. The last three bits of `number` select the kind of damage, and the number seeds the details.
void damage(const fs::path& path, unsigned number) {
  std::mt19937 random(number);
  std::string bytes = content(path);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  switch (number % 8) {
    case 0: {  // a bit flips
      const std::size_t at = below(bytes.size());
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      break;
    }
    case 1:  // cut short
      bytes.resize(below(bytes.size()));
      break;
    case 2: {  // in the header's length, at the beginning of a safetensors file
      const std::uint64_t length = (std::uint64_t{random()} << 32 | random()) >> below(40);
      std::memcpy(bytes.data(), &length, sizeof length);
      break;
    }
    case 3:  // within the header
      bytes.replace(8 + below(std::min<std::size_t>(bytes.size() - 8, 200)), 1, below(2) ? "[[[[" : "99999999999");
      break;
    case 4:
      bytes = std::string(below(5000), '\0') + "This is another file.\n";
      break;
    case 5:
      bytes += std::string(1 + below(100), '\0');
      break;
    case 6: {  // a header that promises more data than there is
      const std::string header = R"({"0.weight":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})";
      const std::uint64_t length = header.size();
      bytes = std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
      break;
    }
    default:
      bytes.clear();
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

// Each damaged checkpoint must cause one line that names the file, and status 2. The program must not crash and must
// write nothing.
void check_damage(unsigned count) {
  const std::string training = "--layers 6,8,4,2 --optimizer adamw --samples 64 --no-shuffle --log-every 0 ";
  succeed(on(3, fsdp, training, "--batch-size 4 --max-steps 3 --checkpoints intact"));
  const Command load = on(1, mlp, training, "--batch-size 12 --resume damaged --checkpoints damaged");
  fs::copy("intact", "damaged", fs::copy_options::recursive);
  succeed(with(load, "--max-steps 3"));

  std::vector<std::string> files;
  for (const auto& [path, _] : contents("intact")) files.push_back(path);
  ASSERT_EQ(files.size(), 4u) << "an index, and a file a rank";
  for (unsigned number = 0; number < count && !testing::Test::HasFailure(); ++number) {
    fs::remove_all("damaged");
    fs::copy("intact", "damaged", fs::copy_options::recursive);
    const std::string& file = files[number % files.size()];
    damage(fs::path("damaged") / file,
           number / files.size() % 8 + 8 * number);  // a new kind each time the file comes up
    const auto before = contents("damaged");
    expect_one_line(run(load), 2, fs::path(file).filename());
    EXPECT_TRUE(contents("damaged") == before) << "damage " << number << ": files were written";
  }
}

TESTS(damaged) {
  test("solution.06.damage", {.ranks = 3}, [] { check_damage(32); });
  test("soak.damage", {.ranks = 3, .timeout = 1800}, [] { check_damage(200); });
}

// ---- refusals ------------------------------------------------------------------------------------------------------

TESTS(bad) {
  refusals("solution.06.bad.checkpoints.", on(4, fsdp), R"(
    #.resume     | --resume nowhere          | --resume is 'nowhere', but there is no checkpoint there
    #.folder     | --checkpoints /proc/saved | /proc/saved: No such file or directory
    #.save_every | --save-every 5            | --save-every needs a folder to save to: --checkpoints
    #.too_large  | --layers 65537,65536      | --layers has 2.31 parameters or more
    #.keep       | --keep -1                 | --keep is '-1'; expected a whole number of at least 0
    #.format     | --checkpoint-format zip   | --checkpoint-format is 'zip'; expected full, sharded
  )");
  // An intact checkpoint that does not fit the run, or a folder that already holds other checkpoints: one line on any
  // number of ranks, and nothing is written.
  test("solution.06.refused_checkpoints", {.ranks = 3}, [] {
    const std::string base = "--samples 96 --no-shuffle --log-every 0 ";
    succeed(on(2, fsdp, base, "--batch-size 8 --max-steps 3 --checkpoints saved"));
    succeed(on(2, fsdp, base, "--batch-size 8 --max-steps 6 --checkpoints other"));
    fs::create_directory("other/step-99999999999");  // not a name that the workshop writes
    fs::copy("other/step-00000006/index.json", "other/step-99999999999/index.json");
    // With six steps per epoch, this checkpoint is at the end of the third epoch.
    succeed(on(2, fsdp, base, "--batch-size 8 --epochs 3 --checkpoints long"));
    const auto before = contents("saved");
    const std::pair<std::string, std::string> refusals[] = {
        {R"(--layers is \[6,5,2\]; the checkpoint saved/step-00000003 was made with \[6,4,2\])",
         "--resume saved --layers 6,5,2"},
        {"--activation is \"relu\"; the checkpoint", "--resume saved --activation relu"},
        {"--optimizer is \"adamw\"; the checkpoint", "--resume saved --optimizer adamw"},
        {"--seed is 7; the checkpoint", "--resume saved --seed 7"},
        {"--samples is 90; the checkpoint", "--resume saved --samples 90"},
        {"48 samples into an epoch, which is not a multiple of the", "--resume saved --batch-size 7"},
        {"--shuffle is true; the checkpoint", "--resume saved --shuffle"},
        {"saved already has a checkpoint of step 3: continue from there with --resume saved", "--checkpoints saved"},
        {"saved already has a checkpoint of step 3", "--checkpoints saved --resume other"},
        {"long/step-00000018 is 0 samples into epoch 3; --epochs is 2, --samples 96", "--resume long --epochs 2"},
        {"saved/step-00000003 has the model \"mlp\"; this run trains \"alexnet\"",
         "--resume saved --model alexnet --image-size 32 --shrink 64"}};
    for (const auto& [line, options] : refusals) {
      for (int ranks : {1, 3}) {
        expect_one_line(run(on(ranks, ddp, base, options)), 2, line);
        EXPECT_TRUE(contents("saved") == before) << options << ": files were written";
      }
    }
    const int other_run = open("long/.lock", O_RDONLY);  // as a run holds it that saves there
    ASSERT_EQ(flock(other_run, LOCK_EX | LOCK_NB), 0);
    for (const std::string& resume : {std::string(), std::string("--resume long")})
      expect_one_line(run(on(3, ddp, base, "--epochs 9 --checkpoints long", resume)), 2,
                      "another run is saving its checkpoints to long: choose another folder");
    succeed(on(2, ddp, base, "--batch-size 8 --epochs 4 --resume long --checkpoints elsewhere"));
    close(other_run);
    succeed(on(2, ddp, base, "--batch-size 8 --epochs 4 --resume long --checkpoints long"));
  });
}

}  // namespace
}  // namespace workshop::tests
