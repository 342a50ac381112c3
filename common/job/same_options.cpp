// SPDX-License-Identifier: Apache-2.0
#include "common/job/same_options.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/device/device.h"
#include "common/nccl/gather.h"
#include "common/options/options.h"

namespace workshop {
namespace {

using Json = nlohmann::json;

// The defaults of other options depend on these options, so these are compared first.
constexpr std::array kCauses = {"program", "model", "text", "images", "optimizer", "shuffle", "global-batch"};

// Options that may differ. Paths may differ, too, but are not among the options of a record.
constexpr std::array kMayDiffer = {"log-every", "peak-tflops", "verbose", "workers"};

Json options_of(const Options& options) {
  Json json = Json::parse(options.json());
  json["program"] = options.program();
  json["checkpoints"] = options.checkpoints;
  json["resume"] = options.resume;
  // Where the data is may differ, but not whether it is read or generated.
  json["text"] = options.gpt.text.empty() ? "not given" : "given";
  json["images"] = options.images.folder.empty() ? "not given" : "given";
  return json;
}

std::string value_of(const Json& options, const std::string& name) {
  const auto value = options.find(name);
  if (value == options.end()) return "missing";
  return value->is_string() ? "'" + value->get<std::string>() + "'" : value->dump();
}

}  // namespace

std::string difference_in_options(const std::vector<std::string>& texts) {
  const Json first = Json::parse(texts.at(0));
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const Json other = Json::parse(texts[rank]);
    std::vector<std::string> names(kCauses.begin(), kCauses.end());
    for (const Json& options : {first, other}) {
      for (const auto& [name, value] : options.items()) names.push_back(name);
    }
    for (const std::string& name : names) {
      const std::string mine = value_of(first, name), its = value_of(other, name);
      if (mine == its || std::ranges::find(kMayDiffer, name) != kMayDiffer.end()) continue;
      const std::string on = std::to_string(rank);
      if (name == "program") return "rank 0 runs " + mine + ", and rank " + on + " runs " + its;
      return "--" + name + " is " + mine + " on rank 0 and " + its + " on rank " + on;
    }
  }
  return "";
}

void require_same_options(const Options& options, ncclComm_t world) {
  int rank = 0;
  NCCL_CHECK(ncclCommUserRank(world, &rank));
  const Stream stream("options");
  const std::vector<std::string> texts = gather_text(options_of(options).dump(), world, stream);
  if (texts.size() == 1) return;
  const std::string difference = difference_in_options(texts);
  if (!difference.empty()) usage_error(difference + ": every rank must get the same options");
}

}  // namespace workshop
