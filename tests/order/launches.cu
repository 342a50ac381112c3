// SPDX-License-Identifier: Apache-2.0
// launches NAME: launches NCCL calls of several communicators in the same order on all ranks, or not. Each communicator
// has a stream of its own, so a wrong order does not hang here. CMakeLists.txt has the expected report.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"

namespace {

using namespace workshop;

constexpr int kFloats = 8;

// A communicator with a stream and a buffer.
struct Channel {
  Group group;
  Stream stream;
  DeviceBuffer<float> data{kFloats, Memory::data};

  explicit Channel(Group of) : group(std::move(of)) {}
  void all_reduce() const {
    NCCL_CHECK(ncclAllReduce(data.data(), data.data(), kFloats, ncclFloat, ncclSum, group.comm(), stream));
  }
  void send(int peer) const { NCCL_CHECK(ncclSend(data.data(), kFloats, ncclFloat, peer, group.comm(), stream)); }
  void receive(int peer) { NCCL_CHECK(ncclRecv(data.data(), kFloats, ncclFloat, peer, group.comm(), stream)); }
};

void in_group(const std::function<void()>& calls) {
  NCCL_CHECK(ncclGroupStart());
  calls();
  NCCL_CHECK(ncclGroupEnd());
}

struct Case {
  const Group& world;
  int rank = world.rank();

  Group all(const std::string& name) const { return world.split(0, rank, name); }
  Group only(bool member, const std::string& name) const {
    return world.split(member ? 0 : NCCL_SPLIT_NOCOLOR, rank, name);
  }
};

const std::map<std::string, std::function<void(Case)>> kCases = {
    // ---- nothing is said ----
    {"same_order",
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b"));
       for (int step = 0; step < 3; ++step) a.all_reduce(), b.all_reduce();
     }},
    {"within_a_group",  // its calls start together
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b"));
       for (int step = 0; step < 3; ++step) {
         if (t.rank == 0) in_group([&] { a.all_reduce(), b.all_reduce(); });
         if (t.rank == 1) in_group([&] { b.all_reduce(); }), in_group([&] { a.all_reduce(); });
       }
     }},
    {"by_itself",  // a communicator of one rank waits for nobody
     [](Case t) {
       const Channel a(t.all("a")), alone(t.world.split(t.rank, 0, "alone"));
       if (t.rank == 0) a.all_reduce(), alone.all_reduce();
       if (t.rank == 1) alone.all_reduce(), a.all_reduce();
     }},
    {"beside",
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b"));
       b.group.runs_beside_others();
       if (t.rank == 0) a.all_reduce(), b.all_reduce();
       if (t.rank == 1) b.all_reduce(), a.all_reduce();
     }},

    // ---- a mistake ----
    {"two_streams",
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b"));
       if (t.rank == 0) a.all_reduce(), b.all_reduce();
       if (t.rank == 1) {
         b.all_reduce();
         a.all_reduce();
       }
     }},
    {"group",
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b")), c(t.all("c"));
       if (t.rank == 0) in_group([&] { a.all_reduce(), b.all_reduce(); });
       c.all_reduce();
       if (t.rank == 1) in_group([&] { b.all_reduce(), a.all_reduce(); });
     }},
    {"message",
     [](Case t) {
       Channel messages(t.all("messages"));
       const Channel sums(t.all("sums"));
       if (t.rank == 0) messages.send(1);
       sums.all_reduce();
       if (t.rank == 1) messages.receive(0);
     }},
    {"circle",  // any two ranks share only one communicator
     [](Case t) {
       const Group pairs[] = {t.only(t.rank != 2, "0 and 1"), t.only(t.rank != 0, "1 and 2"),
                              t.only(t.rank != 1, "2 and 0")};
       const Channel next(pairs[t.rank]), previous(pairs[(t.rank + 2) % 3]);
       next.all_reduce();
       previous.all_reduce();
     }},
    {"mesh",  // 2 by 2
     [](Case t) {
       const Channel row(t.world.split(t.rank / 2, t.rank, "row")), column(t.world.split(t.rank % 2, t.rank, "column"));
       const bool row_first = t.rank == 0 || t.rank == 3;
       if (row_first) row.all_reduce();
       column.all_reduce();
       if (!row_first) row.all_reduce();
     }},
    {"second_step",  // the first one is right
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b"));
       for (int step = 0; step < 3; ++step) {
         const bool swapped = t.rank == 1 && step == 1;
         if (!swapped) a.all_reduce();
         b.all_reduce();
         if (swapped) a.all_reduce();
       }
     }},
    {"beside_only_one",  // the other two are in different orders
     [](Case t) {
       const Channel a(t.all("a")), b(t.all("b")), c(t.all("c"));
       c.group.runs_beside_others();
       if (t.rank == 0) a.all_reduce(), b.all_reduce();
       c.all_reduce();
       if (t.rank == 1) b.all_reduce(), a.all_reduce();
     }},
};

}  // namespace

int main(int, char** argv) {
  Options options("launches", "the calls of one case");
  options.without_training();
  options.parse(1, argv);
  const Job job(options);
  kCases.at(argv[1])({job.group()});
  print0("the case ends\n");
}
