// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace workshop {

// While an object of this class exists, no NCCL call of this process is recorded in the ledger or the timeline. Use it
// for calls that only report on what the program does.
class OffTheRecord {
 public:
  OffTheRecord();
  ~OffTheRecord();
  OffTheRecord(const OffTheRecord&) = delete;
  OffTheRecord& operator=(const OffTheRecord&) = delete;

 private:
  bool before_;
};

}  // namespace workshop
