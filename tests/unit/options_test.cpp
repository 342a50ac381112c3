// SPDX-License-Identifier: Apache-2.0
// The shared options: defaults, every form of a value, and the one-line error for a bad value.
#include "common/options/options.h"

#include <gtest/gtest.h>

#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "common/job/same_options.h"

namespace workshop {
namespace {

void parse(Options& options, std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  options.parse(static_cast<int>(argv.size()), argv.data());
}

struct Parsed : Options {
  explicit Parsed(const std::vector<std::string>& words) : Options("01_single_gpu/mlp", "test") {
    workshop::parse(*this, words);
  }
};

TEST(Options, DefaultsAreThePyTorchPrograms) {
  const Parsed options({});
  EXPECT_EQ(options.layers, (std::vector<int>{6, 4, 2}));
  EXPECT_EQ(options.activation, Activation::none);
  EXPECT_EQ(options.optimizer, OptimizerKind::sgd);
  EXPECT_EQ(options.lr, 0.01);
  EXPECT_EQ(options.weight_decay, 0);
  EXPECT_EQ(options.samples, 1024);
  EXPECT_EQ(options.batch_size, 32);
  EXPECT_TRUE(options.shuffle);
  EXPECT_EQ(Parsed({"--optimizer", "adamw"}).weight_decay, 0.01);
}

TEST(Options, ValuesAreRead) {
  const Parsed options({"--layers", "16,8,4,2", "--activation=gelu", "--lr", "1e-3", "--no-shuffle", "--seed",
                        "18446744073709551615", "--weight-decay", "0.5"});
  EXPECT_EQ(options.layers, (std::vector<int>{16, 8, 4, 2}));
  EXPECT_EQ(options.activation, Activation::gelu);
  EXPECT_EQ(options.lr, 1e-3);
  EXPECT_EQ(options.weight_decay, 0.5);
  EXPECT_EQ(options.seed, 18446744073709551615ull);
  EXPECT_FALSE(options.shuffle);
  const auto json = nlohmann::json::parse(options.json());
  EXPECT_EQ(json["layers"], (std::vector<int>{16, 8, 4, 2}));
  EXPECT_EQ(json["activation"], "gelu");
  EXPECT_EQ(json["shuffle"], false);
}

using BadOption = std::pair<std::vector<std::string>, const char*>;
class BadOptions : public testing::TestWithParam<BadOption> {};

TEST_P(BadOptions, EndWithStatus2AndOneLine) {
  const auto& [words, message] = GetParam();
  EXPECT_EXIT(static_cast<void>(Parsed{words}), testing::ExitedWithCode(2), message);
}

INSTANTIATE_TEST_SUITE_P(
    Every, BadOptions,
    testing::Values(
        BadOption{{"--layers", "6"}, "^error: --layers is '6'; expected two or more widths of at least 1"},
        BadOption{{"--layers", "6,0,2"}, "^error: --layers is '6,0,2'; expected two or more widths"},
        BadOption{{"--layers", "6,x,2"}, "^error: --layers is '6,x,2'"},
        BadOption{{"--layers", "6,4,"}, "^error: --layers is '6,4,'"},
        BadOption{{"--layers", ""}, "^error: --layers is ''"},
        BadOption{{"--activation", "tanh"}, "^error: --activation is 'tanh'; expected none, relu, gelu\n$"},
        BadOption{{"--optimizer", "adam"}, "^error: --optimizer is 'adam'; expected sgd, adamw\n$"},
        BadOption{{"--lr", "-1"}, "^error: --lr is '-1'; expected a number of at least 0\n$"},
        BadOption{{"--lr", "nan"}, "^error: --lr is 'nan'; expected a number of at least 0\n$"},
        BadOption{{"--weight-decay", "x"}, "^error: --weight-decay is 'x'; expected a number of at least 0\n$"},
        BadOption{{"--samples", "0"}, "^error: --samples is '0'; expected a whole number of at least 1\n$"},
        BadOption{{"--samples", "99999999999"}, "^error: --samples is '99999999999'; expected a whole number"},
        BadOption{{"--batch-size", "0"}, "^error: --batch-size is '0'; expected a whole number of at least 1\n$"},
        BadOption{{"--batch-size", "1.5"}, "^error: --batch-size is '1.5'; expected a whole number"},
        BadOption{{"--epochs", "0"}, "^error: --epochs is '0'; expected a whole number of at least 1\n$"},
        BadOption{{"--max-steps=-1"}, "^error: --max-steps is '-1'; expected a whole number of at least 0\n$"},
        BadOption{{"--seed", "-1"}, "^error: --seed is '-1'; expected a whole number of at least 0\n$"},
        BadOption{{"--model-seed", "x"}, "^error: --model-seed is 'x'; expected a whole number of at least 0\n$"},
        BadOption{{"--log-every", "often"}, "^error: --log-every is 'often'; expected a whole number of at least 0"},
        // Sums and products of accepted values fit into an int.
        BadOption{{"--samples", "2147483647"}, "^error: --samples is '2147483647'; expected at most 1073741824\n$"},
        BadOption{{"--epochs", "2147483647"}, "^error: --epochs is '2147483647'; expected at most 1073741824\n$"},
        BadOption{{"--layers", "46341,46341"}, "^error: --layers has 2\\^31 parameters or more; expected fewer\n$"},
        BadOption{{"--batch-size", "1073741824"},
                  "^error: --batch-size times the widest of --layers is more than 2147483647; expected less\n$"},
        BadOption{{"--samples", "1073741824"},
                  "^error: --samples times the wider of the first and the last of --layers is more than 2147483647"},
        BadOption{{"--record", ""}, "^error: --record is ''; expected a file to write\n$"},
        BadOption{{"--lr"}, "^error: --lr lacks its value; expected a number of at least 0\n$"},
        BadOption{{"--lr="}, "^error: --lr lacks its value; expected a number of at least 0\n$"},
        BadOption{{"--optimizer"}, "^error: --optimizer lacks its value; expected sgd, adamw\n$"},
        BadOption{{"--record"}, "^error: --record lacks its value; expected a file to write\n$"},
        BadOption{{"--learning-rate", "1"},
                  "^error: there is no option '--learning-rate'; --help lists all options\n$"},
        BadOption{{"stray"}, "^error: there is no option 'stray'; --help lists all options\n$"}));

TEST(Options, AChaptersOwn) {
  Options options("04_pipeline/pipeline", "test");
  int count = 4;
  double size = 25;
  std::string schedule = "gpipe";
  bool recompute = false;
  options.add("--count", count, "", 1, 8);
  options.add("--size", size, "", 0.0);
  options.add("--schedule", schedule, "", {"gpipe", "1f1b"});
  options.add_flag("--recompute", recompute, "");
  EXPECT_EXIT(parse(options, {"--count", "9"}), testing::ExitedWithCode(2), "expected a whole number from 1 to 8\n$");
  EXPECT_EXIT(parse(options, {"--size", "0"}), testing::ExitedWithCode(2), "expected a number greater than 0\n$");
  EXPECT_EXIT(parse(options, {"--size", "1e300"}), testing::ExitedWithCode(2), "'1e300'; expected at most 1e\\+15\n$");
  EXPECT_EXIT(parse(options, {"--schedule", "x"}), testing::ExitedWithCode(2), "is 'x'; expected gpipe, 1f1b\n$");
  parse(options, {"--count", "8", "--size", "0.5", "--schedule", "1f1b", "--recompute"});
  EXPECT_EQ(count, 8);
  EXPECT_EQ(size, 0.5);
  EXPECT_EQ(schedule, "1f1b");
  EXPECT_TRUE(recompute);
}

struct ParsedWithModels : Options {
  explicit ParsedWithModels(const std::vector<std::string>& words) : Options("02_ddp/ddp", "test") {
    with_models();
    workshop::parse(*this, words);
  }
};

TEST(Options, DefaultsOfAlexnetAreTheCourses) {
  const ParsedWithModels options({"--model", "alexnet"});
  EXPECT_EQ(options.model, ModelKind::alexnet);
  EXPECT_EQ(options.images.size, 224);
  EXPECT_EQ(options.images.classes, 10);
  EXPECT_EQ(options.images.workers, 2);
  EXPECT_EQ(options.optimizer, OptimizerKind::adamw);
  EXPECT_EQ(options.lr, 0.001);
  EXPECT_EQ(options.weight_decay, 0);
  EXPECT_EQ(options.gpt.dropout, 0.5);
  EXPECT_EQ(options.samples, 4096);
  EXPECT_EQ(options.seed, 1138);
  EXPECT_EQ(options.model_seed, 1138);
  const auto json = nlohmann::json::parse(options.json());
  EXPECT_EQ(json["image-size"], 224);
  for (const char* others : {"layers", "activation", "context", "words"}) EXPECT_FALSE(json.contains(others)) << others;
  const ParsedWithModels given(
      {"--model", "alexnet", "--optimizer", "sgd", "--lr", "1", "--seed", "2", "--dropout", "0"});
  EXPECT_EQ(given.optimizer, OptimizerKind::sgd);
  EXPECT_EQ(given.lr, 1);
  EXPECT_EQ(given.seed, 2);
  EXPECT_EQ(given.gpt.dropout, 0);
}

TEST(Options, AlexnetMakesTheCoursesStepsUnlessEpochsAreGiven) {
  const auto parsed = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--model", "alexnet"});
    const ParsedWithModels options(words);
    return std::pair(options.max_steps, options.epochs);
  };
  EXPECT_EQ(parsed({}), std::pair(100, 100));  // an epoch has at least one step
  EXPECT_EQ(parsed({"--max-steps", "7"}), std::pair(7, 7));
  EXPECT_EQ(parsed({"--epochs", "3"}), std::pair(0, 3));
  EXPECT_EQ(parsed({"--epochs", "3", "--max-steps", "7"}), std::pair(7, 3));
  EXPECT_EQ(parsed({"--max-steps", "0"}), std::pair(0, 1));
}

TEST(Options, OfAModelAreForItAlone) {
  const auto expect_refusal = [](const std::vector<std::string>& words, const char* message) {
    EXPECT_EXIT(static_cast<void>(ParsedWithModels{words}), testing::ExitedWithCode(2), message);
  };
  expect_refusal({"--model", "alexnet", "--layers", "6,2"}, "^error: --layers is for --model mlp only\n$");
  expect_refusal({"--model", "gpt", "--samples", "6"}, "^error: --samples is for --model mlp or alexnet only\n$");
  expect_refusal({"--dropout", "0.1"}, "^error: --dropout is for --model gpt or alexnet only\n$");
  expect_refusal({"--images", "here"}, "^error: --images is for --model alexnet only\n$");
  expect_refusal({"--model", "alexnet", "--image-size", "1024", "--batch-size", "700"},
                 "^error: --batch-size times 3 times --image-size times --image-size is more than 2147483647");
  expect_refusal({"--model", "alexnet", "--images", "here", "--samples", "9"},
                 "^error: --samples is for the workshop's own images only");
}

TEST(Options, AProductMustBeAnInt) {
  const std::int64_t large = 1 << 30;
  require_product({{"--a", 2147483647}});
  require_product({{"--a", 46340}, {"--b", 46341}});
  EXPECT_EXIT(require_product({{"--a", 46341}, {"--b", 46341}}), testing::ExitedWithCode(2),
              "^error: --a times --b is more than 2147483647; expected less\n$");
  // 2^60 times 2^60 is 0 in 64 bits.
  EXPECT_EXIT(require_product({{"--a", large}, {"--b", large}, {"--c", large}, {"--d", large}}),
              testing::ExitedWithCode(2), "is more than 2147483647");
  EXPECT_EXIT(require_product({{"--a", 3}, {"--b", 4}}, 11), testing::ExitedWithCode(2), "is more than 11");
}

TEST(Options, WhatNothingCatchesIsOneLine) {
  const auto throws = [](auto what) {
    const Options options("01_single_gpu/mlp", "test");
    std::thread([&] { throw what; }).join();
  };
  EXPECT_EXIT(throws(std::bad_alloc()), testing::ExitedWithCode(1), "^rank 0: not enough memory on the host\n$");
  EXPECT_EXIT(throws(std::runtime_error("why")), testing::ExitedWithCode(1), "^rank 0: why\n$");
}

TEST(Options, ProgramsThatTrainNothingRefuseTrainingOptions) {
  EXPECT_EXIT(
      {
        Options options("00_collectives/collectives", "test");
        options.without_training();
        parse(options, {"--lr", "1"});
      },
      testing::ExitedWithCode(2), "--lr");
}

TEST(SameOptions, TheFirstThatDiffersIsNamedWithItsValues) {
  const std::string lr = R"({"program": "02_ddp/ddp", "lr": 0.1, "optimizer": "sgd"})";
  EXPECT_EQ(difference_in_options({lr}), "");
  EXPECT_EQ(difference_in_options({lr, lr, lr}), "");
  EXPECT_EQ(difference_in_options({lr, lr, R"({"program": "02_ddp/ddp", "lr": 0.2, "optimizer": "sgd"})"}),
            "--lr is 0.1 on rank 0 and 0.2 on rank 2");
  // The optimizer may be why the learning rate differs.
  EXPECT_EQ(difference_in_options({lr, R"({"program": "02_ddp/ddp", "lr": 0.2, "optimizer": "adamw"})"}),
            "--optimizer is 'sgd' on rank 0 and 'adamw' on rank 1");
  EXPECT_EQ(difference_in_options({lr, R"({"program": "02_ddp/ddp", "lr": 0.1, "optimizer": "adamw"})"}),
            "--optimizer is 'sgd' on rank 0 and 'adamw' on rank 1");
  EXPECT_EQ(difference_in_options({lr, R"({"program": "02_ddp/ddp", "lr": 0.1})"}),
            "--optimizer is 'sgd' on rank 0 and missing on rank 1");
  EXPECT_EQ(difference_in_options({R"({"program": "02_ddp/ddp", "lr": 0.1})", lr}),
            "--optimizer is missing on rank 0 and 'sgd' on rank 1");
  EXPECT_EQ(difference_in_options({lr, R"({"program": "02_ddp/ddp_overlap", "bucket-mb": 25})"}),
            "rank 0 runs '02_ddp/ddp', and rank 1 runs '02_ddp/ddp_overlap'");
}

TEST(SameOptions, WhatChangesNoResultMayDiffer) {
  EXPECT_EQ(difference_in_options({R"({"program": "a", "log-every": 8, "verbose": true, "workers": 2})",
                                   R"({"program": "a", "log-every": 0, "verbose": false, "workers": 0})"}),
            "");
}

}  // namespace
}  // namespace workshop
