// SPDX-License-Identifier: Apache-2.0
// Measures how long a collective takes for different message sizes. Prints time, algorithm bandwidth and bus bandwidth,
// and fits the model of chapter 00 to the times: alpha + beta x bytes.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "00_collectives/support/alpha_beta.h"
#include "00_collectives/support/timing_check.h"
#include "common/base/files.h"
#include "common/device/device.h"
#include "common/job/job.h"
#include "common/record/record.h"

namespace {

using namespace workshop;
using Json = nlohmann::ordered_json;

enum class CollectiveOp { all_reduce, all_gather, reduce_scatter, broadcast, send_recv };
const std::vector<std::string> kOps = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"};

constexpr int kWarmUp = 3;    // calls before the clock starts: the first calls set up connections
constexpr int kSizeStep = 4;  // each message is this many times as long as the one before
constexpr double kGiga = 1e9;

// The operation that is measured, and the ranks and stream that it runs on.
struct CollectiveCall {
  CollectiveOp op;
  ncclComm_t comm;
  cudaStream_t stream;
  int rank, world;
};

// Returns the share of a message that each rank must send at least, over its one link.
double bus_factor(CollectiveOp op, int world) {
  double factor = 0;
  // TODO 00.14: Set `factor` to the bus factor of each operation.
  //   In an all-gather, each of the P ranks receives all of the message except its own part, so on average each rank
  //   sends (P-1)/P of it. broadcast and send_recv send the whole message once.
  //   What is the factor of a reduce-scatter, and of an all-reduce, which is both?
  const double others = static_cast<double>(world - 1) / world;
  if (op == CollectiveOp::all_reduce) factor = 2 * others;
  if (op == CollectiveOp::all_gather || op == CollectiveOp::reduce_scatter) factor = others;
  if (op == CollectiveOp::broadcast || op == CollectiveOp::send_recv) factor = 1;
  // END TODO 00.14
  return factor;
}

// Returns the bus factors of all operations, in the order of CollectiveOp.
std::vector<double> bus_factors(int world) {
  std::vector<double> factors;
  for (std::size_t op = 0; op < kOps.size(); ++op) factors.push_back(bus_factor(static_cast<CollectiveOp>(op), world));
  probe("00.14", "bus factors of all_reduce, all_gather, reduce_scatter, broadcast, send_recv", factors);
  return factors;
}

// Returns how many times the call's `count` the message has. As in nccl-tests, the message is the longest buffer that a
// rank takes part with. In all-gather and reduce-scatter, this is the buffer with one part per rank, while `count` is
// the length of one part.
int parts(const CollectiveCall& group) {
  return group.op == CollectiveOp::all_gather || group.op == CollectiveOp::reduce_scatter ? group.world : 1;
}

// Returns the `count` argument for a message of `bytes`, rounded down to whole elements, but at least 1.
std::size_t count_argument(std::size_t bytes, const CollectiveCall& group) {
  return std::max<std::size_t>(1, bytes / sizeof(float) / parts(group));
}

int enqueued = 0;  // calls of enqueue() so far

// Enqueues one call of the collective.
void enqueue(const float* in, float* out, std::size_t count, const CollectiveCall& group) {
  ++enqueued;
  const auto& [op, comm, stream, rank, world] = group;
  switch (op) {
    case CollectiveOp::all_reduce:
      NCCL_CHECK(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream));
      break;
    case CollectiveOp::all_gather:
      NCCL_CHECK(ncclAllGather(in, out, count, ncclFloat, comm, stream));
      break;
    case CollectiveOp::reduce_scatter:
      NCCL_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream));
      break;
    case CollectiveOp::broadcast:
      NCCL_CHECK(ncclBroadcast(in, out, count, ncclFloat, 0, comm, stream));
      break;
    case CollectiveOp::send_recv:  // to the next rank, from the previous one
      NCCL_CHECK(ncclGroupStart());
      NCCL_CHECK(ncclSend(in, count, ncclFloat, (rank + 1) % world, comm, stream));
      NCCL_CHECK(ncclRecv(out, count, ncclFloat, (rank + world - 1) % world, comm, stream));
      NCCL_CHECK(ncclGroupEnd());
      break;
  }
}

// Returns the largest of the ranks' values.
double slowest(float seconds, const CollectiveCall& group) {
  return std::ranges::max(Group(group.comm).gather(seconds));
}

// Measures calls of the collective for messages of up to `max_bytes`, and checks what they leave in `out`.
class Benchmark {
 public:
  Benchmark(std::size_t max_bytes, const CollectiveCall& group)
      : group_(group),
        in_(count_argument(max_bytes, group) * parts(group), Memory::data),
        out_(in_.size(), Memory::data),
        timing_(group.rank, group.world) {
    in_.upload(std::vector<float>(in_.size(), 1.0f), group_.stream);
  }

  Measurement measure(std::size_t bytes, int iterations) {
    const std::size_t count = count_argument(bytes, group_);
    const float* in = in_.data();
    float* out = out_.data();
    for (int i = 0; i < kWarmUp; ++i) enqueue(in, out, count, group_);
    CUDA_CHECK(cudaMemsetAsync(out, 0, out_.bytes(), group_.stream));
    CUDA_CHECK(cudaStreamSynchronize(group_.stream));

    float milliseconds = 0;
    const int enqueued_before = enqueued;
    timing_.start();
    // WRITE 00.L: Set `milliseconds` to the time that `iterations` calls of enqueue() take on the device.
    //   enqueue(in, out, count, group_) only enqueues a call on group_.stream. Time all calls together, with two events
    //   on the stream: the device must not be idle between calls, and the host's clock would not show when the device
    //   is done. An Event takes the time only if it is made with the flag cudaEventDefault.
    Event start(cudaEventDefault), stop(cudaEventDefault);
    // TODO 00.15: Set `milliseconds` to the time that `iterations` calls of enqueue() take on the device.
    //   All calls are timed together: the device must not be idle between them. Record `start` before the first one and
    //   `stop` after the last one with cudaEventRecord(event, stream), and read the time between the two with
    //   cudaEventElapsedTime(&milliseconds, start, stop). enqueue() only enqueues. What must have happened before this
    //   time is known?
    CUDA_CHECK(cudaEventRecord(start, group_.stream));
    for (int i = 0; i < iterations; ++i) enqueue(in, out, count, group_);
    CUDA_CHECK(cudaEventRecord(stop, group_.stream));
    CUDA_CHECK(cudaEventSynchronize(stop));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    // END TODO 00.15
    // END WRITE 00.L
    CUDA_CHECK(cudaStreamSynchronize(group_.stream));
    timing_.stop(milliseconds, iterations);
    probe("00.15", "calls enqueued", std::vector<int>{enqueued - enqueued_before});
    if (time_is_simulated()) probe("00.15", "time of a call, in ms", std::vector<double>{milliseconds / iterations});
    probe("00.15", "result", out, {static_cast<int>(std::min<std::size_t>(count, 4096))}, group_.stream);
    check_result(count);
    return {count * parts(group_) * sizeof(float), slowest(milliseconds / 1e3f / iterations, group_)};
  }

  // Prints what is wrong with the results or the times. Returns whether nothing is.
  bool passed() const {
    if (!results_right_) std::printf("rank %d: WRONG, the calls left unexpected values\n", group_.rank);
    const bool times_right = timing_.passed();
    return results_right_ && times_right;
  }

 private:
  void check_result(std::size_t count) {
    const bool sums = group_.op == CollectiveOp::all_reduce || group_.op == CollectiveOp::reduce_scatter;
    const float expected = sums ? static_cast<float>(group_.world) : 1.0f;
    const std::size_t written = group_.op == CollectiveOp::reduce_scatter ? count : count * parts(group_);
    const std::vector<float> out = out_.download(group_.stream);
    results_right_ = results_right_ && std::all_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(written),
                                                   [expected](float x) { return x == expected; });
  }

  CollectiveCall group_;
  DeviceBuffer<float> in_, out_;
  TimingCheck timing_;
  bool results_right_ = true;
};

void print_table(const std::vector<Measurement>& measurements, const Fit& fit, double factor) {
  print0("%12s %12s %18s %12s %12s\n", "bytes", "time [us]", "algorithm [GB/s]", "bus [GB/s]", "fit [us]");
  for (const auto& [bytes, t] : measurements) {
    const double algorithm = static_cast<double>(bytes) / t / kGiga;
    print0("%12zu %12.1f %18.3f %12.3f %12.1f\n", bytes, t * 1e6, algorithm, factor * algorithm,
           fit.seconds(static_cast<double>(bytes)) * 1e6);
  }
  print0("t = %.1f us + bytes / %.3f GB/s\n", fit.alpha * 1e6, 1 / fit.beta / kGiga);
}

std::string json_text(const std::string& op, int world, const std::vector<Measurement>& measurements, const Fit& fit,
                      double factor) {
  Json json = {{"op", op},
               {"ranks", world},
               {"bus_factor", factor},
               {"alpha_seconds", fit.alpha},
               {"beta_seconds_per_byte", fit.beta},
               {"measurements", Json::array()}};
  for (const auto& [bytes, t] : measurements) {
    const double algorithm = static_cast<double>(bytes) / t / kGiga;
    json["measurements"].push_back(
        {{"bytes", bytes}, {"seconds", t}, {"algorithm_gb_per_s", algorithm}, {"bus_gb_per_s", factor * algorithm}});
  }
  return json.dump(1) + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  int min_kib = 4, max_mib = 16, iterations = 10;
  std::string op = kOps[0], json_file;
  Options options("00_collectives/bandwidth", "Measures time and bandwidth of a collective over message sizes");
  options.without_training();
  options.add("--op", op, "what to measure", kOps);
  options.add("--min-kib", min_kib, "shortest message [KiB]", 1, 1 << 21);
  options.add("--max-mib", max_mib, "longest message [MiB]", 1, 1 << 11);
  options.add("--iterations", iterations, "calls that are timed together", 1);
  options.add("--json", json_file, "write the measurements and the fit to this file", {});
  options.parse(argc, argv);
  const std::size_t min_bytes = std::size_t{1024} * min_kib, max_bytes = std::size_t{1024 * 1024} * max_mib;
  if (min_bytes > max_bytes) {
    usage_error("--min-kib is '%d'; expected at most --max-mib, %zu KiB", min_kib, max_bytes / 1024);
  }
  if (process_ranks().rank == 0) claim_file("--json", json_file);
  Job job(options);
  Stream stream;
  const auto chosen = static_cast<CollectiveOp>(std::find(kOps.begin(), kOps.end(), op) - kOps.begin());
  const CollectiveCall group = {chosen, job.comm(), stream, job.rank(), job.world()};

  const double factor = bus_factors(job.world())[static_cast<std::size_t>(chosen)];
  print0("%s on %d ranks, %d calls per size after %d warm-up calls; bus bandwidth = %.4g x algorithm bandwidth\n",
         op.c_str(), job.world(), iterations, kWarmUp, factor);
  Benchmark benchmark(max_bytes, group);
  std::vector<Measurement> measurements;
  for (std::size_t bytes = min_bytes; bytes <= max_bytes; bytes *= kSizeStep) {
    measurements.push_back(benchmark.measure(bytes, iterations));
  }
  const Fit line = fit(measurements);
  print_table(measurements, line, factor);
  if (job.rank() == 0 && !json_file.empty()) {
    write_file(json_file, json_text(op, job.world(), measurements, line, factor));
  }

  return benchmark.passed() ? 0 : kFailed;
}
