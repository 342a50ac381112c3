// SPDX-License-Identifier: Apache-2.0
// Prints every rank's place, device and software, how a node's devices are connected, and whether the job uses what it
// was given. Nothing to fill in. Run it first on every machine that is new to you.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"

namespace {

using namespace workshop;

// A rank's description of itself. It has a fixed size, so that NCCL can gather it as bytes.
struct RankInfo {
  int rank, local_rank, local_world;
  int device, visible;      // its device, and how many devices it sees
  int devices;              // of its node, for this job
  int driver, nccl;         // versions, as CUDA and NCCL number them
  std::size_t memory;       // of the device, bytes
  cudaUUID_t uuid;          // of the device, the same in all processes
  char node[64], name[64];  // name: of the device
  char bus[32], mpi[32];
};

void copy_text(char* to, std::size_t size, const std::string& text) { std::snprintf(to, size, "%s", text.c_str()); }

RankInfo rank_info(const Job& job) {
  RankInfo info = {};
  const Ranks& ranks = job.ranks();
  info.rank = ranks.rank;
  info.local_rank = ranks.local_rank;
  info.local_world = ranks.local_world;
  info.devices = job.devices();
  CUDA_CHECK(cudaGetDevice(&info.device));
  CUDA_CHECK(cudaGetDeviceCount(&info.visible));
  CUDA_CHECK(cudaDriverGetVersion(&info.driver));
  NCCL_CHECK(ncclGetVersion(&info.nccl));
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, info.device));
  info.memory = properties.totalGlobalMem;
  info.uuid = properties.uuid;
  CUDA_CHECK(cudaDeviceGetPCIBusId(info.bus, sizeof info.bus, info.device));
  copy_text(info.node, sizeof info.node, node_name());
  copy_text(info.name, sizeof info.name, properties.name);
  copy_text(info.mpi, sizeof info.mpi, mpi_version());
  return info;
}

// Returns the descriptions of all ranks, on every rank. This is the first collective of the job, the all-gather of
// collectives.cu with bytes: if it succeeds, all ranks can reach each other.
std::vector<RankInfo> gather(const RankInfo& mine, const Job& job) {
  const Stream stream;
  DeviceBuffer<RankInfo> in(1, Memory::data), out(job.world(), Memory::data);
  in.upload(&mine, stream);
  NCCL_CHECK(ncclAllGather(in.data(), out.data(), sizeof(RankInfo), ncclChar, job.comm(), stream));
  return out.download(stream);
}

// Formats like nvidia-smi -L: "GPU-5e1c92c2-…".
std::string to_string(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    text += byte;
  }
  return text;
}

std::string driver_text(int version) {
  if (version == 0) return "no driver";
  return "driver for CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nccl_text(int version) {
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void print_rank(const RankInfo& info, int world) {
  print0("rank %d of %d on %s, local rank %d of %d: device %d of %d, %s, %.1f GiB, %s, bus %s; %s, %s, %s\n", info.rank,
         world, info.node, info.local_rank, info.local_world, info.device, info.visible, info.name,
         static_cast<double>(info.memory) / (1 << 30), to_string(info.uuid).c_str(), info.bus,
         driver_text(info.driver).c_str(), nccl_text(info.nccl).c_str(), info.mpi);
}

// ---- how the devices of rank 0's node are connected ----------------------------------------------------------------

// Tells the kind of link from what one device can do with the other's memory.
std::string link(int from, int to) {
  if (from == to) return "-";
  int access = 0, atomics = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&access, from, to));
  CUDA_CHECK(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to));
  if (!access) return "host";
  return atomics ? "P2P+" : "P2P";
}

// Lists the ranks that use a device of rank 0's node: "rank 0,2".
std::string users_of(int device, const std::vector<RankInfo>& infos) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string ranks;
  for (const RankInfo& info : infos) {
    if (std::string(info.node) != infos[0].node || to_string(info.uuid) != to_string(properties.uuid)) continue;
    ranks += (ranks.empty() ? "rank " : ",") + std::to_string(info.rank);
  }
  return ranks.empty() ? "idle" : ranks;
}

void print_links(const std::vector<RankInfo>& infos) {
  const RankInfo& mine = infos[0];
  const int shown = std::min(mine.visible, mine.devices);
  print0(
      "\nLinks between the devices of %s. P2P: one device can access the memory of the other, over PCIe; P2P+:\n"
      "with atomic operations too, over NVLink; host: all traffic goes through the memory of the host\n",
      mine.node);
  print0("%12s", "");
  for (int to = 0; to < shown; ++to) print0("%6d", to);
  print0("\n");
  for (int from = 0; from < shown; ++from) {
    print0("%3d %-8s", from, users_of(from, infos).c_str());
    for (int to = 0; to < shown; ++to) print0("%6s", link(from, to).c_str());
    print0("\n");
  }
  if (shown < mine.devices) {
    print0(
        "Rank 0 sees %d of %d devices. Ranks that do not see each other's devices lose the fast links between them:\n"
        "ask for --gpus-per-node, not --gpus-per-task\n",
        shown, mine.devices);
  }
}

// ---- does the job use what it was given? ---------------------------------------------------------------------------

// Returns a number from Slurm's environment, 0 without Slurm.
int from_slurm(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

struct Node {
  std::string name;
  int given;                   // devices, for this job
  std::set<std::string> used;  // devices that its ranks use
};

std::vector<Node> nodes_of(const std::vector<RankInfo>& infos) {
  std::vector<Node> nodes;
  for (const RankInfo& info : infos) {
    auto node = std::find_if(nodes.begin(), nodes.end(), [&](const Node& other) { return other.name == info.node; });
    if (node == nodes.end()) node = nodes.insert(node, {info.node, info.devices, {}});
    node->used.insert(to_string(info.uuid));
  }
  return nodes;
}

bool same_versions(const std::vector<RankInfo>& infos) {
  return std::all_of(infos.begin(), infos.end(), [&](const RankInfo& info) {
    return info.driver == infos[0].driver && info.nccl == infos[0].nccl && std::string(info.mpi) == infos[0].mpi;
  });
}

// Returns a line for each thing that the job was given and does not use.
std::vector<std::string> unused(const std::vector<RankInfo>& infos) {
  std::vector<std::string> lines;
  const std::vector<Node> nodes = nodes_of(infos);
  for (const Node& node : nodes) {
    const int used = static_cast<int>(node.used.size());
    if (used >= node.given) continue;
    lines.push_back(node.name + " has " + std::to_string(node.given) + " devices for this job, and its ranks use " +
                    std::to_string(used));
  }
  if (const std::size_t tasks = from_slurm("SLURM_NTASKS"); tasks > infos.size()) {
    lines.push_back("Slurm has given the job " + std::to_string(tasks) + " tasks, and " + std::to_string(infos.size()) +
                    " of them run this program: start it with srun");
  }
  if (const std::size_t given = from_slurm("SLURM_JOB_NUM_NODES"); given > nodes.size()) {
    lines.push_back("the job has " + std::to_string(given) + " nodes, and its ranks are on " +
                    std::to_string(nodes.size()));
  }
  return lines;
}

// Prints on rank 0 whether the job uses what it was given, with the same software everywhere. Returns whether it does.
bool all_is_well(const std::vector<RankInfo>& infos) {
  std::vector<std::string> wrong = unused(infos);
  if (!same_versions(infos)) wrong.emplace_back("the ranks' drivers or libraries have different versions");
  for (const std::string& line : wrong) print0("WRONG: %s\n", line.c_str());
  if (!wrong.empty()) return false;
  const std::vector<Node> nodes = nodes_of(infos);
  std::size_t devices = 0;
  for (const Node& node : nodes) devices += node.used.size();
  print0("The job uses what it was given: nodes %zu, ranks %zu, devices %zu\n", nodes.size(), infos.size(), devices);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("00_collectives/hello",
                  "Prints all ranks, how their devices are connected, and whether all are used");
  options.without_training();
  options.parse(argc, argv);
  const Job job(options);

  const std::vector<RankInfo> infos = gather(rank_info(job), job);
  for (const RankInfo& info : infos) print_rank(info, job.world());
  if (job.rank() == 0) print_links(infos);
  print0("\n");
  return all_is_well(infos) ? 0 : kFailed;
}
