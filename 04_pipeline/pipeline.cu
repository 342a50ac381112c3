// Pipeline parallelism: model parallelism whose ranks work on several micro-batches of a batch at once. When which
// stage computes what is data, made in schedule.h, checked in check_schedule.h, and carried out in executor.h.
#include <deque>
#include <thread>

#include "01_single_gpu/checkpoint_mlp.h"
#include "01_single_gpu/mlp.h"
#include "03_model_parallel/partition.h"
#include "check_schedule.h"
#include "common/data.h"
#include "common/job.h"
#include "executor.h"

using namespace workshop;

namespace {

struct Settings {
  std::string schedule = "1f1b", partition = "uniform";
  int micro_batches = 4, chunks = 0, stages = 0;
  bool print = false;
  StageMode mode;
};

void add_options(Options& options, Settings& settings) {
  options.add("--schedule", settings.schedule, "order of the micro-batches' forwards and backwards",
              {"gpipe", "1f1b", "interleaved"});
  options.add("--micro-batches", settings.micro_batches, "parts of a batch, whose size is --batch-size", 1, 1 << 20);
  options.add("--chunks", settings.chunks, "parts of the model a stage, if interleaved; default: 2", 1, 1 << 10);
  options.add("--partition", settings.partition, "what the parts get equal shares of: layers or parameters",
              {"uniform", "parameters"});
  options.add_flag("--recompute", settings.mode.recompute,
                   "keep the inputs of a stage alone and compute forwards twice");
  options.add_flag("--print", settings.print, "show the schedule and train nothing");
  options.add("--stages", settings.stages, "stages to show with --print; default: as many as ranks", 1, 1 << 10);
  options.add("--simulate-compute", settings.mode.milliseconds,
              "milliseconds that each forward and each backward waits for instead of computing", 0.0, 1e6);
}

// Fills in what is not given, and ends the program on what does not fit together.
void complete(Settings& s, const Options& options) {
  const int ranks = process_ranks().world;
  const auto number = [](int n) { return std::to_string(n); };
  const bool interleaved = s.schedule == "interleaved";
  if (s.stages == 0) s.stages = ranks;
  if (s.chunks == 0) s.chunks = interleaved ? 2 : 1;
  require_product({{"--stages", s.stages}, {"--micro-batches", s.micro_batches}, {"--chunks", s.chunks}}, 1 << 22);
  if (!s.print && s.stages != ranks) {
    usage_error("--stages is '" + number(s.stages) + "'; expected the number of ranks, " + number(ranks) +
                ", unless with --print");
  }
  if (!interleaved && s.chunks > 1) {
    usage_error("--chunks is '" + number(s.chunks) + "'; expected 1 unless --schedule is interleaved");
  }
  const std::string micro_batches = "--micro-batches is '" + number(s.micro_batches) + "'; expected ";
  if (interleaved && s.micro_batches % s.stages != 0) {
    usage_error(micro_batches + "a multiple of the " + number(s.stages) +
                " stages: interleaved takes groups of so many");
  }
  if (!s.print && options.batch_size % s.micro_batches != 0) {
    usage_error(micro_batches + "a divisor of --batch-size, " + number(options.batch_size));
  }
  const int layers = static_cast<int>(options.layers.size()) - 1, parts = s.stages * s.chunks;
  if (!s.print && s.mode.milliseconds == 0 && layers < parts) {
    std::string widths;
    for (int width : options.layers) widths += (widths.empty() ? "" : ",") + number(width);
    usage_error("--layers is '" + widths + "', " + number(layers) + " layers for " + number(s.stages) + " stages of " +
                number(s.chunks) + "; expected at least " + number(parts) + " layers");
  }
}

Schedule make_schedule(const Settings& s) {
  if (s.schedule == "gpipe") return gpipe(s.stages, s.micro_batches);
  if (s.schedule == "1f1b") return one_f_one_b(s.stages, s.micro_batches);
  return interleaved(s.stages, s.micro_batches, s.chunks);
}

// The share of the time that a stage has nothing to do, if forwards take as long as each other, and so do backwards.
double bubble(const Schedule& s) { return (s.stages - 1.0) / (s.chunks * s.micro_batches + s.stages - 1); }

void print_schedule(const Schedule& s) {
  print0("%s: %d stages, %d micro-batches, %d chunk%s a stage\n%s", s.name.c_str(), s.stages, s.micro_batches, s.chunks,
         s.chunks > 1 ? "s" : "", chart(s).c_str());
  print0("%d slots, of which each stage computes in %d: a bubble of %.1f %% of the time, %.1f %% of the ideal time\n",
         makespan(s), 2 * s.micro_batches * s.chunks, 100 * bubble(s),
         100 * (s.stages - 1.0) / (s.chunks * s.micro_batches));
  for (int stage = 0; stage < s.stages; ++stage) {
    print0("stage %d has at most %d in flight\n", stage, s.in_flight[stage]);
  }
}

// Ends all ranks with status 1 if the schedule is wrong: run, it might wait for ever.
void require_valid(const Schedule& schedule) {
  const std::vector<ScheduleError> errors = check_schedule(schedule);
  if (errors.empty()) return;
  const char* todo = schedule.name == "gpipe" ? "04.1" : schedule.name == "1f1b" ? "04.2" : "04.3";
  print0(
      "This schedule is wrong, so no rank runs it: see TODO %s ('!' marks the place, '?' what never gets its turn)\n%s",
      todo, report(schedule, errors).c_str());
  // Whichever rank ends first ends the others: let rank 0 speak.
  if (process_ranks().rank > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  end_job(kFailed);
}

// Where there are too few layers for the parts, all get one of the same width: a simulation looks at the time alone.
void make_room_for_parts(Options& options, int parts) {
  if (static_cast<int>(options.layers.size()) <= parts) options.layers.assign(parts + 1, options.layers.front());
}

// Steps that wait instead of computing. The first one does not count: in it NCCL connects the ranks.
void simulate(const Options& options, Stage& stage, PipelineExecutor& executor, IdleClock& clock) {
  const int steps = options.max_steps > 0 ? options.max_steps : 6;
  for (int step = 0; step < steps; ++step) {
    clock.next_step();
    stage.begin_step({nullptr, nullptr, options.batch_size}, nullptr);
    executor.step([] {});
  }
  clock.stop();
}

void train(const Options& options, Stage& stage, PipelineExecutor& executor, IdleClock& clock, const Job& job,
           cudaStream_t stream) {
  std::deque<ParameterUpdate> updates;
  for (Part& part : stage.parts()) {
    part.model.initialize(options.model_seed);
    updates.emplace_back(options, part.model.count(), stream);
  }
  const auto update = [&] {
    for (std::size_t chunk = 0; chunk < updates.size(); ++chunk) {
      const Mlp& model = stage.parts()[chunk].model;
      updates[chunk].step(model.values(), model.grads());
    }
  };

  // All ranks go through the same batches. The first one uses the inputs, the last one the targets.
  const RandomTensorDataset dataset(options.samples, options.layers.front(), options.layers.back(), options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank() == 0 ? 0 : -1, 1, stream);
  const int rank = job.rank(), last = job.world() - 1;

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  for (std::size_t chunk = 0; chunk < updates.size(); ++chunk) {
    add_training(checkpoints, stage.parts()[chunk].model, updates[chunk]);
  }
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  for (ParameterUpdate& part : updates) part.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      clock.next_step();
      stage.begin_step(loader.batch(step), loss);
      executor.step(update);
      checkpoints.step_done(epoch, step + 1, loader);
    }
    // The last stage has the losses, rank 0 prints them.
    if (rank == last && last > 0) {
      NCCL_CHECK(ncclSend(losses.losses(), losses.count(), ncclFloat, 0, job.comm(), stream));
    } else if (rank == 0 && last > 0) {
      NCCL_CHECK(ncclRecv(losses.losses(), losses.count(), ncclFloat, last, job.comm(), stream));
    }
    clock.stop();
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  for (const Part& part : stage.parts()) {
    for (const Parameter& p : part.model.parameters()) record_parameter(0, p.name, p.value, p.shape, stream);
  }
}

// Prints and records what each stage holds and how much of its time it idles. pncclAllGather is ncclAllGather, but
// stays out of the ledger.
void report(const Schedule& schedule, Stage& stage, const IdleClock& clock, bool simulated, const Job& job,
            cudaStream_t stream) {
  CUDA_CHECK(cudaStreamSynchronize(stream));
  struct Row {
    float idle;
    int activations;  // micro-batches whose activations the stage can hold, all chunks counted
    unsigned bytes;   // of all activations, at their peak
  };
  Row mine{static_cast<float>(clock.idle_share()), 0, static_cast<unsigned>(memory_use(Memory::activations).peak)};
  for (const Part& part : stage.parts()) mine.activations += static_cast<int>(part.activations.size());
  DeviceBuffer<Row> row(1, Memory::data), rows(job.world(), Memory::data);
  row.upload(&mine, stream);
  NCCL_CHECK(pncclAllGather(row.data(), rows.data(), sizeof(Row), ncclChar, job.comm(), stream));
  const std::vector<Row> all = rows.download(stream);
  double mean = 0;
  print0("stage  activations held  bytes of activations  idle\n");
  for (int rank = 0; rank < job.world(); ++rank) {
    print0("%5d  %16d  %20u  %3.0f %%\n", rank, all[rank].activations, all[rank].bytes, 100 * all[rank].idle);
    mean += all[rank].idle / job.world();
  }
  record_value("idle share", mine.idle);
  if (!simulated) return;
  record_value("bubble", mine.idle);
  if (job.rank() == 0) record_value("mean bubble", mean);
  print0("bubble: measured %.1f %%, expected %.1f %%\n", 100 * mean, 100 * bubble(schedule));
}

}  // namespace

int main(int argc, char** argv) {
  Options options("04_pipeline/pipeline", "Trains an MLP whose stages work on several micro-batches at once.");
  Settings settings;
  add_options(options, settings);
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  complete(settings, options);
  if (settings.print) {
    const Schedule schedule = make_schedule(settings);
    require_valid(schedule);
    print_schedule(schedule);
    return 0;
  }
  const bool simulated = settings.mode.milliseconds > 0;
  if (simulated) make_room_for_parts(options, settings.stages * settings.chunks);

  Job job(options);
  const Schedule schedule = make_schedule(settings);
  require_valid(schedule);
  const Stream stream;
  const std::vector<int> bounds = partition_layers(
      options.layers, schedule.parts(), settings.partition == "uniform" ? Partition::uniform : Partition::parameters);
  Stage stage(options, schedule, job.rank(), bounds, settings.mode, stream);
  IdleClock clock(stream, simulated ? 1 : kProbedSteps);
  PipelineExecutor executor(schedule, stage, job.comm(), stream, clock);
  if (simulated) {
    simulate(options, stage, executor, clock);
  } else {
    train(options, stage, executor, clock, job, stream);
  }
  report(schedule, stage, clock, simulated, job, stream);
}
