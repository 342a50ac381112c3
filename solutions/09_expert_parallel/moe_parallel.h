// SPDX-License-Identifier: Apache-2.0
// Expert parallelism (Lepikhin et al., 2020): each rank has a part of every block's experts. All else is data
// parallelism: the ranks have their own samples. In each block, the rows that the router has sorted by expert travel to
// the ranks that have these experts, and the results travel back.
//
//   rank 0: router ─ sort ─┐                 ┌─ experts 0, 1 ─┐                 ┌─ combine
//   rank 1: router ─ sort ─┴─ all-to-all ────┴─ experts 2, 3 ─┴─ all-to-all ────┴─ combine
//
// How many rows a rank gets is known only when all routers have run. With exact counts, the ranks tell each other, and
// the host waits for these numbers. With fixed counts, each sequence always sends one row for each of its places at an
// expert, even for empty ones; this needs a capacity factor.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "09_expert_parallel/moe.h"
#include "09_expert_parallel/support/expert_options.h"
#include "common/nccl/group.h"
#include "model/clip.h"
#include "model/elementwise.h"

namespace workshop {

// ---- groups --------------------------------------------------------------------------------------------------------

struct ExpertGroups {
  Group experts;   // ranks that together have all experts
  Group replicas;  // ranks that have the same experts
};

// Makes this rank's two groups: `size` adjacent ranks that together hold all experts, and the ranks that hold the same
// experts. Collective. `size` must divide the size of `world`.
inline ExpertGroups make_expert_groups(const Group& world, int size) {
  return {world.split(world.rank() / size, world.rank(), "experts"),
          world.split(world.rank() % size, world.rank(), "expert replicas")};
}

// ---- kernels -------------------------------------------------------------------------------------------------------

// Counts the rows of each expert in each part of the samples: one part, or two halves with --overlap. Writes
// counts[experts, parts] and reads starts[experts·samples + 1].
static __global__ void count_parts(int* counts, const int* starts, int samples, int experts, int parts) {
  for (int i : grid_stride(experts * parts)) {
    const int* of_expert = starts + i / parts * samples;
    const int part = i % parts;
    counts[i] = of_expert[samples * (part + 1) / parts] - of_expert[samples * part / parts];
  }
}

// Writes starts[experts·samples + 1] with `rows` rows for each expert, `places` of them for each sample.
static __global__ void fixed_rows(int* starts, int samples, int experts, int rows, int places) {
  for (int i : grid_stride(experts * samples + 1)) {
    starts[i] = samples == 0 ? 0 : i / samples * rows + i % samples * places;
  }
}

// ---- experts on several ranks --------------------------------------------------------------------------------------

class ParallelExperts : public Experts {
 public:
  // `group` must outlive this object. Its size must divide the number of experts.
  ParallelExperts(const GptOptions& options, int positions, const ExpertOptions& how, const Group& group,
                  FeatureCut cut = {})
      : Experts(group.rank() * options.experts / group.size(), options.experts / group.size(), options.experts,
                rows_per_sample(options, positions, how), options.width, cut),
        group_(group),
        parts_(how.overlap ? 2 : 1),
        fixed_(how.counts == "fixed"),
        positions_(positions) {
    const int K = options.top_k;
    received_rows_ = fixed_ ? rows() : group.size() * positions_ * std::min(K, count());
  }

  // ---- memory ----

  std::vector<int> saved() const override {
    return {received_rows_ * width_, received_rows_ * hidden_, received_rows_ * hidden_};
  }
  int scratch() const override { return received_rows_ * hidden_; }
  void allocate(int max_samples, cudaStream_t stream) override {
    const int numbers = all_ * parts_;
    max_samples_ = max_samples;
    counts_ = DeviceBuffer<int>(2 * numbers, Memory::activations);
    host_starts_ = HostBuffer<int>(all_ * max_samples + 1);
    host_counts_ = HostBuffer<int>(numbers);
    begin_.resize(numbers + 1);
    first_.resize(count() + 1);
    room_ = DeviceBuffer<Real>(max_samples * received_rows_ * width_, Memory::buckets);
    ones_ = DeviceBuffer<Real>(max_samples * group_.size() * positions_, Memory::data);
    launch(fill, static_cast<int>(ones_.size()), stream, ones_.data(), 1.0f, static_cast<int>(ones_.size()));
  }

  // ---- where the rows are ----

  void lay_out(int* starts, const int* counts, int samples, int places, cudaStream_t stream) const override {
    if (!fixed_) return Experts::lay_out(starts, counts, samples, places, stream);
    launch(fixed_rows, all_ * samples + 1, stream, starts, samples, all_, rows_of_expert(), places_of_sample());
  }
  void clear(Real* rows, cudaStream_t stream) const override {
    if (!fixed_) return;
    CUDA_CHECK(cudaMemsetAsync(rows, 0, max_samples_ * rows_ * width_ * sizeof(Real), stream));
  }

  // ---- the passes ----

  void forward(const Blas& blas, Real* x, Real* y, const int* starts, int samples, Saved& saved) override {
    const cudaStream_t compute = blas.stream();
    if (fixed_) {
      fix_counts(saved.numbers);
    } else {
      exchange_counts(saved.numbers, starts, samples, compute);
    }
    locate(saved.numbers);
    const ExpertRows received = received_rows(saved);
    probe("09.K", {name(), ": given to the experts: rows of x"}, x, {saved.numbers.back(), width_}, compute);
    // WRITE 09.K: Send the rows of x to their experts, run the experts on them, and bring the results back to y.
    //   There are parts_ parts, each with rows for all experts. exchange(x, received.x, saved.numbers, part,
    //   Direction::to_experts) sends those of a part to the ranks of their experts, on communication_, and receives the
    //   rows for the experts of this rank. this->compute(blas, received, first_rows_of(part)) runs this rank's experts
    //   on these rows and writes received.y, on the stream `compute`. exchange(y, received.y, saved.numbers, part,
    //   Direction::back) returns them. While one part is computed, another should travel: first send all parts, then
    //   compute one after the other and return each as soon as it is computed. begin_communication(compute) makes
    //   communication_ wait for all work enqueued on `compute` so far; end_communication(compute) makes `compute` wait
    //   for communication_. In between, use the events arrived_[part] and computed_[part] (docs/calls.md). The host
    //   must not wait.
    begin_communication(compute);
    for (int part = 0; part < parts_; ++part) {
      exchange(x, received.x, saved.numbers, part, Direction::to_experts);
      CUDA_CHECK(cudaEventRecord(arrived_[part], communication_));
    }
    for (int part = 0; part < parts_; ++part) {
      // TODO 09.16: Compute a part when it has arrived, and return it when it is computed.
      //   cudaStreamWaitEvent(stream, event) makes a stream wait. arrived_[part] has been recorded above; record
      //   computed_[part] after the computation. this->compute(blas, received, first_rows_of(part)) works on the stream
      //   `compute`, exchange(y, received.y, saved.numbers, part, Direction::back) on communication_.
      CUDA_CHECK(cudaStreamWaitEvent(compute, arrived_[part]));
      this->compute(blas, received, first_rows_of(part));
      CUDA_CHECK(cudaEventRecord(computed_[part], compute));
      CUDA_CHECK(cudaStreamWaitEvent(communication_, computed_[part]));
      exchange(y, received.y, saved.numbers, part, Direction::back);
      // END TODO 09.16
    }
    end_communication(compute);
    // END WRITE 09.K
    probe("09.15", {name(), ": what all experts return for this rank's rows"}, y, {saved.numbers.back(), width_},
          compute);
    probe("09.16", {name(), ": rows of y that this rank's experts compute"}, received.y, {begin_of(parts_), width_},
          compute);
  }

  void backward(Real*, Real* dy, Real* scratch, const Saved& saved, const Gradients& g) override {
    const cudaStream_t compute = g.blas.stream();
    locate(saved.numbers);
    const ExpertRows received = received_rows(saved);
    Gradients own = g;
    own.ones = ones_.data();  // enough for the rows of all ranks
    probe("09.L", {name(), ": given to the experts: dy"}, dy, {saved.numbers.back(), width_}, compute);
    // WRITE 09.L: Send the rows of dy to their experts, go backward there, and bring the gradients of x back to dy.
    //   The parts travel as in forward(), to and from room_.data(), which holds the rows of dy that this rank's experts
    //   receive. compute_backward(received, first_rows_of(part), room_.data(), scratch, own) replaces these rows with
    //   the gradients of the rows of x. It adds to the gradients of the parameters if own.accumulate is 1 and
    //   overwrites them if it is 0. g.accumulate says which of the two the batch as a whole must do: what do the parts
    //   after the first one need?
    begin_communication(compute);
    for (int part = 0; part < parts_; ++part) {
      exchange(dy, room_.data(), saved.numbers, part, Direction::to_experts);
      CUDA_CHECK(cudaEventRecord(arrived_[part], communication_));
    }
    for (int part = 0; part < parts_; ++part) {
      CUDA_CHECK(cudaStreamWaitEvent(compute, arrived_[part]));
      own.accumulate = part == 0 ? g.accumulate : 1;
      compute_backward(received, first_rows_of(part), room_.data(), scratch, own);
      CUDA_CHECK(cudaEventRecord(computed_[part], compute));
      CUDA_CHECK(cudaStreamWaitEvent(communication_, computed_[part]));
      exchange(dy, room_.data(), saved.numbers, part, Direction::back);
    }
    end_communication(compute);
    // END WRITE 09.L
    probe("09.L", {name(), ": gradients of this rank's rows"}, dy, {saved.numbers.back(), width_}, compute);
  }

 private:
  enum class Direction { to_experts, back };

  // Returns how many rows per sample a rank sends at most.
  static int rows_per_sample(const GptOptions& o, int positions, const ExpertOptions& how) {
    return how.counts == "fixed" ? o.experts * Router(o, positions).places() : positions * o.top_k;
  }
  int places_of_sample() const { return rows_ / all_; }  // with fixed counts
  int rows_of_expert() const { return max_samples_ * places_of_sample(); }

  // Returns the received rows of x, and what the experts compute from them. The rows are sorted by part, then by
  // expert, then by the rank that has sent them.
  ExpertRows received_rows(const Saved& saved) const {
    const auto at = [&](int i) { return saved.buffers[kFirst + i].data(); };
    return {at(0), at(1), at(2), room_.data()};
  }

  // Experts::compute(), for the rows of a part.
  void compute(const Blas& blas, const ExpertRows& rows, const int* first) const {
    if (first[count()] > first[0]) {  // a part without rows may be left out
      probe("09.16", {"given to compute: first rows of a part at ", name()}, std::span(first, count() + 1));
      probe("09.16", {"given to compute: rows of a part at ", name()}, rows.x + first[0] * width_,
            {first[count()] - first[0], width_}, blas.stream());
    }
    Experts::compute(blas, rows, first);
  }

  // Exchanges between the ranks how many rows each will get from each other rank, and copies these numbers to the host.
  // Waits for the stream. `numbers` gets the number of rows from each rank for each expert of this rank in each part,
  // [group_.size(), count(), parts_]; then this rank's first row for each expert and part, [all_, parts_]; then its
  // total number of rows.
  void exchange_counts(std::vector<int>& numbers, const int* starts, int samples, cudaStream_t stream) {
    const int all = all_ * parts_, from_each = count() * parts_;
    int *sent = counts_.data(), *received = sent + all;
    launch(count_parts, all, stream, sent, starts, samples, all_, parts_);
    probe("09.12", {name(), ": given to the exchange: counts"}, sent, {all}, stream);
    // WRITE 09.I: Send each rank the numbers of rows that it will get from this one, and receive its numbers.
    //   Each rank of group_ has count() experts: rank r has those from r * count() on. sent[all_, parts_], on the
    //   device, has the number of this rank's rows for each expert and part. received[group_.size(), count(), parts_]
    //   gets these numbers from each rank, including this one, for the experts of this rank. Make one group of NCCL
    //   calls on ints, over group_.comm(), on `stream`. A rank may send to itself. The host must not wait.
    // TODO 09.12: Send each rank the numbers of rows that it will get.
    //   Rank r has the experts r * count() … (r + 1) * count() - 1. sent[all_, parts_] has the number of this rank's
    //   rows for each expert and part. Send the from_each numbers for the experts of rank r to rank r, and receive
    //   from_each numbers from it into received + r * from_each. Use ncclSend() and ncclRecv() of ints (ncclInt) over
    //   group_.comm(), in one group, on `stream`. This rank sends to itself, too.
    NCCL_CHECK(ncclGroupStart());
    for (int rank = 0; rank < group_.size(); ++rank) {
      NCCL_CHECK(ncclSend(sent + rank * from_each, from_each, ncclInt, rank, group_.comm(), stream));
      NCCL_CHECK(ncclRecv(received + rank * from_each, from_each, ncclInt, rank, group_.comm(), stream));
    }
    NCCL_CHECK(ncclGroupEnd());
    // END TODO 09.12
    // END WRITE 09.I
    probe("09.12", {name(), ": rows from each rank for each expert"}, received, {all}, stream);
    int *host_starts = host_starts_.data(), *host_counts = host_counts_.data();
    const std::size_t bytes = (all_ * samples + 1) * sizeof(int);
    CUDA_CHECK(cudaMemcpyAsync(host_starts, starts, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(host_counts, received, all * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    numbers.assign(host_counts, host_counts + all);
    for (int e = 0; e < all_; ++e) {
      for (int part = 0; part < parts_; ++part) numbers.push_back(host_starts[e * samples + samples * part / parts_]);
    }
    numbers.push_back(host_starts[all_ * samples]);
  }
  // The same numbers with fixed counts: nothing is sent, and the host does not wait.
  void fix_counts(std::vector<int>& numbers) const {
    const int places = places_of_sample();
    const auto first_sample = [&](int part) { return max_samples_ * part / parts_; };
    numbers.clear();
    for (int i = 0; i < all_ * parts_; ++i) {
      numbers.push_back((first_sample(i % parts_ + 1) - first_sample(i % parts_)) * places);
    }
    for (int i = 0; i < all_ * parts_; ++i) {
      numbers.push_back(i / parts_ * rows_of_expert() + first_sample(i % parts_) * places);
    }
    numbers.push_back(all_ * rows_of_expert());
  }

  // Decides where the received rows go: begin_[parts_, count(), group_.size()] gets the first of the rows that each
  // rank sends for each expert in each part.
  void locate(const std::vector<int>& numbers) {
    int next = 0, i = 0;
    for (int part = 0; part < parts_; ++part) {
      for (int expert = 0; expert < count(); ++expert) {
        for (int rank = 0; rank < group_.size(); ++rank) {
          begin_[i++] = next;
          // TODO 09.13: Set `next` to the first row after those that rank `rank` sends for this expert in this part.
          //   numbers[group_.size(), count(), parts_] says how many rows each rank sends for each expert of this rank
          //   in each part.
          next += numbers[(rank * count() + expert) * parts_ + part];
          // END TODO 09.13
        }
      }
    }
    begin_[i] = next;
    probe("09.13", {name(), ": first rows of what is received"}, begin_);
  }
  int begin_of(int part) const { return begin_[part * count() * group_.size()]; }
  // Returns where the rows of each expert of this rank begin in a part, and where those of the last one end.
  const int* first_rows_of(int part) {
    for (int i = 0; i <= count(); ++i) first_[i] = begin_[(part * count() + i) * group_.size()];
    return first_.data();
  }

  // Sends the rows of a part from the ranks that sorted them to the ranks that hold their experts, or back.
  void exchange(Real* sorted, Real* received, const std::vector<int>& numbers, int part, Direction direction) {
    const ncclComm_t comm = group_.comm();
    const int* first = numbers.data() + all_ * parts_;
    if (direction == Direction::to_experts) {
      probe("09.14", {"given to exchange: part to send, of ", name()}, std::array{part});
    } else {
      probe("09.15", {"given to exchange: part to return, 1 if from room_, of ", name()},
            std::array{part, static_cast<int>(received == room_.data())});
    }
    // WRITE 09.J: Exchange the rows of a part with all ranks of the group, on communication_.
    //   Expert i of rank r has the number r * count() + i. This rank's rows for expert e in this part begin at row
    //   first[e * parts_ + part] of `sorted`, and end before row first[e * parts_ + part + 1]. What rank r sends for
    //   expert i of this rank begins at row begin_[(part * count() + i) * group_.size() + r] of `received`, and has
    //   numbers[(r * count() + i) * parts_ + part] rows. A row has width_ values of type kReal. With
    //   Direction::to_experts, rows of `sorted` are sent and those of `received` arrive; with Direction::back, it is
    //   the other way around. Send one message per expert, so that the rows arrive sorted, and make all calls in one
    //   NCCL group. Leave out empty messages: both sides know which ones are empty.
    NCCL_CHECK(ncclGroupStart());
    for (int rank = 0; rank < group_.size(); ++rank) {
      for (int i = 0; i < count(); ++i) {
        // This rank's rows for expert i of rank `rank`, and the rows of rank `rank` for expert i of this rank.
        const int mine = (rank * count() + i) * parts_ + part, n = (first[mine + 1] - first[mine]) * width_;
        const int theirs = begin_[(part * count() + i) * group_.size() + rank], m = numbers[mine] * width_;
        Real *from_here = sorted + first[mine] * width_, *from_there = received + theirs * width_;
        if (direction == Direction::to_experts) {
          // TODO 09.14: Send this rank's rows for expert i of rank `rank`; receive its rows for this rank's expert i.
          //   from_here has n values to send, from_there has room for m values. Call ncclSend(buffer, count, kReal,
          //   rank, comm, communication_), and ncclRecv() with arguments of the same kind. If n or m is 0, leave that
          //   message out. The other rank knows the number, too, and does the same.
          if (n > 0) NCCL_CHECK(ncclSend(from_here, n, kReal, rank, comm, communication_));
          if (m > 0) NCCL_CHECK(ncclRecv(from_there, m, kReal, rank, comm, communication_));
          // END TODO 09.14
        } else {
          // TODO 09.15: Return the results of the rows from rank `rank`, and receive those of this rank's rows.
          //   Everything travels in the opposite direction from TODO 09.14. Leave out empty messages again.
          if (m > 0) NCCL_CHECK(ncclSend(from_there, m, kReal, rank, comm, communication_));
          if (n > 0) NCCL_CHECK(ncclRecv(from_here, n, kReal, rank, comm, communication_));
          // END TODO 09.15
        }
      }
    }
    NCCL_CHECK(ncclGroupEnd());
    // END WRITE 09.J
    if (direction == Direction::to_experts) {
      probe("09.14", {name(), ": rows that have arrived"}, received + begin_of(part) * width_,
            {begin_of(part + 1) - begin_of(part), width_}, communication_);
    }
  }

  // Makes communication_ wait for the work enqueued on `compute` so far. end_communication() does the reverse.
  void begin_communication(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(begun_, compute));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, begun_));
  }
  void end_communication(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(ended_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute, ended_));
  }

  const Group& group_;
  int parts_;   // of the samples; with two, one part's rows travel while the other's are computed
  bool fixed_;  // the counts are fixed
  int positions_, max_samples_ = 0;
  int received_rows_;         // per sample, at most
  DeviceBuffer<int> counts_;  // sent, received: [all_, parts_] each
  HostBuffer<int> host_starts_, host_counts_;
  std::vector<int> begin_, first_;
  DeviceBuffer<Real> room_;  // [received rows, E]: outputs in the forward pass, gradients in the backward pass
  DeviceBuffer<Real> ones_;
  Event begun_, ended_;
  std::array<Event, 2> arrived_, computed_;
  Stream communication_{"communication", Priority::high};
};

// Returns whether a parameter belongs to an expert.
inline bool is_of_expert(const Parameter& p) { return p.name.find(".experts.") != std::string::npos; }

// Records the parameters of this rank: those of experts as replica groups.replicas.rank(), all others as replica
// `rank`.
inline void record_parameters(const Model& model, const ExpertGroups& groups, int rank, cudaStream_t stream) {
  for (const Parameter& p : model.parameters()) {
    record_whole(is_of_expert(p) ? groups.replicas.rank() : rank, p, p.value, stream);
  }
}

// ---- gradients -----------------------------------------------------------------------------------------------------

// The gradients of a model, in ranges: those of experts, which only the replicas of these experts have, and all others.
struct GradientRanges {
  std::vector<std::span<Real>> of_experts, shared;
};

inline void probe_ranges(const std::string& what, const GradientRanges& ranges, cudaStream_t stream) {
  if (!probing()) return;
  for (const std::span<Real>& range : ranges.shared) {
    probe("09.M", "gradients of shared parameters, " + what, range.data(), {static_cast<int>(range.size())}, stream);
  }
  for (const std::span<Real>& range : ranges.of_experts) {
    probe(what == "averaged" ? "09.17" : "09.M", "gradients of experts, " + what, range.data(),
          {static_cast<int>(range.size())}, stream);
  }
}

inline GradientRanges ranges_of(const Model& model) {
  GradientRanges ranges;
  for (const Parameter& p : model.parameters()) {
    auto& of_kind = is_of_expert(p) ? ranges.of_experts : ranges.shared;
    const std::size_t count = p.count();
    if (!of_kind.empty() && of_kind.back().data() + of_kind.back().size() == p.grad) {
      of_kind.back() = {of_kind.back().data(), of_kind.back().size() + count};
    } else {
      of_kind.push_back({p.grad, count});
    }
  }
  return ranges;
}

// Averages the gradients over the ranks. Each rank has computed the gradients of the mean loss over its own samples.
// Those of an expert are already sums over all ranks of its group, because their rows have come to it.
inline void average_gradients(const GradientRanges& ranges, const Group& world, const ExpertGroups& groups,
                              cudaStream_t stream) {
  probe_ranges("given to average_gradients", ranges, stream);
  // WRITE 09.M: Make all gradients those of the mean loss over the samples of all ranks of the world.
  //   For both kinds of ranges, a range has range.size() gradients of type kReal from range.data() on. All ranks of
  //   `world` have the shared parameters; only those of groups.replicas have the same experts. Each rank has computed
  //   the gradients of the mean loss over its own samples, and all ranks have the same number of samples. A rank's
  //   gradients of an expert are already sums over the ranks of groups.experts. Work in place, with one NCCL call per
  //   range. The kernel scale_by(y, factor, n) multiplies.
  for (const std::span<Real>& range : ranges.shared) {
    NCCL_CHECK(ncclAllReduce(range.data(), range.data(), range.size(), kReal, ncclAvg, world.comm(), stream));
  }
  for (const std::span<Real>& range : ranges.of_experts) {
    const int count = static_cast<int>(range.size());
    // TODO 09.17: Make these gradients those of the mean loss over the samples of all ranks of the world.
    //   Only the ranks of groups.replicas have the same experts. Their gradients are already sums over the ranks of
    //   groups.experts, all of which sent rows. By what number must they be divided in total? Reduce them in place, as
    //   above, and scale them by calling launch(scale_by, count, stream, range.data(), factor, count).
    NCCL_CHECK(ncclAllReduce(range.data(), range.data(), count, kReal, ncclAvg, groups.replicas.comm(), stream));
    launch(scale_by, count, stream, range.data(), 1.0f / static_cast<float>(groups.experts.size()), count);
    // END TODO 09.17
  }
  // END WRITE 09.M
  probe_ranges("averaged", ranges, stream);
}

// Returns the ranges for the norm of the gradient, which is computed over `experts`, ranks that together hold all
// experts.
inline GradientParts parts_of(const GradientRanges& ranges, const Group& experts) {
  GradientParts parts;
  parts.held = ranges.shared;
  parts.held.insert(parts.held.end(), ranges.of_experts.begin(), ranges.of_experts.end());
  // TODO 09.18: Set parts.counted to the ranges whose squares this rank adds up: each gradient must count once.
  //   The sum is over the ranks of `experts`. They all have ranges.shared; each has experts of its own,
  //   ranges.of_experts. parts.held has both.
  parts.counted = experts.rank() == 0 ? parts.held : ranges.of_experts;
  // END TODO 09.18
  return parts;
}

}  // namespace workshop
