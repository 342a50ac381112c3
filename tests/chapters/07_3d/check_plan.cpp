// Holds a plan against a run: check_plan PLAN RECORD [KIND]...
// PLAN is what 07_3d/plan has written with --json for one mesh, RECORD the record of a run on that mesh. Of every rank,
// the peak memory of the kinds named, and the bytes sent a step in each group must be as planned, up to 2 %: for the
// padding of shards, which a plan leaves out, and for what a run sends once or once an epoch, such as its losses.
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tools/run_record.h"

namespace {

using workshop::tools::Collective;
using workshop::tools::RunRecord;
using Json = nlohmann::json;
constexpr double kTolerance = 0.02;

// The group whose traffic a line of the ledger is, as the plan names it; "" for what is sent before the first step.
std::string group(const Collective& c, const RunRecord& record) {
  if (c.op == "ncclBroadcast") return "";
  if (c.op == "ncclSend" || c.op == "ncclRecv") return "pipeline";
  return c.communicator == "tensor" || record.chapter == "05_tensor_parallel" ? "tensor" : "data";
}

class Comparison {
 public:
  void compare(int rank, const std::string& what, double found, double planned) {
    ++numbers_;
    if (std::abs(found - planned) <= kTolerance * planned) return;
    ++differences_;
    std::printf("rank %d, %s: %.0f bytes, planned %.0f\n", rank, what.c_str(), found, planned);
  }
  // Prints how much has been compared, which must be something, and returns the exit status.
  int finish() const {
    std::printf("%d numbers compared, %d differ\n", numbers_, differences_);
    return numbers_ > 0 && differences_ == 0 ? 0 : 1;
  }

 private:
  int numbers_ = 0, differences_ = 0;
};

int check_plan(const Json& plan, const RunRecord& record, const std::vector<std::string>& kinds) {
  const int ranks_of_stage = plan.at("dp").get<int>() * plan.at("tp").get<int>();
  if (record.world != ranks_of_stage * plan.at("pp").get<int>() || record.steps == 0) {
    throw std::runtime_error("the run is on " + std::to_string(record.world) + " ranks, or has no steps");
  }
  std::map<int, std::map<std::string, double>> sent;
  for (const Collective& c : record.collectives) sent[c.rank][group(c, record)] += bytes_sent(c) / record.steps;
  Comparison comparison;
  for (int rank = 0; rank < record.world; ++rank) {
    const Json& stage = plan.at("stages").at(rank / ranks_of_stage);
    for (const std::string& kind : kinds) {
      comparison.compare(rank, kind, record.peaks.at(rank).at(kind), stage.at("memory").at(kind));
    }
    for (const auto& [name, planned] : stage.at("sent").items()) {
      comparison.compare(rank, "sent a step, " + name, sent[rank][name], planned);
    }
  }
  return comparison.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::runtime_error("usage: check_plan PLAN RECORD [KIND]...");
    std::ifstream file(argv[1]);
    const Json plans = Json::parse(file).at("plans");
    if (plans.size() != 1) throw std::runtime_error(std::string(argv[1]) + ": expected the plan of one mesh");
    return check_plan(plans[0], workshop::tools::read_run_record(argv[2]), {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "check_plan: %s\n", error.what());
    return 2;
  }
}
