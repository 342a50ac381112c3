// SPDX-License-Identifier: Apache-2.0
// One rank of a running job: its device, and the communicator of all ranks.
#pragma once

#include <nccl.h>

#include <string>

#include "common/base/check.h"
#include "common/base/print.h"
#include "common/base/ranks.h"
#include "common/nccl/group.h"
#include "common/options/options.h"

namespace workshop {

// One rank of a running job. The constructor finds the rank and its device, meets the other ranks, and creates the NCCL
// communicator of all ranks. The destructor writes the run record and releases everything.
class Job {
 public:
  explicit Job(const Options& options);
  ~Job();

  int rank() const { return ranks_.rank; }
  int world() const { return ranks_.world; }
  const Ranks& ranks() const { return ranks_; }
  // Number of devices that this node has for the job. If there are more than ranks, some stay idle.
  int devices() const { return devices_; }
  // Number of devices that this process uses: Options::devices, or fewer if fewer are visible; 1 without that option.
  int own_devices() const { return own_devices_; }
  const Group& group() const { return group_; }  // all ranks
  ncclComm_t comm() const { return group_.comm(); }

 private:
  void set_device(const Options& options);

  Ranks ranks_;
  int device_ = 0, devices_ = 0, own_devices_ = 1;
  Group group_;
};

// Ends the job with status 2 if CUDA_LAUNCH_BLOCKING makes the host wait for each kernel and each NCCL call. Call it in
// programs that would hang then. `schedule`, the reason, appears in the message.
void refuse_launch_blocking(const std::string& schedule);

// Returns the version of the MPI library that the programs are linked to: "Open MPI v4.1.4", or "no MPI".
std::string mpi_version();

}  // namespace workshop
