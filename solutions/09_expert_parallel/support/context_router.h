// SPDX-License-Identifier: Apache-2.0
// The router for sequences that are split across ranks (chapter 08). Places and the auxiliary loss depend on all tokens
// of a sequence, including those on other ranks. So the ranks exchange how many of their tokens have chosen each
// expert.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "08_context_parallel/sequence.h"
#include "09_expert_parallel/moe.h"
#include "common/nccl/group.h"

namespace workshop {

// A run is a range of consecutive positions that a rank holds. A piece is one run of one sequence, so a rank has
// sequences·runs pieces. From counts[ranks, pieces, experts], computes totals[pieces, experts], how many tokens of the
// piece's whole sequence have chosen each expert, and rows[pieces, experts], how many of the tokens in this rank's
// piece find a place there. Run i of rank r begins at position firsts[r·runs + i].
static __global__ void total_counts(int* totals, int* rows, const int* counts, const int* firsts, int rank, int ranks,
                                    int runs, int pieces, int experts, int places) {
  for (int i : grid_stride(pieces * experts)) {
    const int run = i / experts % runs, sequence = i / experts / runs, expert = i % experts;
    int total = 0, before = 0;
    for (int r = 0; r < ranks; ++r) {
      for (int j = 0; j < runs; ++j) {
        const int count = counts[((r * pieces) + sequence * runs + j) * experts + expert];
        total += count;
        if (firsts[r * runs + j] < firsts[rank * runs + run]) before += count;
      }
    }
    const int mine = counts[rank * pieces * experts + i], left = places > before ? places - before : 0;
    totals[i] = total;
    rows[i] = mine < left ? mine : left;
  }
}

// Sets places[] to -1 for choices that find no place: a piece has only rows[pieces, experts] places at an expert.
static __global__ void limit_places(int* places, const int* chosen, const int* rows, int choices, int choices_of_piece,
                                    int experts) {
  for (int i : grid_stride(choices)) {
    if (places[i] >= rows[i / choices_of_piece * experts + chosen[i]]) places[i] = -1;
  }
}

// Treats each run of a rank's positions (model/positions.h) as a sequence, and so does its mixture.
class ContextRouter : public Router {
 public:
  ContextRouter(const GptOptions& options, const SequenceCut& cut, const Group& context)
      : Router(options, run_of(cut)),
        cut_(cut),
        context_(context),
        runs_(cut.of(0).count / run_of(cut)),
        limit_(Router(options, cut.whole).places()) {
    places_ = positions_;
  }

  static int run_of(const SequenceCut& cut) { return cut.of(0).run; }
  int runs() const { return runs_; }

  bool has_own_rows() const override { return true; }
  void allocate(int max_sequences) override {
    Router::allocate(max_sequences);
    mine_ = DeviceBuffer<int>(max_sequences * experts_, Memory::activations);
    all_ = DeviceBuffer<int>(context_.size() * max_sequences * experts_, Memory::buckets);
    std::vector<int> firsts;
    for (int rank = 0; rank < context_.size(); ++rank) {
      const Positions at = cut_.of(rank);
      for (int run = 0; run < runs_; ++run) firsts.push_back(at[run * positions_]);
    }
    firsts_ = DeviceBuffer<int>(firsts.size(), Memory::data);
    CUDA_CHECK(cudaMemcpy(firsts_.data(), firsts.data(), firsts_.bytes(), cudaMemcpyHostToDevice));
  }

 protected:
  void number_choices(const Routing& kept, int pieces, int positions, cudaStream_t stream) const override {
    const int count = pieces * experts_, choices = pieces * positions * K_;
    launch(take_places, count * kWarp, stream, kept.places, mine_.data(), kept.chosen, pieces, positions, experts_, K_,
           positions);
    NCCL_CHECK(ncclAllGather(mine_.data(), all_.data(), count, ncclInt, context_.comm(), stream));
    launch(total_counts, count, stream, kept.counts, kept.rows, all_.data(), firsts_.data(), context_.rank(),
           context_.size(), runs_, pieces, experts_, limit_);
    launch(limit_places, choices, stream, kept.places, kept.chosen, kept.rows, choices, positions * K_, experts_);
  }
  double share() const override { return static_cast<double>(positions_) / cut_.whole; }
  int ranks_of_sequence() const override { return context_.size(); }

 private:
  SequenceCut cut_;
  const Group& context_;
  int runs_, limit_;
  DeviceBuffer<int> mine_, all_, firsts_;
};

// A mixture for which each run of a rank's positions is a sequence.
class MixtureOfRuns : public FeedForward {
 public:
  // `mixture` is for the positions of a run.
  MixtureOfRuns(const Positions& mine, int width, std::shared_ptr<Mixture> mixture)
      : FeedForward(mine.count, width), mixture_(std::move(mixture)), runs_(mine.count / mine.run), run_(mine.run) {}

  std::vector<Parameter> parameters(const std::string& block) const override { return mixture_->parameters(block); }
  void draw(Generator& generator, float* values) const override { mixture_->draw(generator, values); }
  void bind(const std::string& block, const Parameter* p) override { mixture_->bind(block, p); }
  std::vector<int> saved() const override {
    std::vector<int> sizes = mixture_->saved();
    for (int& size : sizes) size *= runs_;
    return sizes;
  }
  int scratch() const override { return runs_ * mixture_->scratch(); }
  int deferred() const override { return mixture_->deferred(); }
  void allocate(int max_samples, cudaStream_t stream) override { mixture_->allocate(runs_ * max_samples, stream); }
  void forward(const Blas& blas, const Real* x, Real* y, Saved& saved, int samples, int, int,
               const Dropout& dropout) override {
    mixture_->forward(blas, x, y, saved, runs_ * samples, 0, run_, dropout);
  }
  void backward(const Real* x, const Real* dy, Real* dx, Real* scratch, const Saved& saved, const Gradients& g,
                const Dropout& dropout) override {
    Gradients of_runs = g;
    of_runs.samples *= runs_;
    mixture_->backward(x, dy, dx, scratch, saved, of_runs, dropout);
  }

 private:
  std::shared_ptr<Mixture> mixture_;
  int runs_, run_;
};

}  // namespace workshop
