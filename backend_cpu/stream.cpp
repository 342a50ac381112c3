// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/stream.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "backend_cpu/cores.h"
#include "backend_cpu/order.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/simulation.h"
#include "backend_cpu/source_calls.h"

namespace workshop::cpu {
namespace {

thread_local StreamWorker* current_worker = nullptr;
std::atomic<int> blocked_hosts = 0;  // threads that wait for room in a queue
std::atomic<int> waiting_hosts = 0;  // threads of the program that wait for some work

// All streams of the process. Like everything that a worker may touch, it is never destroyed: workers run until the
// process ends, even while the destructors of static objects run.
struct Streams {
  std::mutex mutex;  // held while a blocking stream or a legacy default stream takes a new operation
  std::vector<CUstream_st*> all;
  std::atomic<CUstream_st*> legacy[kMaxDevices] = {};  // made at their first use
};

Streams& streams() {
  static Streams& instance = *new Streams;
  return instance;
}

CUstream_st* legacy_of_current_device() {
  Streams& all = streams();
  std::atomic<CUstream_st*>& legacy = all.legacy[current_device];
  if (CUstream_st* made = legacy.load(); made != nullptr) return made;
  const std::lock_guard lock(all.mutex);
  if (legacy.load() == nullptr) legacy = new CUstream_st(/*blocking=*/false, current_device, /*legacy=*/true);
  return legacy.load();
}

CUstream_st* resolve(cudaStream_t stream) { return stream == nullptr ? legacy_of_current_device() : stream; }

void push_wait(CUstream_st* stream, const Position& position) {
  const auto task = [position] { wait_for(position); };
  stream->push([](void* copy) { (*static_cast<decltype(task)*>(copy))(); }, &task, sizeof task);
}

// Work on a device's legacy default stream runs after all earlier work of its blocking streams …
void join_blocking_streams(Streams& streams, CUstream_st* legacy) {
  for (CUstream_st* stream : streams.all) {
    const std::uint64_t pushed = stream->pushed();
    if (!stream->blocking || stream->device != legacy->device || stream->joined == pushed) continue;
    push_wait(legacy, {stream, pushed - 1});
    stream->joined = pushed;
  }
}

// … and work on a blocking stream runs after all earlier work of the legacy default stream.
void join_legacy_stream(Streams& streams, CUstream_st* stream) {
  CUstream_st* legacy = streams.legacy[stream->device].load();
  if (legacy == nullptr) return;
  const std::uint64_t pushed = legacy->pushed();
  if (stream->joined_legacy == pushed) return;
  push_wait(stream, {legacy, pushed - 1});
  stream->joined_legacy = pushed;
}

[[noreturn]] void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(24));
}

Slow read_slow() {
  const char* value = std::getenv("WORKSHOP_SLOW");
  const std::string names = value == nullptr ? "" : value;
  if (names.empty()) return {};
  if (names == "kernels") return {.kernels = true};
  if (names == "collectives") return {.collectives = true};
  if (names == "kernels,collectives") return {.kernels = true, .collectives = true};
  bad_environment("WORKSHOP_SLOW", value, "kernels, collectives or kernels,collectives");
}

}  // namespace

StreamWorker* this_worker() { return current_worker; }

bool abandon(StreamWorker& worker) {
  StreamWorker::State expected = StreamWorker::uninterruptible;
  if (!worker.state.compare_exchange_strong(expected, StreamWorker::abandoned)) return false;
  worker.stream->take_over();
  return true;
}

Uninterruptible::Uninterruptible() { current_worker->state = StreamWorker::uninterruptible; }

Uninterruptible::~Uninterruptible() {
  StreamWorker::State expected = StreamWorker::uninterruptible;
  if (!current_worker->state.compare_exchange_strong(expected, StreamWorker::interruptible)) sleep_for_ever();
}

Position enqueue(cudaStream_t handle, Run run, const void* task, std::size_t bytes) {
  Streams& all = streams();
  CUstream_st* stream = resolve(handle);
  if (!stream->legacy && !stream->blocking.load(std::memory_order_relaxed)) {
    return {stream, stream->push(run, task, bytes)};
  }
  const std::lock_guard lock(all.mutex);
  if (stream->legacy) {
    join_blocking_streams(all, stream);
  } else {
    join_legacy_stream(all, stream);
  }
  return {stream, stream->push(run, task, bytes)};
}

Position mark(cudaStream_t handle) {
  CUstream_st* stream = resolve(handle);
  const std::uint64_t pushed = stream->pushed();
  if (!stream->legacy && !stream->blocking && pushed > 0) return {stream, pushed - 1};
  return enqueue(handle, [] {});  // after the work of the streams that this one waits for
}

bool passed(const Position& position) { return position.stream->passed(position.number); }

void wait_for(const Position& position) {
  position.stream->wait_for(position.number);
  const bool is_program = simulates() && current_worker == nullptr && on_main_thread();
  const Moment begin = moment();
  follow(position);
  if (is_program) note_stall(number_of(source_call("the host")), begin, nullptr, position.stream);
}

void follow(const Position& position) {
  if (simulates()) wait_until(position.stream->finished_at(position.number));
}

void enqueue_wait(cudaStream_t stream, const Position& position) {
  if ((passed(position) && !simulates()) || resolve(stream) == position.stream) return;
  if (!simulates()) {
    enqueue(stream, [position] { wait_for(position); });
    return;
  }
  enqueue(stream, [position, call = number_of(source_call("cudaStreamWaitEvent"))] {
    const Moment begin = moment();
    wait_for(position);
    note_stall(call, begin, current_worker->stream, position.stream);
  });
}

bool usable(cudaStream_t stream) { return resolve(stream)->live; }

const Slow& slow() {
  static const Slow instance = read_slow();
  return instance;
}

void enqueue_delay(cudaStream_t stream, int milliseconds) {
  enqueue(stream, [milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

void wait_until_host_waits() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
  while (waiting_hosts.load() == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void bad_environment(const char* name, const char* value, const char* expected) {
  std::fprintf(stderr, "%s is '%s'; expected %s\n", name, value, expected);
  std::_Exit(2);
}

void enqueue_kernel(cudaStream_t stream, double operations, Run run, const void* task, std::size_t bytes) {
  if (slow().kernels) enqueue_delay(stream, 1);
  Position position = enqueue(stream, run, task, bytes);
  if (simulates()) {
    const int device = device_of(stream);
    position = enqueue(stream, [=] { simulate_kernel(operations, device); });
  }
  if (launch_blocking()) wait_for(position);
}

bool launch_blocking() {
  static const bool instance = [] {
    const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
    return value != nullptr && std::atoi(value) != 0;
  }();
  return instance;
}

void wait_for_blocked_hosts() {
  static const bool asked = std::getenv("WORKSHOP_DRIVER_LOCK") != nullptr;
  while (asked && blocked_hosts.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

CUstream_st* acquire_stream(bool blocking, int device) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (CUstream_st* stream : all.all) {
    if (stream->live || !stream->idle() || stream->device != device) continue;
    stream->blocking = blocking;
    stream->live = true;
    return stream;
  }
  return all.all.emplace_back(new CUstream_st(blocking, device));
}

std::vector<CUstream_st*> streams_of(int device) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::vector<CUstream_st*> result = all.all;
  for (const auto& legacy : all.legacy) {
    if (legacy != nullptr) result.push_back(legacy);
  }
  if (device != kAllDevices) std::erase_if(result, [=](CUstream_st* stream) { return stream->device != device; });
  return result;
}

}  // namespace workshop::cpu

using namespace workshop::cpu;

CUstream_st::CUstream_st(bool blocking, int device, bool legacy) : blocking(blocking), device(device), legacy(legacy) {
  start_worker(0);
}

std::uint64_t CUstream_st::push(Run run, const void* task, std::size_t bytes) {
  while (producing_.test_and_set(std::memory_order_acquire)) producing_.wait(true);
  const std::uint64_t number = tail_.load(std::memory_order_relaxed);
  if (number == room_) {
    if (number - head_.load() >= kSlots) wait_for_room(number);
    room_ = head_.load() + kSlots;
  }
  Slot& slot = slots_[number % kSlots];
  slot.run = run;
  if (simulates()) slot.pushed = simulate_call();
  std::memcpy(slot.task, task, bytes);
  tail_.store(number + 1);
  if (asleep_.load() != 0 && asleep_.exchange(0) != 0) asleep_.notify_one();
  producing_.clear(std::memory_order_release);
  producing_.notify_one();
  return number;
}

// Waits until a quarter of the queue is free: a host that wakes up for every slot would take the processor from the
// worker.
void CUstream_st::wait_for_room(std::uint64_t number) {
  ++blocked_hosts;
  wait_for(number - kSlots / 4 * 3);
  --blocked_hosts;
}

void CUstream_st::wait_for(std::uint64_t number) {
  if (passed(number)) return;
  const int hosts = current_worker == nullptr ? 1 : 0;
  waiting_hosts += hosts;
  while (!passed(number)) {
    const int finished = finished_.load();
    want(number);
    if (passed(number)) break;
    finished_.wait(finished);
  }
  waiting_hosts -= hosts;
}

// The time of an operation long past is not known any more, and does not matter.
CUstream_st::Moment CUstream_st::finished_at(std::uint64_t number) const {
  return head_.load() - number < kSlots ? finished_at_[number % kSlots].load() : Moment();
}

void CUstream_st::want(std::uint64_t number) {
  std::uint64_t wanted = wanted_.load();
  while (number < wanted && !wanted_.compare_exchange_weak(wanted, number)) {
  }
}

void CUstream_st::start_worker(std::uint64_t first) {
  auto* worker = new StreamWorker;
  worker->stream = this;
  std::thread([this, worker, first] { work(worker, first); }).detach();
}

void CUstream_st::take_over() {
  const std::uint64_t number = head_.load();
  finish(number);
  start_worker(number + 1);
}

void CUstream_st::work(StreamWorker* worker, std::uint64_t first) {
  current_worker = worker;
  flush_denormals();
  std::uint64_t tail = first;  // as the worker knows it
  for (std::uint64_t number = first;; ++number) {
    if (number == tail) tail = wait_for_work(number);
    Slot& slot = slots_[number % kSlots];
    if (simulates()) {
      const Moment begin = moment();
      wait_until(slot.pushed);
      note_stall(kLateHost, begin, this, nullptr);
    }
    slot.run(slot.task);
    if (simulates()) finished_at_[number % kSlots] = moment();
    finish(number);
  }
}

std::uint64_t CUstream_st::wait_for_work(std::uint64_t number) {
  // A host that enqueues one operation after the other needs less time per operation than these spins take, so the
  // worker does not sleep in between.
  constexpr int kSpins = 1000;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (const std::uint64_t tail = tail_.load(std::memory_order_acquire); tail != number) return tail;
  }
  while (tail_.load() == number) {
    asleep_ = 1;
    if (tail_.load() == number) asleep_.wait(1);
    asleep_ = 0;
  }
  return tail_.load();
}

// Wakes other threads only if one of them waits for this operation, because waking costs more than most operations.
void CUstream_st::finish(std::uint64_t number) {
  head_.store(number + 1);
  if (wanted_.load() > number) return;
  wanted_ = kNone;  // threads that wait for a later operation are woken too, and call want() again
  ++finished_;
  finished_.notify_all();
}
