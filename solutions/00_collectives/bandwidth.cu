// SPDX-License-Identifier: Apache-2.0
// How long a collective takes: time, algorithm bandwidth and bus bandwidth over message sizes, and the latency and
// bandwidth that explain them: t = alpha + beta x bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "00_collectives/alpha_beta.h"
#include "common/device.h"
#include "common/files.h"
#include "common/job.h"
#include "common/record.h"

namespace {

using namespace workshop;
using Json = nlohmann::ordered_json;

enum class Op { all_reduce, all_gather, reduce_scatter, broadcast, send_recv };
const std::vector<std::string> kOps = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"};

constexpr int kWarmUp = 3;    // calls before the clock starts: the first ones set up connections
constexpr int kSizeStep = 4;  // each message is so many times as long as the one before
constexpr double kGiga = 1e9;

// Which collective is measured, by whom, on which stream.
struct Participants {
  Op op;
  ncclComm_t comm;
  cudaStream_t stream;
  int rank, world;
};

// The share of a message that each rank must at least send, through the one link that it has.
double bus_factor(Op op, int world) {
  double factor = 0;
  // TODO 00.14: Set `factor` to the bus factor of each Op.
  //   After an all-gather each of the P ranks has received all of the message but its own part, and some rank had to
  //   send that: (P-1)/P. broadcast and send_recv send the whole message once.
  //   What is left for a reduce-scatter, and for an all-reduce, which is both?
  const double others = static_cast<double>(world - 1) / world;
  if (op == Op::all_reduce) factor = 2 * others;
  if (op == Op::all_gather || op == Op::reduce_scatter) factor = others;
  if (op == Op::broadcast || op == Op::send_recv) factor = 1;
  // END TODO 00.14
  return factor;
}

// Probes see device memory, so the factors of all ops, [ops], go there once.
void probe_bus_factors(const Participants& group) {
  std::vector<float> factors;
  for (int op = 0; op < static_cast<int>(kOps.size()); ++op) {
    factors.push_back(static_cast<float>(bus_factor(static_cast<Op>(op), group.world)));
  }
  DeviceBuffer<float> on_device(factors.size(), Memory::data);
  on_device.upload(factors, group.stream);
  probe("00.14", "bus factors", on_device.data(), {static_cast<int>(factors.size())}, group.stream);
  CUDA_CHECK(cudaStreamSynchronize(group.stream));
}

// As in nccl-tests, a message is the longest buffer that a rank takes part with. In all-gather and reduce-scatter that
// is the one with a part for every rank, while the `count` of the call is the length of one part.
int parts(const Participants& group) {
  return group.op == Op::all_gather || group.op == Op::reduce_scatter ? group.world : 1;
}

// The `count` argument of the call for a message of `bytes`, rounded down to whole elements, at least one.
std::size_t count_argument(std::size_t bytes, const Participants& group) {
  return std::max<std::size_t>(1, bytes / sizeof(float) / parts(group));
}

int enqueued = 0;  // calls of enqueue() so far

// Enqueues one call of the collective.
void enqueue(const float* in, float* out, std::size_t count, const Participants& group) {
  ++enqueued;
  const auto& [op, comm, stream, rank, world] = group;
  switch (op) {
    case Op::all_reduce:
      NCCL_CHECK(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream));
      break;
    case Op::all_gather:
      NCCL_CHECK(ncclAllGather(in, out, count, ncclFloat, comm, stream));
      break;
    case Op::reduce_scatter:
      NCCL_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream));
      break;
    case Op::broadcast:
      NCCL_CHECK(ncclBroadcast(in, out, count, ncclFloat, 0, comm, stream));
      break;
    case Op::send_recv:  // to the next rank, from the previous one
      NCCL_CHECK(ncclGroupStart());
      NCCL_CHECK(ncclSend(in, count, ncclFloat, (rank + 1) % world, comm, stream));
      NCCL_CHECK(ncclRecv(out, count, ncclFloat, (rank + world - 1) % world, comm, stream));
      NCCL_CHECK(ncclGroupEnd());
      break;
  }
}

// The largest of the ranks' values.
double slowest(float seconds, const Participants& group) { return std::ranges::max(Group(group.comm).gather(seconds)); }

// Measures calls of the collective with the same buffers, and checks what they leave in `out`.
class Benchmark {
 public:
  Benchmark(std::size_t max_bytes, const Participants& group)
      : group_(group),
        in_(count_argument(max_bytes, group) * parts(group), Memory::data),
        out_(in_.size(), Memory::data) {
    in_.upload(std::vector<float>(in_.size(), 1.0f), group_.stream);
  }

  Measurement measure(std::size_t bytes, int iterations) {
    const std::size_t count = count_argument(bytes, group_);
    const float* in = in_.data();
    float* out = out_.data();
    for (int i = 0; i < kWarmUp; ++i) enqueue(in, out, count, group_);
    CUDA_CHECK(cudaMemsetAsync(out, 0, out_.bytes(), group_.stream));
    CUDA_CHECK(cudaStreamSynchronize(group_.stream));

    Event start(cudaEventDefault), stop(cudaEventDefault);
    float milliseconds = 0;
    const int enqueued_before = enqueued;
    const auto before = std::chrono::steady_clock::now();
    // TODO 00.15: Set `milliseconds` to the time that `iterations` calls of enqueue() take on the device.
    //   Record `start` and `stop` around them, cudaEventRecord(event, stream), and ask
    //   cudaEventElapsedTime(&milliseconds, start, stop) for the time between the two. enqueue() only enqueues. What
    //   must have happened before that time is known?
    CUDA_CHECK(cudaEventRecord(start, group_.stream));
    for (int i = 0; i < iterations; ++i) enqueue(in, out, count, group_);
    CUDA_CHECK(cudaEventRecord(stop, group_.stream));
    CUDA_CHECK(cudaEventSynchronize(stop));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    // END TODO 00.15
    CUDA_CHECK(cudaStreamSynchronize(group_.stream));
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - before;
    probe("00.15", "calls enqueued", std::vector<int>{enqueued - enqueued_before});
    probe("00.15", "result", out, {static_cast<int>(std::min<std::size_t>(count, 4096))}, group_.stream);
    shares_timed_.push_back(milliseconds / 1e3 / waited.count());
    check_result(count);
    return {count * parts(group_) * sizeof(float), slowest(milliseconds / 1e3f / iterations, group_)};
  }

  bool results_right() const { return results_right_; }

  // The time between the events lies within the time that the host waited for the calls, and is most of it. On a busy
  // machine the host may be late to notice that the device is done: the bounds are wide, the size in the middle speaks
  // for all, and a rank alone, whose calls are copies, done before a host is woken, is not judged.
  double share_timed() const {
    std::vector<double> shares = shares_timed_;
    const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
    std::nth_element(shares.begin(), middle, shares.end());
    return *middle;
  }
  bool timing_plausible() const {
    return group_.world == 1 || time_is_simulated() || (share_timed() >= 0.1 && share_timed() <= 1.1);
  }
  // What a time may be that is not.
  const char* advice(int iterations) const {
    const double share = share_timed(), one = 1.0 / iterations;
    if (share < 0) return ": start and stop are exchanged";
    if (share > 0.3 * one && share < 3 * one)
      return ": that is the time of one call; it is divided by `iterations` later";
    if (share > 0.3e-3 && share < 3e-3) return ": milliseconds are asked for, or no call lies between the two events";
    return ": do the events lie around the calls, on the same stream?";
  }

 private:
  void check_result(std::size_t count) {
    const bool sums = group_.op == Op::all_reduce || group_.op == Op::reduce_scatter;
    const float expected = sums ? static_cast<float>(group_.world) : 1.0f;
    const std::size_t written = group_.op == Op::reduce_scatter ? count : count * parts(group_);
    const std::vector<float> out = out_.download(group_.stream);
    results_right_ = results_right_ && std::all_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(written),
                                                   [expected](float x) { return x == expected; });
  }

  Participants group_;
  DeviceBuffer<float> in_, out_;
  std::vector<double> shares_timed_;  // of the time that the host waited, by size
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
  Options options("00_collectives/bandwidth", "Time and bandwidth of a collective over message sizes");
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
  if (process_ranks().rank == 0) check_writable("--json", json_file);
  Job job(options);
  Stream stream;
  const auto chosen = static_cast<Op>(std::find(kOps.begin(), kOps.end(), op) - kOps.begin());
  const Participants group = {chosen, job.comm(), stream, job.rank(), job.world()};

  probe_bus_factors(group);
  const double factor = bus_factor(group.op, job.world());
  print0("%s on %d ranks, %d calls a size after %d to warm up; bus bandwidth = %.4g x algorithm bandwidth\n",
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

  if (!benchmark.results_right()) {
    std::printf("rank %d: WRONG, the calls left other values than expected\n", job.rank());
  }
  if (!benchmark.timing_plausible()) {
    std::printf("rank %d: WRONG, TODO 00.15 measures %.2g times the time that the host waited for the calls%s\n",
                job.rank(), benchmark.share_timed(), benchmark.advice(iterations));
  }
  return benchmark.results_right() && benchmark.timing_plausible() ? 0 : kFailed;
}
