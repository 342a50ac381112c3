// SPDX-License-Identifier: Apache-2.0
// calls NAME: makes the calls of one case, correct or not, and ends. CMakeLists.txt has the expected report.
#include <cublas_v2.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "common/device/device.h"
#include "common/device/launch.h"
#include "common/job/job.h"

namespace {

using namespace workshop;

constexpr int kFloats = 32;
constexpr std::size_t kBytes = kFloats * sizeof(float);

__global__ void set(float* y, float value, int n) {
  for (int i : grid_stride(n)) y[i] = value;
}

__global__ void increase(float* a, int n) {
  for (int i : grid_stride(n)) a[i] += 1.0f;
}

__global__ void copy(float* y, const float* x, int n) {
  for (int i : grid_stride(n)) y[i] = x[i];
}

// Two streams and some memory.
struct Case {
  ncclComm_t comm;
  Stream first{"first"}, second{"second"};
  Event event, other;
  DeviceBuffer<float> a{kFloats, Memory::data}, b{kFloats, Memory::data}, c{kFloats, Memory::data};
  HostBuffer<float> host{kFloats};
  cublasHandle_t blas = nullptr;

  explicit Case(ncclComm_t comm) : comm(comm) {
    CUBLAS_CHECK(cublasCreate(&blas));
    CUBLAS_CHECK(cublasSetStream(blas, second));
  }
  ~Case() { cublasDestroy(blas); }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  void write(const Stream& stream, float* to) { launch(set, kFloats, stream, to, 1.0f, kFloats); }
  void read(const Stream& stream, float* from) {
    CUDA_CHECK(cudaMemcpyAsync(host.data(), from, kBytes, cudaMemcpyDeviceToHost, stream));
  }
  void clear(const Stream& stream, float* to) { CUDA_CHECK(cudaMemsetAsync(to, 0, kBytes, stream)); }
  void product(int m, int n, int k, const float* x, const float* y, float* z, int ldz) {
    const float one = 1, zero = 0;
    CUBLAS_CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, x, m, y, k, &zero, z, ldz));
  }
};

// Makes the next device current during its lifetime. Has a stream and some memory there.
struct OnTheOther {
  int before = current_device(), device = before + 1;
  OnDevice on_device{device};
  Stream stream{"other"};
  Event event;
  DeviceBuffer<float> memory{kFloats, Memory::data};

  void fetch(float* to, cudaStream_t on) const {
    CUDA_CHECK(cudaMemcpyPeerAsync(to, before, memory.data(), device, kBytes, on));
  }
  DeviceBuffer<float> take() { return std::move(memory); }
};

const std::map<std::string, std::function<void(Case&)>> kCases = {
    // ---- order: nothing is said ----
    {"event",
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       t.read(t.second, t.a.data());
     }},
    {"by_way_of_a_third",  // the default stream is the third
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       CUDA_CHECK(cudaStreamWaitEvent(nullptr, t.event));
       CUDA_CHECK(cudaEventRecord(t.other, nullptr));
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.other));
       t.read(t.second, t.a.data());
     }},
    {"default_stream",
     [](Case& t) {
       cudaStream_t blocking = nullptr;
       CUDA_CHECK(cudaStreamCreate(&blocking));
       CUDA_CHECK(cudaMemsetAsync(t.a.data(), 0, kBytes, blocking));
       CUDA_CHECK(cudaMemsetAsync(t.a.data(), 0, kBytes, nullptr));
       CUDA_CHECK(cudaMemsetAsync(t.a.data(), 0, kBytes, blocking));
       CUDA_CHECK(cudaStreamDestroy(blocking));
     }},
    {"host",
     [](Case& t) {
       t.write(t.first, t.a.data());
       t.first.synchronize();
       t.read(t.second, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.event, t.second));
       CUDA_CHECK(cudaEventSynchronize(t.event));
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaDeviceSynchronize());
       t.read(t.second, t.a.data());
       while (cudaStreamQuery(t.second) == cudaErrorNotReady) cudaGetLastError();
       t.write(t.first, t.a.data());
     }},
    // Not reported, but the host reads the old value, however long it takes.
    {"host_reads_early",
     [](Case& t) {
       t.host.data()[0] = 2;
       t.write(t.first, t.a.data());
       t.first.synchronize();
       t.read(t.first, t.a.data());
       std::this_thread::sleep_for(std::chrono::milliseconds(1));
       const float early = t.host.data()[0];
       t.first.synchronize();
       if (early == 2 && t.host.data()[0] == 1) return;
       print0("the host has read %g and %g\n", early, t.host.data()[0]);
       std::exit(1);
     }},
    {"readers",
     [](Case& t) {
       launch(copy, kFloats, t.first, t.b.data(), t.a.data(), kFloats);
       launch(copy, kFloats, t.second, t.c.data(), t.a.data(), kFloats);
     }},
    {"neighbors",
     [](Case& t) {  // first and last 4 of 8 rows in each column
       CUDA_CHECK(cudaMemsetAsync(t.a.data(), 0, kBytes / 2, t.first));
       CUDA_CHECK(cudaMemsetAsync(t.a.data() + kFloats / 2, 0, kBytes / 2, t.second));
       CUDA_CHECK(cudaDeviceSynchronize());
       t.product(4, 4, 1, t.b.data(), t.b.data(), t.a.data(), 8);
       CUBLAS_CHECK(cublasSetStream(t.blas, t.first));
       t.product(4, 4, 1, t.b.data(), t.b.data(), t.a.data() + 4, 8);
     }},
    {"freed",
     [](Case& t) {
       t.write(t.first, DeviceBuffer<float>(kFloats, Memory::data).data());
       t.write(t.second, DeviceBuffer<float>(kFloats, Memory::data).data());
     }},
    {"communicator",
     [](Case& t) {
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.a.data(), kFloats, ncclFloat, ncclSum, t.comm, t.first));
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.a.data(), kFloats, ncclFloat, ncclSum, t.comm, t.second));
     }},
    {"group",
     [](Case& t) {
       t.write(t.first, t.a.data());
       NCCL_CHECK(ncclGroupStart());
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.a.data(), kFloats, ncclFloat, ncclSum, t.comm, t.first));
       NCCL_CHECK(ncclAllReduce(t.b.data(), t.b.data(), kFloats, ncclFloat, ncclSum, t.comm, t.second));
       NCCL_CHECK(ncclGroupEnd());
       t.read(t.second, t.a.data());
     }},

    {"between_devices",
     [](Case& t) {
       OnTheOther other;
       t.write(other.stream, other.memory.data());
       CUDA_CHECK(cudaEventRecord(other.event, other.stream));
       CUDA_CHECK(cudaStreamWaitEvent(t.first, other.event));
       other.fetch(t.a.data(), t.first);
     }},

    // ---- order: a mistake ----
    {"between_devices_forgotten",
     [](Case& t) {
       OnTheOther other;
       t.write(other.stream, other.memory.data());
       other.fetch(t.a.data(), t.first);
     }},
    {"between_default_streams",  // each device has its own
     [](Case& t) {
       OnTheOther other;
       CUDA_CHECK(cudaMemsetAsync(other.memory.data(), 0, kBytes, nullptr));
       CUDA_CHECK(cudaSetDevice(other.before));
       other.fetch(t.a.data(), nullptr);
     }},
    {"forgotten",
     [](Case& t) {
       t.write(t.first, t.a.data());
       t.read(t.second, t.a.data());
     }},
    {"not_waited",
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       t.read(t.second, t.a.data());
     }},
    {"too_early",
     [](Case& t) {
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       t.read(t.second, t.a.data());
     }},
    {"too_early_and_again",  // for another wait
     [](Case& t) {
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       CUDA_CHECK(cudaEventRecord(t.other, t.first));
       t.read(t.second, t.a.data());
     }},
    {"other_event",
     [](Case& t) {
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.other, t.first));
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       t.read(t.second, t.a.data());
     }},
    {"not_yet_recorded",
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.other));
       t.read(t.second, t.a.data());
     }},
    {"waited_before",
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       CUDA_CHECK(cudaEventRecord(t.event, t.first));
       t.read(t.second, t.a.data());
     }},
    {"never_recorded",
     [](Case& t) {
       t.write(t.first, t.a.data());
       CUDA_CHECK(cudaStreamWaitEvent(t.second, t.event));
       t.read(t.second, t.a.data());
     }},
    {"overwritten",  // while it is read
     [](Case& t) {
       t.read(t.first, t.a.data());
       t.clear(t.second, t.a.data());
     }},
    {"product",
     [](Case& t) {
       t.clear(t.first, t.c.data());
       t.product(4, 4, 4, t.a.data(), t.b.data(), t.c.data(), 4);
     }},
    {"reduction",
     [](Case& t) {
       t.write(t.first, t.a.data());
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.b.data(), kFloats, ncclFloat, ncclSum, t.comm, t.second));
     }},
    {"one_group",
     [](Case& t) {
       NCCL_CHECK(ncclGroupStart());
       NCCL_CHECK(ncclSend(t.a.data(), kFloats, ncclFloat, 0, t.comm, t.first));
       NCCL_CHECK(ncclRecv(t.a.data(), kFloats, ncclFloat, 0, t.comm, t.first));
       NCCL_CHECK(ncclGroupEnd());
     }},
    {"one_call",
     [](Case& t) {
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.a.data(), kFloats, ncclFloat, ncclSum, t.comm, t.first));
       NCCL_CHECK(ncclAllReduce(t.a.data(), t.a.data() + 4, kFloats - 4, ncclFloat, ncclSum, t.comm, t.first));
     }},

    // ---- bounds ----
    {"inside",
     [](Case& t) {
       t.clear(t.second, t.a.data());
       t.product(4, 4, 4, t.a.data() + 16, t.b.data() + 16, t.c.data() + 16, 4);
       const float one = 1, zero = 0;  // B is not read
       CUBLAS_CHECK(
           cublasSgeam(t.blas, CUBLAS_OP_T, CUBLAS_OP_N, 8, 4, &one, t.a.data(), 4, &zero, nullptr, 8, t.c.data(), 8));
       CUDA_CHECK(cudaDeviceSynchronize());
     }},
    {"other_device_copied",
     [](Case& t) {
       const OnTheOther other;
       CUDA_CHECK(cudaMemcpyPeerAsync(t.a.data(), other.device, other.memory.data(), other.before, kBytes, t.first));
     }},
    {"other_device_kernel",
     [](Case& t) {
       OnTheOther other;
       t.write(other.stream, t.a.data());
     }},
    {"other_device_product",
     [](Case& t) {
       DeviceBuffer<float> there = OnTheOther().take();
       t.product(4, 4, 4, there.data(), t.b.data(), t.c.data(), 4);
     }},
    {"memset", [](Case& t) { t.clear(t.first, t.a.data() + 1); }},
    {"copy_from", [](Case& t) { t.read(t.first, t.a.data() + 8); }},
    {"copy_to",
     [](Case& t) {
       CUDA_CHECK(cudaMemcpy(t.a.data() + 8, std::string(kBytes, ' ').data(), kBytes, cudaMemcpyDefault));
     }},
    {"copy_kind",
     [](Case& t) { CUDA_CHECK(cudaMemcpyAsync(t.b.data(), t.a.data(), kBytes, cudaMemcpyHostToDevice, t.first)); }},
    {"copy_kind_on_the_host",
     [](Case& t) {
       CUDA_CHECK(cudaMemcpy(t.a.data(), std::string(kBytes, ' ').data(), kBytes, cudaMemcpyDeviceToHost));
     }},
    {"before", [](Case& t) { t.read(t.first, t.a.data() - 2); }},
    {"matrix", [](Case& t) { t.product(8, 8, 4, t.a.data(), t.b.data(), t.c.data(), 8); }},
    {"vector",
     [](Case& t) {
       const float two = 2;
       CUBLAS_CHECK(cublasSscal(t.blas, kFloats / 2 + 1, &two, t.a.data(), 2));
     }},
    {"null", [](Case& t) { t.product(4, 4, 4, t.a.data(), t.b.data(), nullptr, 4); }},
    {"all_gather",
     [](Case& t) { NCCL_CHECK(ncclAllGather(t.a.data(), t.b.data() + 16, kFloats, ncclFloat, t.comm, t.first)); }},
    {"all_reduce_on_the_host",
     [](Case& t) {
       float sum = 1;
       NCCL_CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat, ncclSum, t.comm, t.first));
     }},
    {"kernel", [](Case& t) { launch(set, kFloats + 2, t.first, t.a.data(), 1.0f, kFloats + 2); }},
    {"kernel_adds", [](Case& t) { launch(increase, kFloats + 2, t.first, t.a.data(), kFloats + 2); }},
    {"kernel_in_a_vector",
     [](Case& t) {
       std::vector<DeviceBuffer<float>> buffers;
       buffers.emplace_back(kFloats, Memory::data);  // the allocation is in a line of the standard library
       launch(set, kFloats + 2, t.first, buffers[0].data(), 1.0f, kFloats + 2);
     }},
    {"kernel_before_another",  // the second one is right, and finds it
     [](Case& t) {
       launch(set, kFloats + 2, t.first, t.a.data(), 1.0f, kFloats + 2);
       launch(set, kFloats, t.first, t.b.data(), 1.0f, kFloats);
       CUDA_CHECK(cudaStreamSynchronize(t.first));
       std::printf("not reached\n");
     }},
    {"kernel_at_the_end",
     [](Case& t) {
       launch(set, kFloats + 2, t.first, t.a.data() - 2, 1.0f, kFloats + 2);
       CUDA_CHECK(cudaDeviceSynchronize());
       std::printf("not reached\n");
     }},
};

}  // namespace

int main(int, char** argv) {
  Options options("calls", "the calls of one case");
  options.without_training();
  options.parse(1, argv);
  const Job job(options);
  Case calls(job.comm());
  kCases.at(argv[1])(calls);
  print0("nothing is wrong\n");
}
