// SPDX-License-Identifier: Apache-2.0
// Images, from their files to the accuracy: training from CIFAR-10's files equals training from memory with any number
// of workers, and the accuracy is correct and the same with every strategy.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp"), draw_images{WORKSHOP_BUILD "/tools/draw_images"};
const std::string model = "--model alexnet --image-size 32 --shrink 16 --log-every 0";
constexpr int kRecord = 1 + 3 * 32 * 32;

double value(const Run& run, const std::string& name) {
  const auto found = run.record.values.find({0, name});
  if (found == run.record.values.end()) fail(report(run, "the value '" + name + "'", "no such value"));
  return found->second;
}

// Makes the first `count` training images the test images. Every `wrong`-th of them gets the next class as its label.
void test_on_training_images(const std::string& folder, int count, int wrong) {
  std::string records(static_cast<std::size_t>(count) * kRecord, '\0');
  std::ifstream(folder + "/data_batch_1.bin", std::ios::binary)
      .read(records.data(), static_cast<std::streamsize>(records.size()));
  for (int i = 0; i < count; i += wrong) {
    char& label = records[static_cast<std::size_t>(i) * kRecord];
    label = static_cast<char>((label + 1) % 10);
  }
  std::ofstream(folder + "/test_batch.bin", std::ios::binary) << records;
}

TESTS(images_loading) {
  const Command drawn =
      on(1, mlp, model, "--samples 50 --batch-size 8 --max-steps 10 --lr 0.001 --validation-samples 6");
  test("solution.images.files", {}, [=] {
    script(draw_images, {"files", "50"});
    const Command from_files = on(1, mlp, model, "--images files --batch-size 8 --max-steps 10 --validation-samples 6");
    const Run expected = record(drawn), found = record(from_files);
    expect_same_training(expected, found, kSameBits);
    EXPECT_EQ(value(found, "test loss"), value(expected, "test loss"));
  });
  for (int workers : {0, 1, 5}) {
    same_training(text("solution.images.workers.", workers), kSameBits, drawn, with(drawn, "--workers", workers));
  }
  test("solution.images.clean_steps", drawn, [](const Run& run) { expect_clean_steps(run); });
  test("solution.images.memory", with(drawn, "--workers 3"), [](const Run& run) {
    const long slots = 3 * 8 * (3 * 32 * 32 + 1) * 4;  // README 01, A host loader
    expect_memory(run, 0, {{"host", slots}});
  });
  test("solution.images.resumed", {}, [=] {
    record(with(drawn, "--max-steps 7 --checkpoints saved"));
    const Run expected = record(drawn), found = record(with(drawn, "--resume saved"));
    expect_same_training(expected, found, kSameBits, /*resumed=*/true);
  });
}

// The model memorizes 20 images. One of the 4 test images has a different label.
TESTS(images_accuracy) {
  test("solution.images.accuracy.counts", {}, [] {
    script(draw_images, {"files", "20"});
    test_on_training_images("files", 4, 4);
    const Run run = record(on(1, mlp, model, "--images files --dropout 0 --batch-size 10 --max-steps 400 --lr 0.001"));
    EXPECT_LE(run.record.losses.back().loss, 0.01) << run.command;
    EXPECT_EQ(value(run, "test accuracy"), 0.75) << run.command;
  });
  // One process trains the model. Each strategy resumes from its checkpoint and only runs the test.
  test("solution.images.accuracy.strategies", {.ranks = 4, .timeout = 600}, [] {
    const struct {
      std::string program;
      int ranks, batch_size;
      std::string options;
    } runs[] = {{"02_ddp/ddp", 3, 4, ""},
                {"03_model_parallel/model_parallel", 2, 12, ""},
                {"03_model_parallel/one_process", 1, 12, "--devices 3 --partition uniform"},
                {"04_pipeline/pipeline", 2, 12, "--micro-batches 3"},
                {"06_fsdp/zero", 2, 6, "--stage 3"},
                {"06_fsdp/fsdp", 2, 6, ""},
                {"07_3d/train_3d", 4, 6, "--pp 2 --dp 2 --micro-batches 3"}};
    const std::string options = "--samples 120 --epochs 12 --no-shuffle --dropout 0 --batch-size";
    const Run one = record(on(1, mlp, model, options, 12, "--checkpoints saved"));
    EXPECT_GT(value(one, "test accuracy"), 2.5 / 24) << one.command;
    for (const auto& of : runs) {
      const Run several =
          record(on(of.ranks, solution(of.program), model, options, of.batch_size, of.options, "--resume saved"));
      EXPECT_NEAR(value(several, "test accuracy"), value(one, "test accuracy"), 1e-6) << several.command;
      EXPECT_NEAR(value(several, "test loss"), value(one, "test loss"), 1e-5) << several.command;
    }
  });
}

// The accuracy in chapter 01's README.
TESTS(images_learned) {
  test("soak.images.learned", {.timeout = 600, .processors = 2}, [] {
    const Run run = record(on(1, mlp, "--model alexnet --image-size 32 --shrink 4 --epochs 3 --log-every 0"));
    EXPECT_GE(value(run, "test accuracy"), 0.9) << run.command;
  });
}

// Bad files: one line, on any number of ranks, whichever rank finds the error first.
TESTS(images_bad) {
  const auto bad = [](const std::string& name, const std::string& regex, auto damage) {
    test("solution.images.bad." + name, {.ranks = 4}, [=] {
      script(draw_images, {"files", "50"});
      damage();
      for (int ranks : {1, 4}) {
        expect_one_line(run(on(ranks, solution("02_ddp/ddp"), model, "--images files")), 2, regex);
      }
    });
  };
  bad("missing", "^error: files/data_batch_4.bin: cannot be read: No such file or directory$",
      [] { std::filesystem::remove("files/data_batch_4.bin"); });
  bad("folder", "^error: files: there is no such folder$", [] { std::filesystem::remove_all("files"); });
  bad("empty", "^error: files/test_batch.bin: it is empty$",
      [] { std::filesystem::resize_file("files/test_batch.bin", 0); });
  bad("truncated", "^error: files/data_batch_2.bin: 30000 bytes are not a whole number of images of 3073 bytes each$",
      [] { std::filesystem::resize_file("files/data_batch_2.bin", 30000); });
  bad("label", "^error: files/data_batch_1.bin: image 3 has the label 200; expected less than the 10 of --classes$",
      [] {
        std::fstream file("files/data_batch_1.bin", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(3 * kRecord).put(static_cast<char>(200));
      });
  refusals("solution.images.bad.", on(2, solution("02_ddp/ddp"), model), R"(
    samples.#    | --images somewhere --samples 8 | --samples is for the workshop's own images only
    validation.# | --validation-samples 5000      | --validation-samples is '5000'; expected fewer than the 4096 of --samples
    most.#       | --samples 1000000              | --samples times the bytes of an image is more than 2147483647; expected less
    size.#       | --image-size 31                | --image-size is '31'; expected a whole number from 32 to 1024
    classes.#    | --classes 1                    | --classes is '1'; expected a whole number from 2 to 256
    workers.#    | --workers 65                   | --workers is '65'; expected a whole number from 0 to 64
    layers.#     | --layers 6,4,2                 | --layers is for --model mlp only
    recompute.#  | --recompute blocks             | --recompute is 'blocks'; expected another value: AlexNet has no blocks
  )");
  refusals("solution.images.bad.of_others.", on(2, solution("02_ddp/ddp")), R"(
    images.#     | --images somewhere             | --images is for --model alexnet only
    workers.#    | --workers 3                    | --workers is for --model alexnet only
    dropout.#    | --dropout 0.5                  | --dropout is for --model gpt or alexnet only
  )");
}

}  // namespace
}  // namespace workshop::tests
