// SPDX-License-Identifier: Apache-2.0
// How long NCCL's operations take on a simulated machine: they begin when the last of their ranks does.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/cpu/nccl_operations.h"
#include "common/cpu/simulation.h"

namespace workshop::cpu {
namespace {

constexpr int kFromSender = 1, kFromReceiver = 2;  // tags

// The ranks of the world that the members of a communicator are.
std::vector<int> ranks_of_world(const ncclComm& comm) {
  MPI_Group world, members;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Comm_group(comm.mpi, &members);
  std::vector<int> ranks(static_cast<std::size_t>(comm.size)), of_world(ranks.size());
  for (int i = 0; i < comm.size; ++i) ranks[static_cast<std::size_t>(i)] = i;
  MPI_Group_translate_ranks(members, comm.size, ranks.data(), world, of_world.data());
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return of_world;
}

bool is_message(const Operation& o) { return o.kind == Kind::send || o.kind == Kind::receive; }

// Does the operation leave this rank's node?
bool leaves_node(const Operation& o) {
  const int node = simulated_machine()->node;
  const std::vector<int> world = ranks_of_world(*o.comm);
  const int mine = world[static_cast<std::size_t>(o.comm->rank)] / node;
  if (is_message(o)) return world[static_cast<std::size_t>(o.root)] / node != mine;
  return std::any_of(world.begin(), world.end(), [=](int rank) { return rank / node != mine; });
}

Duration time_of(const Operation& o, const LinkSpeed& link) {
  const auto ranks = static_cast<std::size_t>(o.comm->size);
  const std::size_t bytes = o.count * element_size(o.type);
  switch (o.kind) {
    case Kind::all_reduce:
      return collective_time(Pattern::all_reduce, o.comm->size, bytes, link);
    case Kind::reduce_scatter:
    case Kind::all_gather:
      return collective_time(Pattern::part_per_rank, o.comm->size, ranks * bytes, link);
    case Kind::broadcast:
    case Kind::reduce:
      return collective_time(Pattern::tree, o.comm->size, bytes, link);
    case Kind::all_to_all:
    case Kind::gather:
    case Kind::scatter:
      return collective_time(Pattern::through_root, o.comm->size, ranks * bytes, link);
    case Kind::send:
    case Kind::receive:
      return o.root == o.comm->rank ? Duration{} : message_time(bytes, link);
  }
  return {};
}

static_assert(std::is_same_v<Moment::duration, std::chrono::nanoseconds>);

// When each of some operations begins and ends.
class Times {
 public:
  explicit Times(const std::vector<Operation>& operations) {
    for (const Operation& o : operations) add(o);
    requests_.reserve(2 * operations.size());
    for (std::size_t i = 0; i < operations.size(); ++i) tell(operations[i], parts_[i]);
  }

  // Have the other ranks told when they begin?
  bool known() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }

  // When the last of them ends.
  Moment end() const {
    Moment last = moment();
    for (const Part& part : parts_) {
      const Moment beginning{std::chrono::nanoseconds(std::max(part.mine, part.latest))};
      Moment sent = beginning;
      for (const Direction direction : {Direction::out, Direction::in}) {
        if (direction == Direction::out ? part.sends : part.receives)
          sent = std::max(sent, use_link(direction, part.between, beginning, part.time.transfer));
      }
      last = std::max(last, later(sent, part.time.latency));
    }
    return last;
  }

 private:
  struct Part {
    Duration time;
    bool between, sends, receives;
    std::int64_t mine, latest;  // beginning, in nanoseconds: of this rank, and of those that take part
  };

  // Of messages in the same direction one begins when the one before it has been sent.
  void add(const Operation& o) {
    const bool between = leaves_node(o), sends = o.kind != Kind::receive, receives = o.kind != Kind::send;
    const Duration time = time_of(o, between ? simulated_machine()->between : simulated_machine()->link);
    Moment beginning = moment();
    if (sends) beginning = std::max(beginning, free_[between][0]);
    if (receives) beginning = std::max(beginning, free_[between][1]);
    if (sends) free_[between][0] = later(beginning, time.transfer);
    if (receives) free_[between][1] = later(beginning, time.transfer);
    const std::int64_t mine = beginning.time_since_epoch().count();
    parts_.push_back({time, between, sends, receives, mine, mine});
  }

  void tell(const Operation& o, Part& part) {
    const auto request = [this] { return &requests_.emplace_back(MPI_REQUEST_NULL); };
    if (!is_message(o)) {
      MPI_Iallreduce(&part.mine, &part.latest, 1, MPI_INT64_T, MPI_MAX, o.comm->mpi, request());
      return;
    }
    const bool sends = o.kind == Kind::send;
    MPI_Isend(&part.mine, 1, MPI_INT64_T, o.root, sends ? kFromSender : kFromReceiver, o.comm->mpi, request());
    MPI_Irecv(&part.latest, 1, MPI_INT64_T, o.root, sends ? kFromReceiver : kFromSender, o.comm->mpi, request());
  }

  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  Moment free_[2][2] = {};  // by link and direction
};

}  // namespace

void pass_time(const std::vector<Operation>& operations) {
  auto times = std::make_unique<Times>(operations);
  for (int polls = 0; !times->known(); pause_polling(polls)) {
    if (!any_aborted(operations)) continue;
    static_cast<void>(times.release());  // MPI may still write there
    return;
  }
  wait_until(times->end());
}

}  // namespace workshop::cpu
