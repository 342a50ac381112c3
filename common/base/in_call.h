// SPDX-License-Identifier: Apache-2.0
// Which of its calls the program is in: the checks of common/base/check.h say so, the watchdog and the cpu backend ask.
#pragma once

#include <atomic>
#include <cstdint>

namespace workshop {

// A call in the source of the program.
struct CallSite {
  const char* text;
  const char* file;
  int line;
};

// Notes for the watchdog (common/watchdog/watchdog.h) that the program is in a call, as long as this object lives. A
// program makes its calls from one thread; calls from others at the same time are noted one over the other.
class InCall {
 public:
  explicit InCall(const CallSite& site) : outer_(current_.load(std::memory_order_relaxed)) { enter(&site); }
  ~InCall() { enter(outer_); }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

  // Where the program is; null where it is in no call. The number changes whenever that does.
  static const CallSite* current() { return current_.load(std::memory_order_acquire); }
  static std::uint64_t number() { return number_.load(std::memory_order_relaxed); }

  // Lets the program run into no further call and out of none: the job ends.
  static void hold() { held_.store(true, std::memory_order_relaxed); }

 private:
  static void enter(const CallSite* site) {
    if (held_.load(std::memory_order_relaxed)) wait_for_the_end();
    current_.store(site, std::memory_order_release);  // with what it says
    number_.store(number() + 1, std::memory_order_relaxed);
  }
  [[noreturn]] static void wait_for_the_end();

  static inline std::atomic<const CallSite*> current_ = nullptr;
  static inline std::atomic<std::uint64_t> number_ = 0;
  static inline std::atomic<bool> held_ = false;
  const CallSite* outer_;
};

}  // namespace workshop
