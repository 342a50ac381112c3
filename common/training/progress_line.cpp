// SPDX-License-Identifier: Apache-2.0
#include "common/training/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "common/base/format.h"
#include "common/base/print.h"
#include "common/base/ranks.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {
namespace {

constexpr double kOnTerminal = 0.5, kElsewhere = 30;  // seconds from one line to the next
constexpr double kLong = 5;                           // seconds before the first line, at least

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  if (whole < 100) return formatted("%lld s", static_cast<long long>(whole));
  if (whole < 100 * 60) return formatted("%lld min", static_cast<long long>((whole + 30) / 60));
  return formatted("%.1f h", seconds / 3600);
}

}  // namespace

// mpirun gives ranks a terminal even if mpirun's output goes elsewhere, so isatty() does not count under MPI.
// tools/launch sets WORKSHOP_TERMINAL if the output goes to a terminal.
std::unique_ptr<ProgressLine> ProgressLine::make(const Work& work) {
#ifdef WORKSHOP_BACKEND_CPU
  cpu::looks_after_program("/common/training/progress_line");
#endif
  if (process_ranks().rank != 0 || work.steps < 1) return nullptr;
  const bool on_terminal =
      std::getenv("WORKSHOP_TERMINAL") != nullptr || (!process_ranks().by_mpi && isatty(STDOUT_FILENO) != 0);
  const char* wanted = std::getenv("WORKSHOP_PROGRESS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : on_terminal ? kOnTerminal : kElsewhere;
  if (!(seconds > 0)) return nullptr;
  const double first = wanted != nullptr ? seconds : std::max(seconds, kLong);
  return std::make_unique<ProgressLine>(work, Pace{seconds, first, on_terminal});
}

ProgressLine::ProgressLine(Work work, const Pace& pace)
    : work_(std::move(work)), pace_(pace), next_line_(Clock::now() + in_clock(pace.first)) {
  CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&host_loss_), sizeof(float)));
}

ProgressLine::~ProgressLine() {
  clear();
  cudaFreeHost(host_loss_);
}

void ProgressLine::begin_step(std::int64_t steps, const float* device_loss, double loss, cudaStream_t stream) {
  if (under_way_) look();
  const Clock::time_point now = Clock::now();
  if (under_way_ || now < next_look_) return;
  steps_ = steps;
  known_loss_ = loss;
  *host_loss_ = 0;
  if (device_loss != nullptr)
    CUDA_CHECK(cudaMemcpyAsync(host_loss_, device_loss, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaEventRecord(reached_, stream));
  under_way_ = true;
  next_look_ = now + in_clock(pace_.seconds);
}

void ProgressLine::look() {
  const cudaError_t status = cudaEventQuery(reached_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears the status, which was not an error
    return;
  }
  CUDA_CHECK(status);
  under_way_ = false;
  const Clock::time_point now = Clock::now();
  if (first_steps_ < 0) {
    first_steps_ = steps_;
    first_at_ = now;
  } else if (now >= next_line_ && steps_ > first_steps_) {
    next_line_ = now + in_clock(pace_.seconds);
    say(std::chrono::duration<double>(now - first_at_).count() / static_cast<double>(steps_ - first_steps_));
  }
}

void ProgressLine::say(double seconds_per_step) {
  const double loss = *host_loss_ != 0 ? *host_loss_ : known_loss_;
  const std::string text =
      formatted("step %lld of %lld  ", static_cast<long long>(steps_), static_cast<long long>(work_.steps)) +
      (loss != 0 ? formatted("loss %.6f  ", loss) : "") +
      formatted("%.*f %s/s  ", work_.units_per_step < 10 * seconds_per_step ? 1 : 0,
                work_.units_per_step / seconds_per_step, work_.unit.c_str()) +
      duration(static_cast<double>(work_.steps - steps_) * seconds_per_step) + " left";
  if (pace_.on_terminal) {
    print0("\r%s\033[K", text.c_str());
    shown_ = true;
  } else {
    print0("%s\n", text.c_str());
  }
}

void ProgressLine::clear() {
  if (shown_) print0("\r\033[K");
  shown_ = false;
}

}  // namespace workshop
