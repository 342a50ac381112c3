// SPDX-License-Identifier: Apache-2.0
#include "checker/emulated_gpu/emulated_gpu.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The executable's variables without a value lie between these two; shared memory is among them.
extern "C" char __bss_start, _end;

namespace emulated_gpu {
namespace {

constexpr int kWarp = 32;
constexpr std::size_t kStack = std::size_t{128} << 10;  // bytes per fiber

std::string text(const char* format, auto... values) {
  char line[600];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// The accesses of a warp between two barriers; they are in no order, except for those of one lane.
struct Interval {
  int block, warp;
  int barriers, warp_barriers;  // how many came before
};

// Returns a number that is different for different contents of these bytes; up to 8 bytes, it is the contents.
std::uint64_t digest(std::uintptr_t address, std::size_t bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(address);
  std::uint64_t digest = 0;
  for (; bytes > 8; bytes -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 29;
  }
  std::uint64_t word = 0;
  if (bytes == 4) {
    std::uint32_t four = 0;
    std::memcpy(&four, at, 4);
    word = four;
  } else {
    std::memcpy(&word, at, bytes);
  }
  return digest ^ word;
}

// The lanes that have used an element, one bit each: in the last interval with writes, and in the last two with reads.
struct Uses {
  std::uint32_t interval, lanes;
};
struct Cell {
  std::uint32_t run = 0;  // 0: never used
  Uses writes{}, reads{}, earlier_reads{};
};

struct Array {
  const char* name;
  std::uintptr_t begin, end;
  int shift;  // of an element: it has 2^shift bytes
  bool shared;
  std::vector<Cell> cells;

  std::size_t index(std::uintptr_t address) const { return (address - begin) >> shift; }
};

// ---- threads --------------------------------------------------------------------------------------------------------

// Where a thread waits.
struct Wait {
  enum Kind { none, shuffle, warp, block } kind = none;
  int distance = 0;
  std::source_location where;

  bool same_as(const Wait& other) const {
    return kind == other.kind && distance == other.distance && where.line() == other.where.line() &&
           where.file_name() == other.where.file_name() && where.function_name() == other.where.function_name();
  }
  std::string described() const {
    std::string file = where.file_name();
    const std::size_t folder = file.rfind('/', file.rfind('/') - 1);  // the last two names of the path
    if (folder != std::string::npos) file = file.substr(folder + 1);
    const std::string call = kind == shuffle ? text("__shfl_xor_sync(…, %d)", distance)
                             : kind == warp  ? "__syncwarp()"
                                             : "__syncthreads()";
    return call + text(" at %s:%d", file.c_str(), static_cast<int>(where.line()));
  }
};

// A stack on which threads run, one after the other; a thread that waits keeps it.
struct Fiber {
  std::jmp_buf context;
  ucontext_t first;  // where it begins
  void* stack = nullptr;
  std::size_t stack_bytes = 0;
  bool begun = false;
};

struct Thread {
  Wait wait;
  bool returned = false;
  Fiber* fiber = nullptr;   // while it waits
  std::uint64_t value = 0;  // that it gives to or gets from a shuffle
};

class Emulation {
 public:
  void run(const char* name, const Grid& grid, void (*kernel)(const void*), const void* arguments);
  void watch(const char* name, const void* array, std::size_t count, std::size_t element);
  void watch_nothing() {
    arrays_.clear();
    last_ = &shared_;
  }

  Index thread() const { return {static_cast<unsigned>(current_)}; }
  Index block() const { return {static_cast<unsigned>(block_)}; }
  const Grid& grid() const { return grid_; }
  std::uint64_t accesses() const { return accesses_; }

  std::uint64_t exchange(unsigned mask, std::uint64_t value, const Wait& wait);
  void wait_for_block(const Wait& wait);

  [[noreturn]] void stop();  // when fault_ is set

  [[noreturn]] void stop_because(const char* why) {
    fault_ = why;
    stop();
  }
  void reads(std::uintptr_t address, std::size_t bytes);
  void writes(std::uintptr_t address, std::size_t bytes);

 private:
  static void begin_fiber();
  void run_threads(Fiber* self);
  void run_block();
  Fiber* next_fiber();
  void leave(std::jmp_buf& from);
  [[noreturn]] void go_on_with(Fiber* to);
  void suspend();
  void release(int first, int count);
  void check_all_returned();
  void begin_interval(int warp);
  [[noreturn, gnu::cold, gnu::noinline]] void diverge(const char* of, const char* what, int a, const Wait& at_a, int b,
                                                      const Wait& at_b);

  Array* array_at(std::uintptr_t address, std::size_t bytes) {
    if (address >= last_->begin && address + bytes <= last_->end) return last_;
    return other_array_at(address, bytes);
  }
  Array* other_array_at(std::uintptr_t address, std::size_t bytes);
  bool ordered(std::uint32_t earlier) const;
  Cell& cell(Array& array, std::size_t index);
  void finish_write() {
    if (pending_.bytes > 0) finish_pending_write();
  }
  void finish_pending_write();
  [[noreturn, gnu::cold, gnu::noinline]] void use_beside(const Array& array, std::uintptr_t address);
  [[noreturn, gnu::cold, gnu::noinline]] void race(const Array& array, std::size_t index, const Uses& earlier,
                                                   const char* what);
  std::size_t random(std::size_t n) {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return (seed_ >> 33) % n;
  }

  std::string name_;
  Grid grid_;
  void (*kernel_)(const void*) = nullptr;
  const void* arguments_ = nullptr;
  std::uint64_t seed_ = 0;

  int block_ = 0, current_ = 0;  // the running thread of the block
  std::size_t next_ = 0;         // in order_
  std::vector<Thread> threads_;
  std::vector<int> order_;      // of the threads of a block
  std::vector<Thread*> ready_;  // have waited and may go on, from first_ready_ on
  std::size_t first_ready_ = 0;
  int at_block_barrier_ = 0;
  struct AtWarp {
    int count, first;  // threads that wait for their warp; the first of them
  };
  std::vector<AtWarp> at_warp_;
  std::jmp_buf host_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* starting_ = nullptr;
  std::string fault_;

  std::vector<Array> arrays_;
  Array shared_{"shared memory", 0, 0, 2, true, {}};
  Array* last_ = &shared_;  // that was used
  std::vector<Interval> intervals_;
  std::vector<std::uint32_t> of_warp_;  // the current interval of each warp
  int barriers_ = 0;
  std::uint32_t run_ = 0;
  std::uint64_t accesses_ = 0;

  // A write that the compiler has announced: what it has written is known at the next event.
  struct Pending {
    std::uintptr_t address;
    std::size_t bytes = 0;  // 0: none
    Array* array;
    std::uint64_t before;  // digest()
  } pending_{};
};

bool running = false;  // false before the object is initialized, too
Emulation instance;
Emulation& emulation() { return instance; }

// ---- running --------------------------------------------------------------------------------------------------------

void Emulation::run(const char* name, const Grid& grid, void (*kernel)(const void*), const void* arguments) {
  if (grid.threads_per_block % kWarp != 0) throw Fault("a block must have whole warps");
  name_ = name;
  grid_ = grid;
  kernel_ = kernel;
  arguments_ = arguments;
  seed_ = grid.seed;
  fault_.clear();
  accesses_ = 0;
  last_ = &shared_;
  pending_.bytes = 0;
  intervals_.clear();
  ++run_;
  if (shared_.begin == 0) {
    shared_.begin = reinterpret_cast<std::uintptr_t>(&__bss_start) & ~std::uintptr_t{15};
    shared_.end = reinterpret_cast<std::uintptr_t>(&_end);
    shared_.cells.resize(shared_.index(shared_.end) + 1);
  }
  for (int i = 0; i < grid.blocks && fault_.empty(); ++i) {
    block_ = grid.order == Order::backward ? grid.blocks - 1 - i : i;
    run_block();
  }
  if (!fault_.empty()) throw Fault(name_ + ": " + fault_);
}

void Emulation::run_block() {
  const int count = grid_.threads_per_block;
  threads_.assign(count, {});
  order_.resize(count);
  for (int i = 0; i < count; ++i) order_[i] = grid_.order == Order::backward ? count - 1 - i : i;
  if (grid_.order == Order::random) {
    for (int i = count - 1; i > 0; --i) std::swap(order_[i], order_[random(i + 1)]);
  }
  at_warp_.assign(count / kWarp, {0, 0});
  at_block_barrier_ = barriers_ = 0;
  of_warp_.assign(count / kWarp, 0);
  for (int warp = 0; warp < count / kWarp; ++warp) {
    intervals_.push_back({block_, warp, 0, 0});
    of_warp_[warp] = static_cast<std::uint32_t>(intervals_.size() - 1);
  }
  next_ = 0;
  ready_.clear();
  first_ready_ = 0;
  running = true;
  leave(host_);
  running = false;
  if (fault_.empty()) check_all_returned();
  if (fault_.empty()) return;
  for (const auto& fiber : fibers_) fiber->begun = false;  // threads that wait are forgotten
  idle_.clear();
  for (const auto& fiber : fibers_) idle_.push_back(fiber.get());
}

// Returns the fiber to go on with: that of a thread that is ready, or one for the next thread that has not begun. Null
// if no thread is left.
Fiber* Emulation::next_fiber() {
  const bool more = next_ < order_.size(), ready = first_ready_ < ready_.size();
  if (ready && (!more || grid_.order == Order::forward || (grid_.order == Order::random && random(2) == 0))) {
    if (grid_.order == Order::forward) return ready_[first_ready_++]->fiber;
    if (grid_.order == Order::random) std::swap(ready_[random(ready_.size())], ready_.back());
    Fiber* fiber = ready_.back()->fiber;
    ready_.pop_back();
    return fiber;
  }
  if (!more) return nullptr;
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    idle_.push_back(fibers_.back().get());
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) std::abort();
    fibers_.back()->stack = stack;
    // Stacks whose ends have the same address modulo a large power of two would share a few lines of the caches.
    fibers_.back()->stack_bytes = kStack - fibers_.size() * 832 % (kStack / 4) / 64 * 64;
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

// Lets other threads run. Returns when someone goes on here; for run_block(), when no thread can go on.
void Emulation::leave(std::jmp_buf& from) {
  if (_setjmp(from) == 0) go_on_with(next_fiber());
}

void Emulation::go_on_with(Fiber* to) {
  if (to == nullptr) _longjmp(host_, 1);
  if (to->begun) _longjmp(to->context, 1);
  to->begun = true;
  starting_ = to;
  getcontext(&to->first);
  to->first.uc_stack.ss_sp = to->stack;
  to->first.uc_stack.ss_size = to->stack_bytes;
  to->first.uc_link = nullptr;
  makecontext(&to->first, &Emulation::begin_fiber, 0);
  setcontext(&to->first);
  std::abort();
}

void Emulation::begin_fiber() { emulation().run_threads(emulation().starting_); }

void Emulation::run_threads(Fiber* self) {
  while (true) {
    while (next_ < order_.size() && (first_ready_ == ready_.size() || grid_.order != Order::forward)) {
      const int thread = order_[next_++];
      current_ = thread;
      threads_[thread].fiber = self;
      kernel_(arguments_);
      finish_write();
      threads_[thread].returned = true;
    }
    idle_.push_back(self);
    leave(self->context);
  }
}

// Nothing on the stack is destroyed, so no text may be there.
void Emulation::stop() { _longjmp(host_, 1); }

void Emulation::diverge(const char* of, const char* what, int a, const Wait& at_a, int b, const Wait& at_b) {
  fault_ = text("%s diverge: %s %d calls %s while %s %d waits in %s", of, what, a, at_a.described().c_str(), what, b,
                at_b.described().c_str());
  stop();
}

// ---- shuffles and barriers ------------------------------------------------------------------------------------------

// Lets other threads run until release() has made this one ready.
void Emulation::suspend() {
  const int thread = current_;
  leave(threads_[thread].fiber->context);
  current_ = thread;
}

// Makes the threads that wait ready, except for the current one, which goes on.
void Emulation::release(int first, int count) {
  if (first_ready_ == ready_.size()) {
    ready_.clear();
    first_ready_ = 0;
  }
  for (int i = first; i < first + count; ++i) {
    threads_[i].wait.kind = Wait::none;
    if (i != current_) ready_.push_back(&threads_[i]);
  }
}

void Emulation::begin_interval(int warp) {
  Interval interval = intervals_[of_warp_[warp]];
  interval.barriers = barriers_;
  ++interval.warp_barriers;
  intervals_.push_back(interval);
  of_warp_[warp] = static_cast<std::uint32_t>(intervals_.size() - 1);
}

std::uint64_t Emulation::exchange(unsigned mask, std::uint64_t value, const Wait& wait) {
  finish_write();
  const int warp = current_ / kWarp, first = warp * kWarp;
  Thread& self = threads_[current_];
  self.wait = wait;
  self.value = value;
  if (mask != 0xffffffffu) {
    fault_ = "the mask of a shuffle or barrier lacks lanes of the warp";
    stop();
  }
  AtWarp& others = at_warp_[warp];
  if (others.count == 0) others.first = current_;
  const Wait& other = threads_[others.first].wait;
  if (!other.same_as(wait)) diverge("lanes of a warp", "lane", current_ % kWarp, wait, others.first % kWarp, other);
  if (++others.count < kWarp) {
    suspend();
    return threads_[current_].value;
  }
  others.count = 0;
  if (wait.kind == Wait::warp) {
    begin_interval(warp);
  } else {
    std::uint64_t values[kWarp];
    for (int i = 0; i < kWarp; ++i) values[i] = threads_[first + (i ^ (wait.distance & (kWarp - 1)))].value;
    for (int i = 0; i < kWarp; ++i) threads_[first + i].value = values[i];
  }
  release(first, kWarp);
  return self.value;
}

void Emulation::wait_for_block(const Wait& wait) {
  finish_write();
  threads_[current_].wait = wait;
  const int count = grid_.threads_per_block;
  if (++at_block_barrier_ < count) return suspend();
  for (int i = 0; i < count; ++i) {
    const Wait& other = threads_[i].wait;
    if (!other.same_as(wait)) diverge("threads of a block", "thread", current_, wait, i, other);
  }
  at_block_barrier_ = 0;
  ++barriers_;
  for (int warp = 0; warp < count / kWarp; ++warp) begin_interval(warp);
  release(0, count);
}

// If threads still wait, others have not come.
void Emulation::check_all_returned() {
  for (int i = 0; i < grid_.threads_per_block; ++i) {
    const Wait& wait = threads_[i].wait;
    if (wait.kind == Wait::none) continue;
    const bool of_warp = wait.kind != Wait::block;
    const int first = of_warp ? i / kWarp * kWarp : 0, count = of_warp ? kWarp : grid_.threads_per_block;
    for (int j = first; j < first + count; ++j) {
      if (threads_[j].wait.same_as(wait)) continue;
      const std::string where =
          threads_[j].returned ? "has returned from the kernel" : "waits in " + threads_[j].wait.described();
      const char* what = of_warp ? "lane" : "thread";
      fault_ = text("%s diverge: %s %d waits in %s, but %s %d %s", of_warp ? "lanes of a warp" : "threads of a block",
                    what, i - first, wait.described().c_str(), what, j - first, where.c_str());
      return;
    }
  }
}

// ---- races ----------------------------------------------------------------------------------------------------------

void Emulation::watch(const char* name, const void* array, std::size_t count, std::size_t element) {
  const auto begin = reinterpret_cast<std::uintptr_t>(array);
  arrays_.push_back({name, begin, begin + count * element, std::countr_zero(element), false, std::vector<Cell>(count)});
}

void Emulation::use_beside(const Array& array, std::uintptr_t address) {
  fault_ = text("thread %d of block %d uses memory beside %s: element %ld of %zu", current_, block_, array.name,
                static_cast<long>(address - array.begin) / (1L << array.shift), array.cells.size());
  stop();
}

// Returns the watched array at an address; null for other memory, such as stacks.
Array* Emulation::other_array_at(std::uintptr_t address, std::size_t bytes) {
  for (Array& array : arrays_) {
    if (address + bytes <= array.begin - kMargin || address >= array.end + kMargin) continue;
    if (address < array.begin || address + bytes > array.end) use_beside(array, address);
    return last_ = &array;
  }
  return address >= shared_.begin && address < shared_.end ? last_ = &shared_ : nullptr;
}

Cell& Emulation::cell(Array& array, std::size_t index) {
  Cell& cell = array.cells[index];
  const bool of_this_run = cell.run == run_;
  if (!of_this_run || (array.shared && cell.writes.lanes != 0 && intervals_[cell.writes.interval].block != block_)) {
    cell = {run_, {}, {}, {}};
  }
  return cell;
}

// Whether a barrier lies between an earlier interval and the current thread's, which is a different one.
bool Emulation::ordered(std::uint32_t earlier) const {
  const Interval &a = intervals_[earlier], &b = intervals_[of_warp_[current_ / kWarp]];
  return a.block == b.block && (a.barriers != b.barriers || a.warp == b.warp);
}

void Emulation::race(const Array& array, std::size_t index, const Uses& earlier, const char* what) {
  const Interval& other = intervals_[earlier.interval];
  const std::uint32_t self = other.block == block_ && other.warp == current_ / kWarp ? 1u << (current_ % kWarp) : 0;
  int lane = 0;
  while (lane < kWarp - 1 && ((earlier.lanes & ~self) >> lane & 1) == 0) ++lane;
  fault_ = array.shared ? array.name : text("%s[%zu]", array.name, index);  // the place
  fault_ =
      text("a race: thread %d of block %d and thread %d of block %d use %s, and no barrier is between: the first %s",
           current_, block_, other.warp * kWarp + lane, other.block, fault_.c_str(), what);
  stop();
}

void Emulation::reads(std::uintptr_t address, std::size_t bytes) {
  finish_write();
  Array* array = array_at(address, bytes);
  if (array == nullptr) return;
  ++accesses_;
  const std::uint32_t interval = of_warp_[current_ / kWarp], bit = 1u << (current_ % kWarp);
  const std::size_t last = array->index(address + bytes - 1);
  for (std::size_t i = array->index(address); i <= last; ++i) {
    Cell& c = cell(*array, i);
    const Uses& w = c.writes;
    if (w.lanes != 0 && (w.interval == interval ? (w.lanes & bit) == 0 : !ordered(w.interval))) {
      race(*array, i, w, "reads what the second wrote");
    }
    if (w.lanes == 0 && array->shared) {
      {
        fault_ =
            text("thread %d of block %d reads shared memory that no thread of the block has written", current_, block_);
        stop();
      }
    }
    if (c.reads.interval == interval) {
      c.reads.lanes |= bit;
    } else {
      c.earlier_reads = c.reads;
      c.reads = {interval, bit};
    }
  }
}

void Emulation::writes(std::uintptr_t address, std::size_t bytes) {
  finish_write();
  Array* array = array_at(address, bytes);
  if (array == nullptr) return;
  ++accesses_;
  pending_.address = address;
  pending_.bytes = bytes;
  pending_.array = array;
  pending_.before = digest(address, bytes);
}

// Checks the announced write. Lanes of a warp may write the same value to the same place: each then writes what is
// there already.
void Emulation::finish_pending_write() {
  const std::size_t bytes = std::exchange(pending_.bytes, 0);
  Array& array = *pending_.array;
  const std::uint32_t interval = of_warp_[current_ / kWarp], bit = 1u << (current_ % kWarp);
  const bool changed = pending_.before != digest(pending_.address, bytes);
  const std::size_t last = array.index(pending_.address + bytes - 1);
  for (std::size_t i = array.index(pending_.address); i <= last; ++i) {
    Cell& c = cell(array, i);
    const auto conflict = [&](const Uses& earlier) {
      if (earlier.lanes == 0) return false;
      return earlier.interval == interval ? changed && (earlier.lanes & ~bit) != 0 : !ordered(earlier.interval);
    };
    if (conflict(c.writes)) race(array, i, c.writes, "writes what the second wrote");
    if (conflict(c.reads)) race(array, i, c.reads, "writes what the second read");
    if (conflict(c.earlier_reads)) race(array, i, c.earlier_reads, "writes what the second read");
    c.writes = {interval, c.writes.lanes != 0 && c.writes.interval == interval ? c.writes.lanes | bit : bit};
  }
}

}  // namespace

void run(const char* name, const Grid& grid, void (*kernel)(const void*), const void* arguments) {
  emulation().run(name, grid, kernel, arguments);
}
void watch(const char* name, const void* array, std::size_t count, std::size_t bytes_per_element) {
  emulation().watch(name, array, count, bytes_per_element);
}
void watch_nothing() { emulation().watch_nothing(); }
void stop(const char* why) { emulation().stop_because(why); }
std::uint64_t accesses() { return emulation().accesses(); }

Index thread_index() { return emulation().thread(); }
Index block_index() { return emulation().block(); }
Index threads_per_block() { return {static_cast<unsigned>(emulation().grid().threads_per_block)}; }
Index blocks_of_grid() { return {static_cast<unsigned>(emulation().grid().blocks)}; }

std::uint64_t exchange(unsigned mask, std::uint64_t value, int distance, const std::source_location& where) {
  return emulation().exchange(mask, value, {Wait::shuffle, distance, where});
}
void warp_barrier(unsigned mask, const std::source_location& where) {
  emulation().exchange(mask, 0, {Wait::warp, 0, where});
}
void block_barrier(const std::source_location& where) { emulation().wait_for_block({Wait::block, 0, where}); }

}  // namespace emulated_gpu

// ---- what -fsanitize=thread calls -----------------------------------------------------------------------------------

using emulated_gpu::emulation;
#define ACCESS(bytes)                                                                           \
  void __tsan_read##bytes(void* at) {                                                           \
    if (emulated_gpu::running) emulation().reads(reinterpret_cast<std::uintptr_t>(at), bytes);  \
  }                                                                                             \
  void __tsan_write##bytes(void* at) {                                                          \
    if (emulated_gpu::running) emulation().writes(reinterpret_cast<std::uintptr_t>(at), bytes); \
  }                                                                                             \
  void __tsan_unaligned_read##bytes(void* at) { __tsan_read##bytes(at); }                       \
  void __tsan_unaligned_write##bytes(void* at) { __tsan_write##bytes(at); }                     \
  void __tsan_volatile_read##bytes(void* at) { __tsan_read##bytes(at); }                        \
  void __tsan_volatile_write##bytes(void* at) { __tsan_write##bytes(at); }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* at, std::size_t bytes) {
  if (emulated_gpu::running && bytes > 0) emulation().reads(reinterpret_cast<std::uintptr_t>(at), bytes);
}
void __tsan_write_range(void* at, std::size_t bytes) {
  if (emulated_gpu::running && bytes > 0) emulation().writes(reinterpret_cast<std::uintptr_t>(at), bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
}
