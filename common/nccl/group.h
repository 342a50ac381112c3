// SPDX-License-Identifier: Apache-2.0
// A group of ranks with a communicator of its own: the world, or a part of it made by split().
#pragma once

#include <nccl.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace workshop {

class Group {
 public:
  Group() = default;  // only this rank, without a communicator
  // All ranks of a communicator. The caller keeps ownership of it and must keep it alive.
  explicit Group(ncclComm_t comm);

  // Splits this group: all ranks that pass the same color form a new group, in the order of their keys. Collective:
  // every rank of this group must call it, and all must make their splits in the same order. `name` names the group in
  // the ledger. A rank that passes NCCL_SPLIT_NOCOLOR is in none of the new groups; it gets a Group() without a
  // communicator.
  Group split(int color, int key, const std::string& name) const;

  // Returns the values of all ranks, in the order of the ranks. Collective. Waits for the device, so do not use it
  // within a training step. The group must have a communicator.
  template <typename T>
  std::vector<T> gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::vector<char> bytes = gather_bytes({reinterpret_cast<const char*>(&mine), sizeof mine});
    std::vector<T> values(size());
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Declares that the device can always run a call of this group alongside calls of other groups. A call that waits for
  // other ranks then delays only this group. The order checker (WORKSHOP_ORDER) then accepts that ranks launch the
  // calls of this group and of others in different orders.
  void runs_beside_others() const;

  ncclComm_t comm() const { return comm_.get(); }
  int rank() const { return rank_; }  // of this process, within the group
  int size() const { return size_; }  // number of ranks in the group
  // For each member, in the group's order: its rank in the job. Valid only for the world and for groups made from it by
  // split().
  const std::vector<int>& members() const { return members_; }

 private:
  std::vector<char> gather_bytes(std::string_view mine) const;

  std::shared_ptr<ncclComm> comm_;  // from split(): destroyed with the last Group that shares it
  int rank_ = 0, size_ = 1;
  std::vector<int> members_ = {0};
};

}  // namespace workshop
