// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the suite: the job, waits with a deadline, arrays of any NCCL type, and streams held by a
// gate.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/device/launch.h"
#include "common/job/job.h"

namespace conformance {

#ifdef WORKSHOP_BACKEND_CPU
inline constexpr bool kCpu = true;
#else
inline constexpr bool kCpu = false;
#endif

// The job of this process, created by main().
const workshop::Job& job();

// Polls `condition` until it is true or the time is over; returns its last value.
bool within(double seconds, const std::function<bool()>& condition);

// Returns true if all work on the stream is done.
bool finished(cudaStream_t stream);

// Waits for the stream. After kDeadline it ends the whole job, because other ranks may be waiting for this one.
void finish(cudaStream_t stream);

// Long enough to show that something does not happen.
inline constexpr double kNever = 0.1;  // seconds

// Blocks a stream until the gate is opened. It opens by itself at the end, so that a failed test does not hang.
class Gate {
 public:
  Gate() = default;
  explicit Gate(cudaStream_t stream) { hold(stream); }
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void hold(cudaStream_t stream);
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_ = false;
  std::atomic<int> held_ = 0;
};

// An array of `type` on the device. Values are passed as double; tests use small whole numbers, which every type
// represents exactly.
class Array {
 public:
  Array(ncclDataType_t type, const std::vector<double>& values);
  Array(ncclDataType_t type, std::size_t count, double value) : Array(type, std::vector<double>(count, value)) {}
  void* data() const { return bytes_.data(); }
  void* at(std::size_t element) const;
  std::vector<double> values() const;

 private:
  ncclDataType_t type_;
  std::size_t count_;
  workshop::DeviceBuffer<unsigned char> bytes_;
};

inline constexpr ncclDataType_t kTypes[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
                                            ncclUint64, ncclFloat32, ncclFloat64, ncclBfloat16};
std::string type_name(ncclDataType_t type);
bool is_whole(ncclDataType_t type);

// Compares values, with a tolerance for the rounding of `type` where a result need not be a whole number.
void expect_values(const std::vector<double>& actual, const std::vector<double>& expected, ncclDataType_t type,
                   const std::string& what);

// Waits until every rank has called it.
void barrier();

}  // namespace conformance
