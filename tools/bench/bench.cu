// SPDX-License-Identifier: Apache-2.0
// Measures what the common layer and the cpu backend cost, as ratios within one run. Part of ./workshop bench, which
// README.md describes.
//
//   bench --part all_reduce   all-reduce through nccl.h, compared with the MPI call that the cpu backend uses, on all
//                             ranks; on GPUs, use 00_collectives/bandwidth, which measures like nccl-tests
//   bench --part mlp_step     a training step of an MLP, compared with only its matrix products, on one rank
//   bench --part kernels      the bytes per second that the kernels of a language model move, compared with a copy
//
// Each measurement alternates between the two sides and repeats. The best time of each side counts, because other work
// on the machine can only add time. --json FILE writes the numbers.
#ifdef WORKSHOP_BACKEND_CPU
#include <mpi.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "01_single_gpu/attention.h"
#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/embedding.h"
#include "01_single_gpu/layer_norm.h"
#include "01_single_gpu/mlp.h"
#include "01_single_gpu/optimizer.h"
#include "common/job/job.h"
#include "model/elementwise.h"

using namespace workshop;
using Json = nlohmann::ordered_json;

namespace {

// Returns the time of work on the stream, measured with two events as on a GPU. Calls `start` once everything is
// enqueued.
double stream_seconds(
    cudaStream_t stream, const std::function<void()>& enqueue, const std::function<void()>& start = [] {}) {
  const Event begin(cudaEventDefault), end(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(begin, stream));
  enqueue();
  CUDA_CHECK(cudaEventRecord(end, stream));
  start();
  CUDA_CHECK(cudaStreamSynchronize(stream));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  return milliseconds / 1e3;
}

// The best times of two ways to do the same work, in seconds.
struct Pair {
  double ours = std::numeric_limits<double>::infinity(), bare = ours;
};

Pair compare(int rounds, const std::function<double()>& ours, const std::function<double()>& bare) {
  Pair best;
  ours();
  bare();
  for (int round = 0; round < rounds; ++round) {
    best.bare = std::min(best.bare, bare());
    best.ours = std::min(best.ours, ours());
  }
  return best;
}

#ifdef WORKSHOP_BACKEND_CPU
double host_seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Prints one line per size: bytes, our time and MPI's in microseconds, ratio of the bandwidths.
Json all_reduce(const Job& job) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  const Stream stream;
  Json sizes;
  print0("all-reduce on %d ranks        nccl.h          MPI   bandwidth ratio\n", job.world());
  for (int kib = 1; kib <= 64 << 10; kib *= 4) {
    const int count = kib * 256;
    // As many as a stream can queue, so that the cores run only the calls, as with MPI.
    const int calls = std::clamp((64 << 10) / kib, 2, 800);
    DeviceBuffer<float> in(count, Memory::data), out(count, Memory::data);
    launch(fill, count, stream, in.data(), 1.0f, count);
    launch(fill, count, stream, out.data(), 1.0f, count);
    stream.synchronize();
    const auto ours = [&] {
      // All calls are in the queue before the first one starts, so the time is that of the stream and not of the host.
      std::atomic<bool> closed = true;
      const auto wait = [](void* gate) {
        while (*static_cast<std::atomic<bool>*>(gate)) std::this_thread::sleep_for(std::chrono::microseconds(20));
      };
      CUDA_CHECK(cudaLaunchHostFunc(stream, wait, &closed));
      return stream_seconds(
          stream,
          [&] {
            for (int i = 0; i < calls; ++i) {
              NCCL_CHECK(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, job.comm(), stream));
            }
          },
          [&] {
            MPI_CHECK(MPI_Barrier(comm));
            closed = false;
          });
    };
    const auto bare = [&] {
      MPI_CHECK(MPI_Barrier(comm));
      return host_seconds([&] {
        for (int i = 0; i < calls; ++i) {
          MPI_CHECK(MPI_Allreduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, comm));
        }
      });
    };
    const Pair best = compare(kib < 4096 ? 100 : 10, ours, bare);
    const double ratio = best.bare / best.ours;
    print0("%12d KiB   %12.2f us %12.2f us   %6.2f\n", kib, best.ours / calls * 1e6, best.bare / calls * 1e6, ratio);
    sizes.push_back({{"bytes", kib << 10},
                     {"nccl_us", best.ours / calls * 1e6},
                     {"mpi_us", best.bare / calls * 1e6},
                     {"ratio", ratio}});
  }
  MPI_CHECK(MPI_Comm_free(&comm));
  return {{"all_reduce", sizes}};
}
#endif

// Four GELU layers of width 1,024, batch 128, AdamW.
Json mlp_step(const Options& shared) {
  constexpr int width = 1024, depth = 4, rows = 128, steps = 3;
  const Network network = make_mlp(std::vector<int>(depth + 1, width), Activation::gelu);
  const Stream stream;
  Model model(network, rows, stream);
  model.initialize(1);
  Activations activations = model.make_activations();
  Optimizer optimizer(shared, model.count(), stream);
  DeviceBuffer<float> x(rows * width, Memory::data), y(rows * width, Memory::data), loss(1, Memory::data);
  std::vector<float> host(rows * width);
  Generator(2).randn(host.data(), host.size());
  x.upload(host, stream);
  y.upload(host, stream);
  CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));

  const auto step = [&] {
    return stream_seconds(stream, [&] {
      for (int i = 0; i < steps; ++i) {
        model.forward({.x = x.data(), .samples = rows}, activations);
        model.loss(activations, y.data(), rows, loss.data());
        model.backward(activations);
        optimizer.step(model.values(), model.grads());
      }
    });
  };
  const Blas blas(stream);
  DeviceBuffer<float> product(rows * width, Memory::data);
  const auto gemms = [&] {
    return stream_seconds(stream, [&] {
      for (int i = 0; i < steps; ++i) {
        for (int k = 0; k < depth; ++k) {
          const float* weight = model.parameters()[2 * k].value;
          float* weight_grad = model.parameters()[2 * k].grad;
          gemm(blas, Op::as_is, Op::transposed, rows, width, width, x.data(), weight, 0, product.data());
          gemm(blas, Op::transposed, Op::as_is, width, width, rows, y.data(), x.data(), 0, weight_grad);
          if (k > 0) gemm(blas, Op::as_is, Op::as_is, rows, width, width, y.data(), weight, 0, product.data());
        }
      }
    });
  };
  const Pair best = compare(20, step, gemms);
  const double ratio = best.ours / best.bare;
  print0("MLP of %d x %d, GELU, batch %d, AdamW: %.2f ms per step, %.2f ms for its products only, ratio %.2f\n", depth,
         width, rows, best.ours / steps * 1e3, best.bare / steps * 1e3, ratio);
  return {
      {"mlp_step", {{"step_ms", best.ours / steps * 1e3}, {"products_ms", best.bare / steps * 1e3}, {"ratio", ratio}}}};
}

// Arrays of random numbers, as large as the kernels need them.
struct KernelArrays {
  KernelArrays(int samples, int positions, int width, int heads, int vocabulary, cudaStream_t stream)
      : rows(samples * positions), scores(rows * heads * positions) {
    std::vector<float> numbers(static_cast<std::size_t>(rows) * std::max({vocabulary, width, heads * positions}));
    Generator(1).uniform(numbers.data(), std::min<std::size_t>(numbers.size(), 1 << 20), -1, 1);
    for (std::size_t i = 1 << 20; i < numbers.size(); ++i) numbers[i] = numbers[i - (1 << 20)];
    for (DeviceBuffer<float>* matrix : {&a, &b, &c}) {
      *matrix = DeviceBuffer<float>(numbers.size(), Memory::data);
      matrix->upload(numbers, stream);
    }
    numbers.resize(static_cast<std::size_t>(vocabulary) * width);
    for (DeviceBuffer<float>* matrix : {&words, &moments}) {
      *matrix = DeviceBuffer<float>(numbers.size(), Memory::data);
      matrix->upload(numbers, stream);
    }
    std::vector<std::int32_t> ids(rows);
    for (int i = 0; i < rows; ++i) ids[i] = static_cast<int>(static_cast<long long>(i) * 7919 % vocabulary);
    tokens = DeviceBuffer<std::int32_t>(rows, Memory::data);
    tokens.upload(ids, stream);
    links = DeviceBuffer<int>(2 * rows, Memory::data);
    for (DeviceBuffer<float>* statistics : {&mean, &rstd}) {
      *statistics = DeviceBuffer<float>(std::max(rows, width), Memory::data);
      statistics->upload(std::vector<float>(statistics->size(), 1.0f), stream);
    }
  }
  int rows, scores;
  DeviceBuffer<float> a, b, c, words, moments, mean, rstd;
  DeviceBuffer<std::int32_t> tokens;
  DeviceBuffer<int> links;
};

// Of each kernel, the least bytes that it has to move (01_single_gpu/math.md), over its time. On a GPU, the sizes are
// GPT-2's with 8 samples; on a CPU, smaller ones.
Json kernels() {
#ifdef WORKSHOP_BACKEND_CPU
  constexpr int samples = 4, T = 128, E = 256, heads = 8, V = 4096;
#else
  constexpr int samples = 8, T = 1024, E = 768, heads = 12, V = 50257;
#endif
  const Stream stream;
  KernelArrays k(samples, T, E, heads, V, stream);
  const int rows = k.rows, score_rows = rows * heads;
  const double matrix = 4.0 * rows * E, logits = 4.0 * rows * V, scores = 4.0 * k.scores, half = scores / 2;
  const double all_words = 4.0 * V * E;
  float *a = k.a.data(), *b = k.b.data(), *c = k.c.data(), *mean = k.mean.data(), *rstd = k.rstd.data();
  const SameWord same{k.links.data(), k.links.data() + rows};
  const std::int32_t* tokens = k.tokens.data();
  struct Case {
    const char* name;
    double bytes;  // read and written
    std::function<void()> launch_it;
  };
  const std::vector<Case> cases = {
      {"copy", 2 * logits,
       [&] { CUDA_CHECK(cudaMemcpyAsync(b, a, static_cast<std::size_t>(logits), cudaMemcpyDeviceToDevice, stream)); }},
      {"layer_norm_forward", 2 * matrix,
       [&] {
         launch(layer_norm_forward, rows * E, stream, b, mean, rstd, a, k.words.data(), k.words.data(), rows, E);
       }},
      {"layer_norm_backward", 4 * matrix,
       [&] { launch(layer_norm_backward, rows * E, stream, c, c, b, a, mean, rstd, k.words.data(), rows, E); }},
      {"layer_norm_parameter_gradients", 2 * matrix,
       [&] {
         launch(layer_norm_parameter_gradients, rows * E, stream, k.moments.data(), k.moments.data() + E, b, a, mean,
                rstd, rows, E, 0.0f);
       }},
      {"causal_softmax", half + scores,
       [&] { launch(causal_softmax, k.scores, stream, a, 1.0f, score_rows, T, 0, T); }},
      {"causal_softmax_backward", 2 * half + scores,
       [&] { launch(causal_softmax_backward, k.scores, stream, b, a, 1.0f, score_rows, T); }},
      {"cross_entropy_forward", logits,
       [&] { launch(cross_entropy_forward, rows * V, stream, mean, rstd, c, tokens, rows, V); }},
      {"cross_entropy_backward", 2 * logits,
       [&] { launch(cross_entropy_backward, rows * V, stream, b, c, rstd, tokens, rows, V, rows); }},
      {"embedding_forward", 2 * matrix,
       [&] { launch(embedding_forward, rows * E, stream, b, tokens, k.words.data(), a, Positions(T), rows, E); }},
      {"embedding_backward", 3 * matrix,
       [&] { embedding_backward(k.moments.data(), c, a, tokens, same, 0, V, T, rows, E, stream); }},
      {"adamw", 7 * all_words,
       [&] {
         launch(adamw, V * E, stream, k.words.data(), a, b, c, AdamWStep{1, 0.1f, 0.001f, 0.999f, 1e-6f, 1, 1e-8f},
                V * E);
       }},
  };
  Json lines;
  print0("%-32s %12s %12s %10s\n", "kernel", "least bytes", "time", "GB/s");
  for (const Case& test : cases) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 30; ++i) best = std::min(best, stream_seconds(stream, test.launch_it));
    print0("%-32s %9.1f MB %9.3f ms %10.1f\n", test.name, test.bytes / 1e6, best * 1e3, test.bytes / best / 1e9);
    lines.push_back({{"kernel", test.name}, {"bytes", test.bytes}, {"ms", best * 1e3}});
  }
  return {{"kernels", lines}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options("tools/bench", "Measures what the common layer and the cpu backend cost.");
  options.without_training();
  std::string part = "mlp_step", json_file;
  options.add("--part", part, "what to measure", {"all_reduce", "mlp_step", "kernels"});
  options.add("--json", json_file, "file to write the numbers to", {});
  options.parse(argc, argv);
  options.optimizer = OptimizerKind::adamw;
  options.lr = 1e-4;  // with more, this width diverges, and the processor computes denormal numbers far more slowly
  const Job job(options);

  Json json;
  if (part == "mlp_step") {
    json = mlp_step(options);
  } else if (part == "kernels") {
    json = kernels();
  } else {
#ifdef WORKSHOP_BACKEND_CPU
    json = all_reduce(job);
#else
    usage_error("--part all_reduce is for the cpu backend; on GPUs use 00_collectives/bandwidth");
#endif
  }
  if (job.rank() == 0 && !json_file.empty() && !(std::ofstream(json_file) << json << "\n")) {
    fail(kFailed, "cannot write %s", json_file.c_str());
  }
}
