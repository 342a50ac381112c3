// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts (Shazeer et al., 2017): it scores all experts for each token, and the K best ones
// process the token. Forward and backward are written by hand and compute the same as the PyTorch model of this
// chapter's reference.md.
//
//   scores = softmax(x Wᵀ)                     [tokens, J], J experts
//   chosen = the K largest scores              [tokens, K]; on a tie, the lower number wins
//   weights = their scores / their sum         [tokens, K]
//
// With --capacity-factor, each sequence has a limited number of places at each expert, taken in the order of positions.
// A token that finds no place gets nothing from that expert. Places are counted per sequence. The auxiliary loss, which
// balances the load of the experts (--aux-loss), is computed per sequence, too. So no result depends on how the
// sequences of a batch are distributed over the ranks.
#pragma once

#include <array>
#include <cmath>
#include <string>

#include "common/device/device.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/model.h"
#include "model/rows.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Turns logits[tokens, experts] into scores, in place, and chooses the K best experts of each token: chosen[tokens, K],
// the best one first, and weights[tokens, K]. The threads of a warp, its lanes, share a token (model/rows.h).
static __global__ void choose_experts(float* logits, int* chosen, float* weights, int tokens, int experts, int K) {
  for (int token : warp_stride(tokens)) {
    float* scores = logits + token * experts;
    int* expert_of = chosen + token * K;
    float* weight_of = weights + token * K;
    const float largest = max_of(experts, scores);
    for (int e : lanes(experts)) scores[e] = expf(scores[e] - largest);
    const float sum = sum_of(experts, [=](int e) { return scores[e]; });
    for (int e : lanes(experts)) scores[e] /= sum;
    sync_lanes();
    float best = INFINITY;  // the score that was chosen last, and its expert
    int last = -1;
    for (int k = 0; k < K; ++k) {
      // TODO 09.1: Choose the best expert that has not been chosen yet: its number into `last`, its score into `best`.
      //   Imagine all experts sorted by descending score and, on a tie, by ascending number: the experts chosen so far
      //   are the first ones. So e is still available if scores[e] < best, or if scores[e] == best and e > last.
      //   max_of(experts, f) is the largest f(e), and first_of(experts, f) the first e for which f(e) is true; f(e) =
      //   -INFINITY leaves e out. All lanes call them.
      todo("09.1");
      // END TODO 09.1
      if (last < 0 || last >= experts) last = k;  // the scores are NaN
      for ([[maybe_unused]] int first_lane : lanes(1)) {
        expert_of[k] = last;
        weight_of[k] = best;
      }
    }
    sync_lanes();
    // TODO 09.2: Divide the weights by their sum.
    //   weight_of[k] is the score of the expert that was chosen k-th. After this, the K weights of a token add up to 1.
    //   sum_of(K, f) adds up f(k); all lanes call it, and together they read all K weights. Each lane writes its own
    //   weights, in a loop `for (int k : lanes(K))`. No lane may write while another one may still read the weights for
    //   the sum: sync_lanes() returns when all lanes have called it. The name `sum` is taken.
    todo("09.2");
    // END TODO 09.2
  }
}

// Numbers the choices of each expert in each sequence from 0, in the order of positions. Writes the number to
// places[tokens, K], or -1 if it is not less than places_of_expert. Writes to counts[sequences, experts] how many
// tokens of each sequence have chosen each expert, with or without a place. Each warp handles one pair of a sequence
// and an expert.
static __global__ void take_places(int* places, int* counts, const int* chosen, int sequences, int positions,
                                   int experts, int K, int places_of_expert) {
  for (int pair : warp_stride(sequences * experts)) {
    const int expert = pair % experts, choices = positions * K, first = pair / experts * choices;
    // TODO 09.3: Number the choices of this expert among chosen[first] … chosen[first + choices - 1], and count them.
    //   Position t has the choices t·K … t·K + K - 1, so these are in the order of positions. For each i in [0,
    //   choices) for which f(i) is true, number(choices, f, g) calls g(i, k), where k = 0, 1, 2, … numbers these i.
    //   number() returns how many there are. Write places[] of the choices of this expert, and counts[pair], which
    //   includes those that find no place.
    todo("09.3");
    // END TODO 09.3
  }
}

// Computes balance[sequences, experts], the f·g of each expert in each sequence. With J experts and T positions, f is
// J/(K·T) times the number of tokens that chose the expert, and g is its mean score. Each warp handles one pair of a
// sequence and an expert.
static __global__ void balance_of_experts(float* balance, const float* scores, const int* counts, int sequences,
                                          int positions, int experts, int K) {
  for (int pair : warp_stride(sequences * experts)) {
    const int expert = pair % experts;
    const float* score = scores + pair / experts * positions * experts + expert;
    const float mean = sum_of(positions, [=](int t) { return score[t * experts]; }) / positions;
    balance[pair] = static_cast<float>(experts) * counts[pair] / (K * positions) * mean;
  }
}

// Adds counts[sequences, experts] of all sequences to loads[experts].
static __global__ void add_loads(int* loads, const int* counts, int sequences, int experts) {
  for (int e : grid_stride(experts)) {
    for (int s = 0; s < sequences; ++s) loads[e] += counts[s * experts + e];
  }
}

// Computes dlogits[tokens, experts] from dweights[tokens, K], the gradients of the weights. Adds the gradient of the
// auxiliary loss: `balance_factor` times that of Σ f·g over the experts, for the token's sequence. The lanes of a warp
// share a token.
static __global__ void choose_experts_backward(Reals dlogits, const float* dweights, const float* scores,
                                               const float* weights, const int* chosen, const int* counts, int tokens,
                                               int positions, int experts, int K, float balance_factor) {
  for (int token : warp_stride(tokens)) {
    const float *score = scores + token * experts, *weight_of = weights + token * K, *dweight = dweights + token * K;
    const int *expert_of = chosen + token * K, *count = counts + token / positions * experts;
    float inner = 0, sum = 1;
    // TODO 09.10: Compute `inner` = Σₖ weightₖ·dweightₖ and `sum`, the sum of the chosen scores.
    //   A weight is scoreₖ / sum, so the gradient of a chosen score is (dweightₖ - inner) / sum; dscore() below adds
    //   it up. sum_of(K, f) adds up f(k); expert_of[k] is the expert that was chosen k-th.
    todo("09.10");
    // END TODO 09.10
    const auto dscore = [=](int e) {
      float gradient = 0;
      for (int k = 0; k < K; ++k) {
        if (expert_of[k] == e) gradient += (dweight[k] - inner) / sum;
      }
      if (balance_factor == 0) return gradient;
      // TODO 09.11: Add the gradient of the auxiliary loss with respect to the score of expert e.
      //   The loss is balance_factor·Σₑ f·g, with g the mean score of e over the sequence's `positions` tokens, and f =
      //   experts / (K·positions) times count[e]. The counts depend on the scores only where a choice changes, so treat
      //   f as a constant.
      todo("09.11");
      // END TODO 09.11
      return gradient;
    };
    // Back through the softmax.
    const float dot = sum_of(experts, [=](int e) { return score[e] * dscore(e); });
    for (int e : lanes(experts)) dlogits[token * experts + e] = score[e] * (dscore(e) - dot);
  }
}

// ---- the router ----------------------------------------------------------------------------------------------------

// What the router keeps for the backward pass about `tokens` tokens, on the device.
struct Routing {
  float* scores;   // [tokens, experts]
  float* weights;  // [tokens, K]
  int* chosen;     // [tokens, K]: experts, the best one first
  int* places;     // [tokens, K]: see take_places()
  int* counts;     // [sequences, experts]: tokens that have chosen the expert
  int* rows;       // [sequences, experts]: how many of those may get a row; first_rows() caps it at the places
};

// Chooses the experts of each token. ContextRouter (support/context_router.h) derives from it, for sequences that are
// split across ranks (chapter 08).
class Router {
 public:
  Router(const GptOptions& options, int positions)
      : positions_(positions),
        width_(options.width),
        experts_(options.experts),
        K_(options.top_k),
        aux_loss_(options.aux_loss),
        places_(positions) {
    if (options.capacity_factor > 0) {
      const double places = std::ceil(options.capacity_factor * K_ * positions / experts_);
      if (places < positions) places_ = static_cast<int>(places);
    }
  }
  virtual ~Router() = default;
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  int experts() const { return experts_; }
  int choices() const { return K_; }      // experts per token, K
  int places() const { return places_; }  // of a sequence at each expert
  std::vector<int> weight() const { return {experts_, width_}; }

  void bind(const std::string& name, const Parameter& weight) {
    name_ = name;
    weight_ = weight.value;
    weight_grad_ = weight.grad;
  }
  // Returns whether Routing::rows has its own memory, instead of being the same as Routing::counts.
  virtual bool has_own_rows() const { return false; }
  virtual void allocate(int max_sequences) {
    const int tokens = max_sequences * positions_;
    dlogits_ = DeviceBuffer<Real>(tokens * experts_, Memory::activations);
    balance_ = DeviceBuffer<float>(max_sequences * experts_, Memory::activations);
  }

  // Computes `kept` for the tokens x[sequences·count, E], at `count` positions from `first` on. If these are not all
  // positions, `sequences` must be 1, and `kept` must already hold the values of the earlier positions.
  void forward(const Blas& blas, const Real* x, const Routing& kept, int sequences, int first, int count) const {
    const cudaStream_t stream = blas.stream();
    const int tokens = sequences * count;
    probe("09.E", {"given to router_.forward: x of ", name_}, x, {tokens, width_}, stream);
    float *scores = kept.scores + first * experts_, *weights = kept.weights + first * K_;
    int *chosen = kept.chosen + first * K_, *places = kept.places + first * K_;
    // The scores are float32 in both precisions: if they were rounded, too many would be equal.
    add_batched_gemm(blas, Op::as_is, Op::transposed, tokens, experts_, width_, {const_cast<Real*>(x), width_, 0},
                     {weight_, width_, 0}, 0, {scores, experts_, 0}, 1);
    launch(choose_experts, tokens * experts_, stream, scores, chosen, weights, tokens, experts_, K_);
    probe("09.A", {name_, ": scores"}, scores, {tokens, experts_}, stream);
    probe("09.1", {name_, ": chosen experts"}, chosen, {tokens, K_}, stream);
    probe("09.2", {name_, ": weights"}, weights, {tokens, K_}, stream);
    number_choices(kept, sequences, first + count, stream);
    probe("09.3", {name_, ": places"}, places, {tokens, K_}, stream);
    probe("09.3", {name_, ": tokens of each expert"}, kept.counts, {sequences, experts_}, stream);
  }

  // Computes the gradient of the router's weight matrix, and adds the gradient of x to dx[tokens, E]. dweights[tokens,
  // K]: the gradients of the mixing weights, Routing::weights.
  void backward(const Real* x, const float* dweights, const Routing& kept, Real* dx, const Batch& batch,
                const Gradients& g) const {
    const cudaStream_t stream = g.blas.stream();
    const int tokens = g.samples * positions_;
    probe("09.8", {name_, ": gradients of the weights"}, dweights, {tokens, K_}, stream);
    probe("09.9", {name_, ": gradient of x through the experts"}, dx, {tokens, width_}, stream);
    const float factor =
        aux_loss_ > 0 ? static_cast<float>(aux_loss_ * share() * share() * ranks_of_sequence()) / batch.samples_of_step
                      : 0.0f;
    launch(choose_experts_backward, tokens * experts_, stream, dlogits_.data(), dweights, kept.scores, kept.weights,
           kept.chosen, kept.counts, tokens, positions_, experts_, K_, factor);
    if (factor == 0) {  // without the auxiliary loss, the result of TODO 09.10
      probe("09.10", {name_, ": gradient of the logits"}, dlogits_.data(), {tokens, experts_}, stream);
    } else {
      probe("09.11", {name_, ": gradient of the logits"}, dlogits_.data(), {tokens, experts_}, stream);
    }
    gemm(g.blas, Op::transposed, Op::as_is, experts_, width_, tokens, dlogits_.data(), x, g.accumulate, weight_grad_);
    gemm(g.blas, Op::as_is, Op::as_is, tokens, width_, experts_, dlogits_.data(), weight_, 1, dx);
    if (batch.auxiliary == nullptr) return;
    const int pairs = g.samples * experts_;
    launch(balance_of_experts, pairs * kWarp, stream, balance_.data(), kept.scores, kept.counts, g.samples, positions_,
           experts_, K_);
    const double of_step = share() * share() / batch.samples_of_step;
    launch(add_sum, 1, stream, batch.auxiliary, balance_.data(), static_cast<float>(of_step), pairs);
  }

 protected:
  // Computes kept.places and kept.counts from kept.chosen, and kept.rows if has_own_rows(). A sequence has `positions`
  // positions.
  virtual void number_choices(const Routing& kept, int sequences, int positions, cudaStream_t stream) const {
    launch(take_places, sequences * experts_ * kWarp, stream, kept.places, kept.counts, kept.chosen, sequences,
           positions, experts_, K_, places_);
  }
  // Returns which fraction of a whole sequence the positions_ positions are.
  virtual double share() const { return 1; }
  // Returns how many ranks have parts of the same sequences. The gradients will be averaged over these ranks, too.
  virtual int ranks_of_sequence() const { return 1; }

  int positions_, width_, experts_, K_;
  double aux_loss_;
  int places_;
  std::string name_;
  Real *weight_ = nullptr, *weight_grad_ = nullptr;  // [experts, E]
  DeviceBuffer<Real> dlogits_;
  DeviceBuffer<float> balance_;
};

}  // namespace workshop
