// SPDX-License-Identifier: Apache-2.0
// The call that the program is in. The macros of common/base/check.h set it; the watchdog and the cpu backend read it.
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

// Tells the watchdog (common/watchdog/watchdog.h) that the program is in a call, as long as this object lives. Programs
// make their calls from one thread; concurrent calls from several threads overwrite each other's notes.
class InCall {
 public:
  explicit InCall(const CallSite& site) : outer_(current_.load(std::memory_order_relaxed)) { enter(&site); }
  ~InCall() { enter(outer_); }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

  // The current call, or null. The number changes whenever the call changes.
  static const CallSite* current() { return current_.load(std::memory_order_acquire); }
  static std::uint64_t number() { return number_.load(std::memory_order_relaxed); }

  // From now on, no call begins or returns, because the job is ending.
  static void hold() { held_.store(true, std::memory_order_release); }
  static bool held() { return held_.load(std::memory_order_acquire); }

 private:
  static void enter(const CallSite* site) {
    if (held()) wait_for_the_end();
    current_.store(site, std::memory_order_release);  // publishes *site
    number_.store(number() + 1, std::memory_order_relaxed);
  }
  [[noreturn]] static void wait_for_the_end();

  static inline std::atomic<const CallSite*> current_ = nullptr;
  static inline std::atomic<std::uint64_t> number_ = 0;
  static inline std::atomic<bool> held_ = false;
  const CallSite* outer_;
};

}  // namespace workshop
