// SPDX-License-Identifier: Apache-2.0
#include "common/nccl/launch_order.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/place.h"
#include "common/device/device.h"
#include "common/nccl/gather.h"
#include "common/nccl/nccl_calls.h"

namespace workshop {
namespace {

// ---- finding a circle ----------------------------------------------------------------------------------------------

using Logs = std::vector<std::vector<LaunchedOperation>>;

// Simulates the launches of all ranks on devices that run one launch at a time. A launch starts when the one before it
// is done, and is done when all parts of its operations have started. Each rank has a main lane, in which its launches
// run one after the other. A communicator that runs beside others has a lane of its own on each rank. Its operations
// also wait until all earlier launches in the main lane are done, but they delay only later operations of the same
// communicator.
class OneAtATime {
 public:
  explicit OneAtATime(const Logs& logs) : logs_(logs) {
    for (int rank = 0; rank < static_cast<int>(logs.size()); ++rank) add_lanes(rank);
  }

  // Runs until no lane can go on. The order of the loop does not matter: the same lanes get stuck in the same places.
  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (Lane& lane : lanes_) progress |= advance(lane);
    }
  }

  std::vector<LaunchOrder> circle() const {
    const auto stuck = std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.done(); });
    if (stuck == lanes_.end()) return {};
    std::vector<const Lane*> path;
    const Lane* lane = stuck->started ? &*stuck : &main_lane(stuck->rank);
    for (; std::find(path.begin(), path.end(), lane) == path.end(); lane = &holds_up(*lane)) path.push_back(lane);
    path.erase(path.begin(), std::find(path.begin(), path.end(), lane));  // drops what only leads to the circle
    std::vector<LaunchOrder> orders;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const Lane& before = *path[(i + path.size() - 1) % path.size()];
      const LaunchedOperation& first = awaited(*path[i]);
      orders.push_back({path[i]->rank, first, *missing(awaited(before)).operation});
    }
    return orders;
  }

 private:
  // Operations of one launch.
  struct Step {
    int launch;
    std::vector<const LaunchedOperation*> operations;
  };
  struct Lane {
    int rank;
    std::vector<Step> steps;
    std::size_t next = 0;  // first step that is not done
    bool started = false;  // whether that one has started
    bool done() const { return next == steps.size(); }
  };
  // A rank's part of an operation.
  struct Part {
    std::size_t lane, step;
    const LaunchedOperation* operation;
  };
  struct Parts {
    std::vector<Part> all;
    std::size_t started = 0;
  };
  using Key = std::tuple<std::uint64_t, int, int, std::int64_t>;

  static Key key(const LaunchedOperation& o) { return {o.communicator, o.sender, o.receiver, o.number}; }

  void add_lanes(int rank) {
    std::map<std::uint64_t, std::size_t> lane_of = {{kMain, lanes_.size()}};
    main_.push_back(lanes_.size());
    lanes_.push_back({rank, {}});
    for (const LaunchedOperation& o : logs_[rank]) {
      const auto [lane, is_new] = lane_of.try_emplace(o.runs_beside_others ? o.communicator : kMain, lanes_.size());
      if (is_new) lanes_.push_back({rank, {}});
      std::vector<Step>& steps = lanes_[lane->second].steps;
      if (steps.empty() || steps.back().launch != o.launch) steps.push_back({o.launch, {}});
      steps.back().operations.push_back(&o);
      parts_[key(o)].all.push_back({lane->second, steps.size() - 1, &o});
    }
  }

  const Lane& main_lane(int rank) const { return lanes_[main_[rank]]; }

  // Whether the main lane has done all launches before this one.
  bool is_due(int rank, int launch) const {
    const Lane& main = main_lane(rank);
    return main.done() || main.steps[main.next].launch >= launch;
  }

  bool complete(const LaunchedOperation& o) const {
    const Parts& parts = parts_.at(key(o));
    return parts.started == parts.all.size();
  }

  // Starts and finishes all that it can. Returns whether there was anything to start or finish.
  bool advance(Lane& lane) {
    bool progress = false;
    for (; !lane.done(); ++lane.next, lane.started = false) {
      const Step& step = lane.steps[lane.next];
      if (!lane.started) {
        if (!is_due(lane.rank, step.launch)) return progress;
        for (const LaunchedOperation* o : step.operations) ++parts_.at(key(*o)).started;
        lane.started = progress = true;
      }
      if (!std::ranges::all_of(step.operations, [&](auto* o) { return complete(*o); })) return progress;
      progress = true;
    }
    return progress;
  }

  // Returns the operation that a lane waits for. The lane must be stuck in a step that has started.
  const LaunchedOperation& awaited(const Lane& lane) const {
    const auto& operations = lane.steps[lane.next].operations;
    return **std::ranges::find_if_not(operations, [&](auto* o) { return complete(*o); });
  }

  // Returns the first part of `o` that has not started yet.
  const Part& missing(const LaunchedOperation& o) const {
    return *std::ranges::find_if(parts_.at(key(o)).all, [&](const Part& part) {
      const Lane& lane = lanes_[part.lane];
      return part.step > lane.next || (part.step == lane.next && !lane.started);
    });
  }

  // The lane that keeps the awaited operation from starting on another rank.
  const Lane& holds_up(const Lane& waiting) const {
    const Lane& lane = lanes_[missing(awaited(waiting)).lane];
    return lane.started ? lane : main_lane(lane.rank);
  }

  static constexpr std::uint64_t kMain = 0;  // no communicator has this id
  const Logs& logs_;
  std::vector<Lane> lanes_;
  std::vector<std::size_t> main_;  // by rank
  std::map<Key, Parts> parts_;
};

// ---- this rank's log -----------------------------------------------------------------------------------------------

class LaunchLog final : public CallObserver {
 public:
  void enqueued(std::span<const NcclCall> calls, ncclResult_t status) override {
    const std::lock_guard lock(mutex_);
    if (status != ncclSuccess || operations_.size() >= kMost) return;
    for (const NcclCall& call : calls) add(call);
    ++launch_;
  }

  std::vector<LaunchedOperation> operations() {
    const std::lock_guard lock(mutex_);
    return operations_;
  }

  // Returns "ncclAllReduce at 02_ddp/ddp.cu:41 (collective 3 of 'data')".
  std::string describe(const LaunchedOperation& o) {
    const std::lock_guard lock(mutex_);
    const auto& [operation, communicator, site] = calls_[o.call];
    const std::string where = place(site), number = std::to_string(o.number);
    std::string text = operation + (where.empty() ? "" : " at " + where);
    text += (o.sender < 0 ? " (collective " : " (message ") + number + " of '" + communicator->name + "'";
    if (o.sender >= 0) text += ", from its rank " + std::to_string(o.sender) + " to " + std::to_string(o.receiver);
    return text + ")";
  }

 private:
  using Call = std::tuple<const char*, const Communicator*, const CallSite*>;

  // Logs a call, unless it concerns only this rank, or its communicator has no id, so other ranks cannot find it.
  void add(const NcclCall& call) {
    const Communicator* c = call.communicator;
    if (c == nullptr || c->id == 0 || c->ranks == 1) return;
    const auto [index, is_new] = index_.try_emplace({call.operation, c, call.site}, static_cast<int>(calls_.size()));
    if (is_new) calls_.push_back(index->first);
    const std::string_view name = call.operation;
    LaunchedOperation o{.communicator = c->id,
                        .number = call.number,
                        .launch = launch_,
                        .call = index->second,
                        .runs_beside_others = c->runs_beside_others};
    if (name == "ncclSend") std::tie(o.sender, o.receiver) = std::pair(c->rank, call.peer);
    if (name == "ncclRecv") std::tie(o.sender, o.receiver) = std::pair(call.peer, c->rank);
    operations_.push_back(o);
  }

  // A program repeats its steps, so a violation shows in the first ones. A log of this length takes 400 kB.
  static constexpr std::size_t kMost = 10'000;

  std::mutex mutex_;
  int launch_ = 0;
  std::vector<LaunchedOperation> operations_;
  std::vector<Call> calls_;
  std::map<Call, int> index_;
};

LaunchLog& launch_log() {
  static auto& log = *new LaunchLog;  // never destroyed, like the other observers
  return log;
}

std::string bytes_of(const std::vector<LaunchedOperation>& operations) {
  static_assert(std::is_trivially_copyable_v<LaunchedOperation>);
  return {reinterpret_cast<const char*>(operations.data()), operations.size() * sizeof(LaunchedOperation)};
}

std::vector<LaunchedOperation> operations_of(const std::string& bytes) {
  std::vector<LaunchedOperation> operations(bytes.size() / sizeof(LaunchedOperation));
  if (!bytes.empty()) std::memcpy(operations.data(), bytes.data(), bytes.size());
  return operations;
}

bool checks_launches() {
  const char* value = std::getenv("WORKSHOP_ORDER");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

std::vector<LaunchOrder> find_circle(const Logs& logs) {
  OneAtATime devices(logs);
  devices.run();
  return devices.circle();
}

void start_launch_log() {
  if (checks_launches()) observe_calls(launch_log());
}

void check_launch_order(ncclComm_t world) {
  if (!checks_launches()) return;
  const std::string mine = bytes_of(launch_log().operations());  // without the calls that follow
  const Stream stream;
  Logs logs;
  for (const std::string& bytes : gather_text(mine, world, stream)) logs.push_back(operations_of(bytes));
  const std::vector<LaunchOrder> circle = find_circle(logs);
  if (circle.empty()) return;

  int rank = 0;
  NCCL_CHECK(ncclCommUserRank(world, &rank));
  std::vector<std::string> orders;
  for (const LaunchOrder& order : circle) {  // only the rank itself knows where its calls are
    std::string text;
    if (order.rank == rank) {
      text = "rank " + std::to_string(rank) + " launches " + launch_log().describe(order.first) + " before " +
             launch_log().describe(order.second);
    }
    for (const std::string& of_rank : gather_text(text, world, stream)) {
      if (!of_rank.empty()) orders.push_back(of_rank);
    }
  }
  std::string message = "order: ranks launch NCCL calls in different orders, and may wait for each other forever: ";
  for (const std::string& order : orders) message += order + "; ";
  end_alike(kFailed, message + "all ranks must launch the calls of all communicators in one order");
}

}  // namespace workshop
