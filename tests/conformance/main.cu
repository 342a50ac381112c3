// SPDX-License-Identifier: Apache-2.0
// The conformance suite states what the workshop relies on in the CUDA runtime, cuBLAS and NCCL. It runs unchanged with
// the real libraries and on the cpu backend.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/conformance/support.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <mpi.h>
#include <workshop_cpu.h>
#endif

namespace conformance {
namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<workshop::Job> the_job;

constexpr double kDeadline = 60;  // seconds; a sanitizer on a busy machine is slow

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Makes ranks other than 0 print failures only.
class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", job().rank(), result.file_name(), result.line_number(),
                 result.message());
  }
};

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
void store(unsigned char* to, double value) {
  const T converted = static_cast<T>(value);
  std::memcpy(to, &converted, sizeof converted);
}

template <typename T>
double load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

void encode(ncclDataType_t type, double value, unsigned char* to) {
  switch (type) {
    case ncclInt8:
      return store<std::int8_t>(to, value);
    case ncclUint8:
      return store<std::uint8_t>(to, value);
    case ncclInt32:
      return store<std::int32_t>(to, value);
    case ncclUint32:
      return store<std::uint32_t>(to, value);
    case ncclInt64:
      return store<std::int64_t>(to, value);
    case ncclUint64:
      return store<std::uint64_t>(to, value);
    case ncclFloat32:
      return store<float>(to, value);
    case ncclBfloat16:
      return store<std::uint16_t>(to, std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
    default:
      return store<double>(to, value);
  }
}

double decode(ncclDataType_t type, const unsigned char* from) {
  switch (type) {
    case ncclInt8:
      return load<std::int8_t>(from);
    case ncclUint8:
      return load<std::uint8_t>(from);
    case ncclInt32:
      return load<std::int32_t>(from);
    case ncclUint32:
      return load<std::uint32_t>(from);
    case ncclInt64:
      return load<std::int64_t>(from);
    case ncclUint64:
      return load<std::uint64_t>(from);
    case ncclFloat32:
      return load<float>(from);
    case ncclBfloat16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from)) << 16);
    default:
      return load<double>(from);
  }
}

}  // namespace

const workshop::Job& job() { return *the_job; }

bool within(double seconds, const std::function<bool()>& condition) {
  const auto start = Clock::now();
  while (!condition()) {
    if (seconds_since(start) > seconds) return condition();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool finished(cudaStream_t stream) {
  const cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) cudaGetLastError();  // expected here, not an error
  if (status != cudaErrorNotReady) CUDA_CHECK(status);
  return status == cudaSuccess;
}

void finish(cudaStream_t stream) {
  if (within(kDeadline, [stream] { return finished(stream); })) return;
  workshop::fail(workshop::kFailed, std::string("a stream does not finish in ") +
                                        testing::UnitTest::GetInstance()->current_test_info()->name());
}

Gate::~Gate() {
  open();
  within(kDeadline, [this] { return held_ == 0; });
}

void Gate::hold(cudaStream_t stream) {
  ++held_;
  CUDA_CHECK(cudaLaunchHostFunc(
      stream,
      [](void* self) {
        auto& gate = *static_cast<Gate*>(self);
        within(kDeadline, [&gate] { return gate.open_.load(); });
        --gate.held_;
      },
      this));
}

Array::Array(ncclDataType_t type, const std::vector<double>& values)
    : type_(type), count_(values.size()), bytes_(values.size() * size_of(type), workshop::Memory::data) {
  std::vector<unsigned char> host(bytes_.size());
  for (std::size_t i = 0; i < count_; ++i) encode(type, values[i], &host[i * size_of(type)]);
  if (count_ > 0) CUDA_CHECK(cudaMemcpy(bytes_.data(), host.data(), host.size(), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));  // cudaMemcpy may return before the device has the data
}

void* Array::at(std::size_t element) const { return bytes_.data() + element * size_of(type_); }

std::vector<double> Array::values() const {
  std::vector<unsigned char> host(bytes_.size());
  if (count_ > 0) CUDA_CHECK(cudaMemcpy(host.data(), bytes_.data(), host.size(), cudaMemcpyDeviceToHost));
  std::vector<double> values(count_);
  for (std::size_t i = 0; i < count_; ++i) values[i] = decode(type_, &host[i * size_of(type_)]);
  return values;
}

std::string type_name(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "int8";
    case ncclUint8:
      return "uint8";
    case ncclInt32:
      return "int32";
    case ncclUint32:
      return "uint32";
    case ncclInt64:
      return "int64";
    case ncclUint64:
      return "uint64";
    case ncclFloat32:
      return "float32";
    case ncclFloat64:
      return "float64";
    default:
      return "bfloat16";
  }
}

bool is_whole(ncclDataType_t type) { return type != ncclFloat32 && type != ncclFloat64 && type != ncclBfloat16; }

void expect_values(const std::vector<double>& actual, const std::vector<double>& expected, ncclDataType_t type,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double epsilon = 0;
  if (type == ncclFloat32) epsilon = 1e-6;
  if (type == ncclFloat64) epsilon = 1e-14;
  if (type == ncclBfloat16) epsilon = 1.0 / 64;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (!(error <= epsilon * std::abs(expected[i]))) {
      FAIL() << what << ", " << type_name(type) << ": element " << i << " is " << actual[i] << ", expected "
             << expected[i];
    }
  }
}

// Allocates and frees nothing, because cudaFree would wait for all streams, and some are blocked on purpose.
void barrier() {
  static const workshop::Stream& stream = *new workshop::Stream;
  static const Array& one = *new Array(ncclInt32, 1, 1);
  NCCL_CHECK(ncclAllReduce(one.data(), one.data(), 1, ncclInt32, ncclMax, job().comm(), stream));
  finish(stream);
}

namespace {

void quiet_other_ranks() {
  if (job().rank() == 0) return;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly);
}

// Returns the worst status of all ranks.
int agree(int status) {
  const workshop::Stream stream;
  const Array worst(ncclInt32, 1, status);
  NCCL_CHECK(ncclAllReduce(worst.data(), worst.data(), 1, ncclInt32, ncclMax, job().comm(), stream));
  finish(stream);
  return static_cast<int>(worst.values()[0]);
}

// After an abort MPI_Finalize may wait forever, so this ends MPI without it.
void end_without_finalize([[maybe_unused]] int status) {
#ifdef WORKSHOP_BACKEND_CPU
  if (workshop::cpu::mpi_usable()) return;
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, status);
#endif
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  workshop::Options options("conformance", "what the workshop relies on in CUDA, cuBLAS and NCCL");
  options.without_training();
  options.parse(1, argv);
  conformance::the_job = std::make_unique<workshop::Job>(options);
  conformance::quiet_other_ranks();
  conformance::barrier();
  const int status = conformance::agree(RUN_ALL_TESTS());
  conformance::end_without_finalize(status);
  conformance::the_job.reset();
  return status;
}
