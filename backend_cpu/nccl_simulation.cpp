// SPDX-License-Identifier: Apache-2.0
// How long NCCL's operations take on a simulated machine. They begin when the last of their ranks begins.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "backend_cpu/nccl_operations.h"
#include "backend_cpu/simulation.h"

namespace workshop::cpu {
namespace {

constexpr int kFromSender = 1, kFromReceiver = 2;  // tags

// Returns the world rank of each member of a communicator.
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

// Whether the operation leaves this rank's node.
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

}  // namespace

// When operations that run together begin and end. Their messages share the link, so in each direction all of them
// arrive when all their bytes have arrived.
class SimulatedTimes::Times {
 public:
  explicit Times(const std::vector<Operation>& operations) {
    for (const Operation& o : operations) {
      const bool between = leaves_node(o);
      const Duration time = time_of(o, between ? simulated_machine()->between : simulated_machine()->link);
      parts_.push_back({time.latency, between, o.kind != Kind::receive, o.kind != Kind::send, {}, {}});
      if (parts_.back().sends) busy_[between][0] += time.transfer;
      if (parts_.back().receives) busy_[between][1] += time.transfer;
    }
    requests_.reserve(2 * operations.size());
    for (std::size_t i = 0; i < operations.size(); ++i) tell(operations[i], parts_[i]);
  }

  // Whether all other ranks have told this rank when they begin, and for how long their links are busy.
  bool known() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }

  // Returns when the last operation ends.
  Moment end() const {
    Moment last = moment();
    for (const bool between : {false, true}) {
      double delay = 0;  // because other streams use this rank's link
      for (const Direction direction : {Direction::out, Direction::in})
        delay = std::max(delay, wait_for_link(between, direction));
      for (const Part& part : parts_) {
        if (part.between != between) continue;
        const double busy = std::max(part.mine.busy, part.latest.busy);
        last = std::max(last, later(beginning(part), busy + delay + part.latency));
      }
    }
    return last;
  }

 private:
  // Of one rank: when it begins, in seconds of its clock, and how long its link needs to send or receive everything.
  struct Ends {
    double begins = 0, busy = 0;
  };
  struct Part {
    double latency;
    bool between, sends, receives;
    Ends mine, latest;  // latest: the maximum over the ranks of the operation
  };

  static Moment beginning(const Part& part) { return later(Moment(), std::max(part.mine.begins, part.latest.begins)); }

  // Returns by how many seconds the link ends later because other streams use it too.
  double wait_for_link(bool between, Direction direction) const {
    const double busy = busy_[between][direction == Direction::out ? 0 : 1];
    Moment first = Moment::max(), begin;
    for (const Part& part : parts_) {
      const bool uses = direction == Direction::out ? part.sends : part.receives;
      if (part.between != between || !uses) continue;
      first = std::min(first, beginning(part));
      begin = std::max(begin, beginning(part));
    }
    if (busy == 0) return 0;
    const Moment end = use_link(direction, between, first, begin, busy);
    return std::chrono::duration<double>(end - later(begin, busy)).count();
  }

  void tell(const Operation& o, Part& part) {
    const double out = part.sends ? busy_[part.between][0] : 0, in = part.receives ? busy_[part.between][1] : 0;
    part.mine = {std::chrono::duration<double>(moment().time_since_epoch()).count(), std::max(out, in)};
    const auto request = [this] { return &requests_.emplace_back(MPI_REQUEST_NULL); };
    if (!is_message(o)) {
      MPI_Iallreduce(&part.mine, &part.latest, 2, MPI_DOUBLE, MPI_MAX, o.comm->mpi, request());
      return;
    }
    const bool sends = o.kind == Kind::send;
    MPI_Isend(&part.mine, 2, MPI_DOUBLE, o.root, sends ? kFromSender : kFromReceiver, o.comm->mpi, request());
    MPI_Irecv(&part.latest, 2, MPI_DOUBLE, o.root, sends ? kFromReceiver : kFromSender, o.comm->mpi, request());
  }

  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  double busy_[2][2] = {};  // seconds, by link and direction
};

SimulatedTimes::SimulatedTimes(std::vector<Operation> operations)
    : operations_(std::move(operations)), times_(operations_.empty() ? nullptr : new Times(operations_)) {}

SimulatedTimes::~SimulatedTimes() {
  if (times_ != nullptr && times_->known()) delete times_;  // else not freed: MPI may still write there
}

void SimulatedTimes::pass() {
  if (times_ == nullptr) return;
  for (int polls = 0; !times_->known(); pause_polling(polls)) {
    if (any_aborted(operations_)) return;
  }
  wait_until(times_->end());
}

}  // namespace workshop::cpu
