// SPDX-License-Identifier: Apache-2.0
#include "common/base/stop_signal.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace workshop {
namespace {

std::atomic<int> noted = 0;
std::atomic<std::time_t> noted_at = 0;

std::time_t now() {  // in whole seconds; may be called in a signal handler
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

// May interrupt itself, or run in two threads at a time.
void note(int number) {
  if (noted == 0) noted_at = now();
  int none = 0;
  if (!noted.compare_exchange_strong(none, number) && now() > noted_at + 1) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // calls that a signal interrupts go on
  for (const int number : {SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
}

void release_stop_signals() {
  for (const int number : {SIGTERM, SIGUSR1}) std::signal(number, SIG_DFL);
}

int stop_signal() { return noted; }

const char* stop_signal_name(int signal) { return signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM"; }

}  // namespace workshop
