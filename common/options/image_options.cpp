// SPDX-License-Identifier: Apache-2.0
// The options of the image classifier and their defaults.
#include "common/options/options.h"
#include "common/options/options_parser.h"

namespace workshop {
namespace {

// As in the course's program (DeepSpeed's AlexNet in a pipeline): Adam, which is AdamW without weight decay, and the
// seed 1138.
constexpr std::array<std::array<const char*, 2>, 6> kAlexnetDefaults = {{{"--optimizer", "adamw"},
                                                                         {"--lr", "0.001"},
                                                                         {"--weight-decay", "0"},
                                                                         {"--samples", "4096"},
                                                                         {"--seed", "1138"},
                                                                         {"--model-seed", "1138"}}};
constexpr int kSteps = 100;

}  // namespace

void Options::add_image_options() {
  impl_->add_path("--images", images.folder, "folder with CIFAR-10's data_batch_1.bin to 5 and test_batch.bin",
                  "FOLDER", "a folder to read");
  add("--classes", images.classes, "number of classes of images", 2, 256);
  add("--image-size", images.size, "side of the images that the model sees, in pixels", 32, 1024);
  add("--shrink", images.shrink, "divides the channels and widths of AlexNet's layers: 1, 2, 4, … 64", 1, 64);
  add("--workers", images.workers, "threads that prepare batches; 0: the main thread does it", 0, 64);
  impl_->only_for("alexnet", {"--images", "--classes", "--image-size", "--shrink", "--workers"});

  for (const auto& [option, text] : kAlexnetDefaults) impl_->show_default(option, "alexnet", text);
  impl_->show_default("--dropout", "alexnet", "0.5");
  impl_->show_default("--max-steps", "alexnet", std::to_string(kSteps) + " without --epochs");
  impl_->show_default("--epochs", "alexnet", "as many as --max-steps needs");
}

void Options::use_alexnet() {
  if (!images.folder.empty() && impl_->given("--samples")) {
    usage_error("--samples is for the workshop's own images only; --images uses all of its folder");
  }
  if (64 % images.shrink != 0) {
    usage_error("--shrink is '%d'; expected 1, 2, 4, 8, 16, 32 or 64, which divide all widths", images.shrink);
  }
  // The course's program makes kSteps steps, in as many epochs as that needs. An epoch has at least one step, so
  // max_steps epochs are enough.
  if (!impl_->given("--epochs")) {
    if (!impl_->given("--max-steps")) max_steps = kSteps;
    if (max_steps > 0) epochs = max_steps;
  }
  for (const auto& [option, text] : kAlexnetDefaults) impl_->set_default(option, text);
  impl_->set_default("--dropout", "0.5");
  require_product(
      {{"--batch-size", batch_size}, {"3", 3}, {"--image-size", images.size}, {"--image-size", images.size}});
  require_product({{"--samples", samples}, {"the bytes of an image", 3073}});
}

}  // namespace workshop
