// SPDX-License-Identifier: Apache-2.0
#include "common/training/training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "common/base/format.h"
#include "common/base/stop_signal.h"
#include "common/checkpoint/checkpoints.h"
#include "common/data/training_data.h"
#include "common/training/progress_line.h"
#include "common/training/stop_together.h"
#include "common/training/throughput.h"

namespace workshop {

namespace {

// Runs with fewer steps report no speed: it would mean nothing, and measuring the peak would take longer than the run.
constexpr int kStepsForSpeed = 10;

// Returns ", perplexity X" if the loss is that of a text, else "".
std::string perplexity(double loss, bool of_text) {
  return of_text ? formatted(", perplexity %.2f", std::exp(loss)) : "";
}

std::vector<int> numbers(int first, int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::function<void(float*)> sum_over(const Group& ranks, cudaStream_t stream) {
  return [&ranks, stream](float* loss) {
    if (ranks.size() == 1) return;
    NCCL_CHECK(ncclAllReduce(loss, loss, 1, ncclFloat, ncclSum, ranks.comm(), stream));
  };
}

}  // namespace

struct Training::State {
  State(const Options& options, const Job& job, ReplicaPlace place, const DataSource& source, cudaStream_t stream)
      : options(options),
        place(place),
        comm(job.comm()),
        stream(stream),
        text(source.text),
        images(source.images != nullptr),
        operations(source.operations),
        best_test_loss(source.best_test_loss),
        data(load_training_data(options, source, stream)),
        random(data.trained_on, options.shuffle, data.generator, data.draws),
        distributed(distributed_sampler(options, data, place.replicas, place.replica)),
        losses(options, data.samples, place.reports ? place.replica : -1, place.replicas, stream),
        checkpoints(options, data.samples, place.replicas, job.comm(), stream) {
    if (!options.checkpoints.empty()) stop_together = std::make_unique<StopTogether>(job.group());
  }

  std::int64_t steps() const { return count_steps(options, data.trained_on, place.replicas); }
  // The units per step include all batches of all replicas.
  Work work() const {
    const double samples = 1.0 * options.batch_size * options.accumulation_steps * place.replicas;
    if (text != nullptr) return {steps(), samples * options.gpt.context, "tokens"};
    return {steps(), samples, images ? "images" : "samples"};
  }

  // Returns batch i of the epoch, its samples numbered within the step.
  Batch batch(int i) {
    Batch batch = loader.batch(i);
    batch.step = step;
    batch.samples_of_step = loader.samples(first, last);
    batch.stride = place.replicas;  // DistributedSampler deals out the samples round-robin
    batch.number = (i - first) * options.batch_size * place.replicas + place.replica;
    return batch;
  }

  const Options& options;
  ReplicaPlace place;
  ncclComm_t comm;
  cudaStream_t stream;
  std::shared_ptr<const TokenDataset> text;
  bool images;
  double operations, best_test_loss;
  TrainingData data;
  Loader& loader = *data.loader;
  RandomSampler random;
  DistributedSampler distributed;
  LossLog losses;
  std::unique_ptr<ProgressLine> progress;
  Checkpoints checkpoints;
  std::vector<int*> counts;  // the optimizers' step counts
  std::vector<std::function<void()>> loaded;
  double best_loss = std::numeric_limits<double>::max();
  std::unique_ptr<StopTogether> stop_together;  // null without --checkpoints: stopping early would lose the work
  int stop_signal = 0;                          // the one that has ended the training; 0: none
  bool resumed = false, in_epoch = false, in_step = false, over = false;
  Progress start;
  int epoch = -1, step = -1, first = 0, last = 0;  // the step's batches are [first, last)
  int next = 0;                                    // next batch of the step
  float* loss = nullptr;
};

Training::Training(const Options& options, const Job& job, ReplicaPlace place, const DataSource& data,
                   cudaStream_t stream)
    : state_(std::make_unique<State>(options, job, place, data, stream)) {
  if (options.sampling() == Sampling::data_loader) state_->checkpoints.add(state_->random);
  if (options.validates() || state_->data.held_out > 0)
    state_->checkpoints.add("best validation loss", state_->best_loss);
  state_->progress = ProgressLine::make(state_->work());
}

Training::~Training() = default;

Batch Training::batch() { return state_->batch(state_->first); }
int Training::samples() const { return state_->loader.samples(state_->first, state_->last); }
float* Training::loss() const { return state_->loss; }
LossLog& Training::losses() { return state_->losses; }
ncclComm_t Training::comm() const { return state_->comm; }
int Training::evaluated() const {
  if (state_->stop_signal != 0) return 0;
  return state_->over ? state_->data.tested : state_->data.held_out;
}
int Training::first_evaluated() const { return state_->data.trained_on + (state_->over ? state_->data.held_out : 0); }

// A linear warm-up, then half a cosine from 1 down to 0.1 at the last step (Loshchilov and Hutter, 2017).
double Training::lr_factor() const {
  state_->checkpoints.before_update();
  const StepOptions& options = state_->options.step_size;
  const int t = state_->step, warmup = options.warmup_steps;
  if (t < warmup) return (t + 1.0) / warmup;
  if (options.lr_schedule == "constant") return 1;
  const double done = static_cast<double>(t - warmup) / std::max<std::int64_t>(1, state_->steps() - 1 - warmup);
  return 0.1 + 0.45 * (1 + std::cos(std::numbers::pi * done));
}

bool Training::next_batch(MicroBatch& batch) {
  State& state = *state_;
  if (state.next == state.last) return false;
  batch = {state.batch(state.next), state.next == state.first, state.next + 1 == state.last};
  ++state.next;
  return true;
}

void Training::add(const std::vector<TensorPart>& parts) { state_->checkpoints.add(parts); }

void Training::add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
  state_->checkpoints.add_adamw(parts, values, state.first_moment, state.second_moment);
  add(state.steps);
  if (state.loaded) state_->loaded.push_back(state.loaded);
}

void Training::add(int* steps) { state_->counts.push_back(steps); }

void Training::resume() {
  state_->start = state_->checkpoints.resume(state_->losses);
  for (int* steps : state_->counts) *steps = state_->start.step;
  state_->epoch = state_->start.epoch - 1;
  state_->step = state_->start.step - 1;
  state_->resumed = true;
  if (state_->options.resume.empty()) return;
  for (const auto& loaded : state_->loaded) loaded();
}

Batch Training::first_samples() {
  if (!state_->resumed) resume();
  state_->loader.start_epoch(numbers(0, state_->data.trained_on));
  return state_->loader.batch(0);
}

bool Training::next_epoch() {
  if (!state_->resumed) resume();
  end_epoch();
  ++state_->epoch;
  if (state_->losses.finished() || state_->epoch >= state_->options.epochs || state_->stop_signal != 0) {
    state_->checkpoints.finish();
    if (!state_->over) state_->stop_signal != 0 ? report_stop() : report_throughput();
    state_->over = true;
    return false;
  }
  state_->distributed.set_epoch(state_->epoch);  // otherwise every epoch would have the same order
  const bool distributed = state_->options.sampling() == Sampling::distributed;
  state_->loader.start_epoch(distributed ? state_->distributed.indices() : state_->random.next_epoch());
  state_->last = state_->start.first_batch(state_->epoch);
  if (state_->options.verbose) report_epoch();
  return state_->in_epoch = true;
}

void Training::report_epoch() {
  const int accumulated = state_->options.accumulation_steps;
  std::printf("rank %d: epoch %3d  batch size %d  steps %d\n", process_ranks().rank, state_->epoch,
              state_->options.batch_size, (state_->loader.steps() - state_->last + accumulated - 1) / accumulated);
  std::fflush(stdout);
}

bool Training::next_step() {
  if (state_->in_step) state_->checkpoints.step_done(state_->epoch, state_->last, state_->loader);
  state_->in_step = state_->last < state_->loader.steps() && !state_->losses.finished();
  if (!state_->in_step) return false;
  if (state_->stop_together != nullptr) state_->stop_signal = state_->stop_together->next_step();
  if (state_->stop_signal != 0) return state_->in_step = false;
  if (state_->progress != nullptr)
    state_->progress->begin_step(state_->step + 1, state_->loss, state_->losses.last(), state_->stream);
  state_->loss = state_->losses.next(state_->stream);
  ++state_->step;
  state_->first = state_->next = state_->last;
  state_->last = std::min(state_->first + state_->options.accumulation_steps, state_->loader.steps());
  return true;
}

void Training::report_stop() const {
  const std::string& folder = state_->options.checkpoints;
  print0("Stopped after step %d because of %s; the same command with --resume %s goes on from there\n",
         state_->step + 1, stop_signal_name(state_->stop_signal), folder.c_str());
  set_end_status(kSaved);
}

void Training::report_throughput() {
  State& state = *state_;
  const double seconds = state.losses.seconds_per_step();
  if (!(state.text != nullptr || state.images) || !(seconds > 0)) return;
  const double units = state.work().units_per_step;
  if (state.images) {
    const double waited = state.loader.seconds_waited();
    print0("%.1f images/s; in all, the device has waited %.3f s for them\n", units / seconds, waited);
    record_value("seconds that the device has waited for data", waited);
    return;
  }
  if (state.step - state.start.step < kStepsForSpeed) return;
  const double given = state.options.gpt.peak_tflops;
  const double peak = given > 0 ? given * 1e12 : measured_peak(state.options.is_mixed_precision());
  print_throughput(units / seconds, state.operations, process_ranks().world, peak);
}

void Training::end_epoch() {
  if (state_->progress != nullptr) state_->progress->clear();
  state_->loss = nullptr;
  if (state_->in_epoch) state_->losses.end_epoch(state_->epoch, state_->stream);
  state_->in_epoch = false;
}

void Training::evaluate(const std::vector<int>& samples, const AddLoss& add_loss,
                        const std::function<void(float*)>& sum) {
  State& state = *state_;
  end_epoch();  // prints the epoch's losses first
  if (state.stop_signal != 0) return;
  const std::string of = state.over ? "test" : "validation", name = of + " loss";
  const Range range(name, state.stream);
  const bool classifies = state.images;
  const DeviceBuffer<float> results(classifies ? 2 : 1, Memory::data);  // the loss, the share of correct answers
  float* correct = classifies ? results.data() + 1 : nullptr;
  CUDA_CHECK(cudaMemsetAsync(results.data(), 0, results.bytes(), state.stream));
  std::vector<int> places = samples;
  if (state.text != nullptr) {
    std::ranges::transform(places, places.begin(), [&](int i) { return state.text->place(i); });
  }
  state.loader.start_epoch(places);
  // Every replica makes the same number of batches, because a model sharded over the replicas is gathered in each
  // batch. The last ones may be empty.
  const int most = (evaluated() + state.place.replicas - 1) / state.place.replicas;
  const int batches = (most + state.options.batch_size - 1) / state.options.batch_size;
  for (int i = 0; i < std::max(batches, state.loader.steps()); ++i) {
    Batch batch = i < state.loader.steps() ? state.loader.batch(i) : Batch{};
    batch.correct = correct;
    add_loss(batch, results.data());
  }
  sum(results.data());
  if (classifies) sum(correct);
  const std::vector<float> host_results = results.download(state.stream);
  const double loss = host_results[0];

  const bool better = !state.over && loss < state.best_loss;
  if (better) state.best_loss = loss;
  const std::string epoch = state.over ? "" : formatted("epoch %3d  ", state.epoch);
  const std::string also =
      classifies ? formatted(", accuracy %.2f %%", 100 * host_results[1]) : perplexity(loss, state.text != nullptr);
  print0("%s%s %.6f%s%s\n", epoch.c_str(), name.c_str(), loss, also.c_str(), better ? ", the best so far" : "");
  if (state.over && state.best_test_loss > 0) {
    print0("the best possible perplexity is %.2f\n", std::exp(state.best_test_loss));
  }
  const std::string when = state.over ? "" : " of epoch " + std::to_string(state.epoch);
  if (process_ranks().rank == 0) {
    record_value(name + when, loss);
    if (classifies) record_value(of + " accuracy" + when, host_results[1]);
  }
  if (better) state.checkpoints.save("best-");
}

void Training::evaluate(const AddLoss& add_loss, const Group& ranks) {
  if (evaluated() > 0) evaluate(numbers(first_evaluated(), evaluated()), add_loss, sum_over(ranks, state_->stream));
}

}  // namespace workshop
