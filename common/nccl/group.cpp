// SPDX-License-Identifier: Apache-2.0
#include "common/nccl/group.h"

#include <numeric>

#include "common/device/device.h"
#include "common/nccl/gather.h"
#include "common/nccl/nccl_calls.h"

namespace workshop {

Group::Group(ncclComm_t comm) : comm_(comm, [](ncclComm_t) {}) {
  NCCL_CHECK(ncclCommUserRank(comm, &rank_));
  NCCL_CHECK(ncclCommCount(comm, &size_));
  members_.resize(size_);
  std::iota(members_.begin(), members_.end(), 0);
}

Group Group::split(int color, int key, const std::string& name) const {
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommSplit(this->comm(), color, key, &comm, nullptr));
  if (comm == nullptr) return {};
  name_communicator(comm, name);
  Group group(comm);
  group.comm_.reset(comm, ncclCommDestroy);
  group.members_ = group.gather(members_[rank_]);
  return group;
}

void Group::runs_beside_others() const {
  if (comm() != nullptr) workshop::runs_beside_others(comm());
}

std::vector<char> Group::gather_bytes(std::string_view mine) const {
  return workshop::gather_bytes(mine, comm(), Stream());
}

}  // namespace workshop
