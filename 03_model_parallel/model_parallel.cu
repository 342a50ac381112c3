// Model parallelism: every rank holds some of the layers. A batch passes through the ranks one after the other, its
// gradients come back the same way, and while one rank computes the others wait. It buys memory, not time.
#include <optional>

#include "01_single_gpu/checkpoint_mlp.h"
#include "01_single_gpu/mlp.h"
#include "common/data.h"
#include "common/job.h"
#include "partition.h"

using namespace workshop;

namespace {

// Measures how much of its time a rank computes. Events mark the times on the stream and are read at the end of the
// epoch, so that no step waits for the clock. In the timeline the rest of the time is a span called "idle".
class IdleClock {
 public:
  explicit IdleClock(cudaStream_t stream) : stream_(stream) {}

  // Begins a step. The first steps of a run do not count: in them NCCL connects the ranks.
  void next_step() {
    if (used_ == 0 || steps_ == kProbedSteps) {
      used_ = 0;
      mark();
      idle_.emplace("idle", stream_);
    }
    ++steps_;
  }

  // Counts what `enqueue` puts on the stream as computing.
  template <typename Enqueue>
  void compute(Enqueue enqueue) {
    idle_.reset();
    mark();
    enqueue();
    mark();
    idle_.emplace("idle", stream_);
  }

  // Ends the epoch on the stream.
  void stop() {
    idle_.reset();
    mark();
  }

  // Adds the epoch up. The stream must have got to its end.
  void read() {
    total_ += milliseconds(0, used_ - 1);
    for (std::size_t i = 1; i + 1 < used_; i += 2) busy_ += milliseconds(i, i + 1);
    used_ = 0;
  }

  float idle_share() const { return total_ > 0 ? static_cast<float>(1 - busy_ / total_) : 0; }

 private:
  void mark() {
    if (used_ == marks_.size()) marks_.emplace_back(cudaEventDefault);
    CUDA_CHECK(cudaEventRecord(marks_[used_++], stream_));
  }

  double milliseconds(std::size_t from, std::size_t to) const {
    float time = 0;
    CUDA_CHECK(cudaEventElapsedTime(&time, marks_[from], marks_[to]));
    return time;
  }

  cudaStream_t stream_;
  std::vector<Event> marks_;  // begin of the epoch, begin and end of each computation, end of the epoch
  std::size_t used_ = 0;
  int steps_ = 0;
  std::optional<Range> idle_;
  double busy_ = 0, total_ = 0;  // milliseconds
};

// The layers of one rank, with what they need beyond a model on one GPU: room for what arrives and for what goes back.
struct Stage {
  // Layers [first, last) of the network.
  Stage(const Options& options, int first, int last, cudaStream_t stream)
      : in(options.layers[first]),
        out(options.layers[last]),
        model(options.layers, options.activation, options.batch_size, stream, first, last),
        activations(model.make_activations()),
        optimizer(options, model.count(), stream),
        received(first > 0 ? options.batch_size * in : 0, Memory::activations),
        input_gradient(received.size(), Memory::activations),
        clock(stream),
        stream(stream) {
    model.initialize(options.model_seed);
  }

  // The output of these layers, [rows, out], for x[rows, in].
  const float* forward(const float* x, int rows) {
    probe("03.3", "input of the stage", x, {rows, in}, stream);
    const float* output = nullptr;
    clock.compute([&] { output = model.forward(x, rows, activations); });
    return output;
  }

  // Writes the loss to *loss, and its gradient to model.output_gradient().
  void loss(const float* target, int rows, float* loss) {
    clock.compute([&] {
      const Range range("loss", stream);
      model.loss(activations, target, rows * out, loss);
    });
  }

  // The gradients of the parameters from model.output_gradient() and, unless dx is null, that of the input in
  // dx[rows, in].
  void backward(int rows, float* dx) {
    probe("03.4", "gradient of the stage's output", model.output_gradient(), {rows, out}, stream);
    clock.compute([&] { model.backward(activations, /*accumulate=*/false, {}, dx); });
  }

  void update() {
    clock.compute([&] { optimizer.step(model.values(), model.grads()); });
  }

  int in, out;  // widths
  Mlp model;
  Activations activations;
  ParameterUpdate optimizer;
  DeviceBuffer<float> received;        // the input from the rank before, [rows, in]; none on the first rank
  DeviceBuffer<float> input_gradient;  // what goes back to that rank, likewise
  IdleClock clock;
  cudaStream_t stream;
};

// Ends the program unless every rank can have a layer.
void require_layers(const Options& options, int ranks) {
  if (static_cast<int>(options.layers.size()) > ranks) return;
  std::string widths = std::to_string(options.layers.front());
  for (std::size_t i = 1; i < options.layers.size(); ++i) widths.append(",").append(std::to_string(options.layers[i]));
  usage_error("--layers is '" + widths + "', " + std::to_string(options.layers.size() - 1) + " layers for " +
              std::to_string(ranks) + " ranks; expected a layer a rank or more");
}

// Forward: the samples x[rows, stage.in] come in on the first rank, the predictions come out on the last.
void forward(Stage& stage, const float* x, int rows, const Job& job, cudaStream_t stream) {
  const int rank = job.rank(), last = job.world() - 1;
  // TODO 03.3: Receive this rank's input from the rank before, compute, and send the output to the rank after.
  //   Input: stage.received.data(), [rows, stage.in]; the first rank has x instead and receives nothing.
  //   Output: what stage.forward(input, rows) returns, [rows, stage.out]; the last rank keeps it.
  //   ncclRecv(buffer, count, ncclFloat, peer, comm, stream); ncclSend likewise.
  todo("03.3");
  // END TODO 03.3
}

// Backward: the last rank has the gradient of its output from the loss already.
void backward(Stage& stage, int rows, const Job& job, cudaStream_t stream) {
  const int rank = job.rank(), last = job.world() - 1;
  // TODO 03.4: Receive the gradient of this rank's output, compute, and send the gradient of its input.
  //   From whom, and to whom? Gradient of the output: stage.model.output_gradient(), [rows, stage.out].
  //   stage.backward(rows, dx) writes that of the input to dx: stage.input_gradient.data(), [rows, stage.in]. Nobody
  //   needs it below the first rank, which passes nullptr.
  todo("03.4");
  // END TODO 03.4
}

// The last rank has the losses, rank 0 prints them. Once an epoch is enough.
void send_losses(const LossLog& losses, const Job& job, cudaStream_t stream) {
  const int rank = job.rank(), last = job.world() - 1;
  if (last == 0) return;
  // TODO 03.5: Send losses.losses(), losses.count() floats, from the last rank to rank 0, into the same place there.
  todo("03.5");
  // END TODO 03.5
  if (rank == 0) probe("03.5", "losses of the epoch", losses.losses(), {losses.count()}, stream);
}

// Prints and records which rank has which layers and how long it idled. pncclAllGather is ncclAllGather, but stays out
// of the ledger.
void report(const Stage& stage, const std::vector<int>& bounds, const Job& job, cudaStream_t stream) {
  struct Row {
    float idle_share;
    int parameters;
  };
  const Row mine{stage.clock.idle_share(), stage.model.count()};
  record_value("idle share", mine.idle_share);
  DeviceBuffer<Row> row(1, Memory::data), rows(job.world(), Memory::data);
  row.upload(&mine, stream);
  NCCL_CHECK(pncclAllGather(row.data(), rows.data(), sizeof(Row), ncclChar, job.comm(), stream));
  const std::vector<Row> all = rows.download(stream);
  print0("rank  layers     parameters  idle\n");
  for (int rank = 0; rank < job.world(); ++rank) {
    print0("%4d  %3d to %-3d %10d  %3.0f %%\n", rank, bounds[rank], bounds[rank + 1] - 1, all[rank].parameters,
           100 * all[rank].idle_share);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("03_model_parallel/model_parallel", "Trains an MLP whose layers are spread over the ranks.");
  std::string partition = "uniform";
  options.add("--partition", partition, "what the ranks get equal shares of: layers or parameters",
              {"uniform", "parameters"});
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_layers(options, process_ranks().world);
  Job job(options);
  const bool uniform = partition == "uniform";
  const std::vector<int> bounds =
      partition_layers(options.layers, job.world(), uniform ? Partition::uniform : Partition::parameters);
  probe(uniform ? "03.1" : "03.2", "first layer of each rank, and the number of layers", bounds);

  const Stream stream;
  const int rank = job.rank(), last = job.world() - 1;
  Stage stage(options, bounds[rank], bounds[rank + 1], stream);

  // All ranks go through the same batches. The first one uses the inputs, the last one the targets.
  const RandomTensorDataset dataset(options.samples, options.layers.front(), options.layers.back(), options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, rank == 0 ? 0 : -1, 1, stream);

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  add_training(checkpoints, stage.model, stage.optimizer);  // each rank its layers
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  stage.optimizer.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      stage.clock.next_step();
      const Batch batch = loader.batch(step);
      forward(stage, batch.x, batch.rows, job, stream);
      if (rank == last) stage.loss(batch.y, batch.rows, loss);
      backward(stage, batch.rows, job, stream);
      stage.update();
      checkpoints.step_done(epoch, step + 1, loader);
    }
    send_losses(losses, job, stream);
    stage.clock.stop();
    losses.end_epoch(epoch, stream);
    stage.clock.read();
  }
  checkpoints.finish();
  for (const Parameter& p : stage.model.parameters()) record_parameter(0, p.name, p.value, p.shape, stream);
  report(stage, bounds, job, stream);
}
