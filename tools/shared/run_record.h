// SPDX-License-Identifier: Apache-2.0
// Reads the run records that programs write with --record.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace workshop::tools {

struct Tensor {
  std::string name;
  std::vector<long> shape;
  std::vector<double> values;  // only the first 4,096
  double l2 = 0, sum = 0;      // over all values
  bool integers = false;       // computed by the host: ranks, counts, flags
  int unwritten = 0;           // how many values are not finite because they come from memory that was never written

  double size() const;  // number of values: the product of the shape
  double rms() const;   // root mean square of all values
};

struct Probe {
  std::string id;  // number of the TODO that computed the tensor
  int rank, step;
  long sequence;  // counts the probes of its rank
  Tensor tensor;
};

struct StepLoss {
  int step, replica;
  double loss, global_loss;
  double gradient_norm = 0;  // only of language models
  int epoch = 0;
  double auxiliary = 0;  // loss, of programs that train mixtures of experts (chapter 09)
};

// All calls of one operation by one rank on one communicator.
struct Collective {
  int rank;
  std::string op, communicator;
  int ranks;  // of the communicator
  double calls, elements, bytes;
  std::map<std::string, std::pair<double, double>> places = {};  // file:line -> calls and bytes from there
  std::map<std::string, std::string> types = {};                 // file:line -> data type, "ncclFloat32"
  std::map<std::string, std::string> with = {};                  // file:line -> reduction, root: "ncclAvg, root 0"
};

// Returns the bytes that a rank sends in these calls, averaged over the ranks, with ring algorithms. Throws
// std::runtime_error for an operation without a formula.
double bytes_sent(const Collective& collective);

// Returns the group of ranks that the traffic belongs to, as chapter 07's plan names it: data, context, tensor or
// pipeline, or experts (chapter 09). "" for a broadcast, which is sent before the first step.
std::string group(const Collective& collective, const std::string& chapter);

// What held up a stream, or the host, on a simulated machine (docs/record.md).
struct Stall {
  int rank;
  std::string on, call, place, behind;
  double seconds;
  int times = 0;
};

struct RunRecord {
  std::string chapter, program;
  std::string variant;  // distinguishes runs of the program: "gpipe", "stage 3", "dp 2 pp 2 tp 1"
  int world = 1;
  std::string line;                             // the first line, which the run's timeline contains too
  std::string simulated;                        // the simulated machine; empty on a real one
  std::map<std::string, double> options;        // the options that are numbers
  std::map<std::string, std::string> settings;  // all options, as text
  std::vector<Probe> probes;                    // in order of step, then sequence, then rank
  std::vector<StepLoss> losses;                 // in order of step, then replica
  std::vector<Tensor> parameters;
  std::map<std::pair<int, std::string>, double> values;   // (rank, name) -> a value that the rank measured
  std::map<std::string, std::set<std::string>> replicas;  // parameter -> its hashes on the replicas, at the end
  std::vector<Collective> collectives;
  std::map<int, std::map<std::string, double>> peaks;  // rank -> kind -> bytes
  std::map<int, double> peak_memory;  // rank -> bytes: the sum of the peaks of all kinds but the data set, on the
                                      // rank's device that holds the most
  std::map<int, std::map<std::string, double>> device;  // rank -> bytes "accounted" and "in_use", device "number"
  // peaks and device for the other devices that a rank uses, by (rank, device number).
  std::map<std::pair<int, int>, std::map<std::string, double>> other_peaks, other_devices;
  // rank -> counts of allocations, synchronizations, events, devices, handles (cpu backend)
  std::map<int, std::map<std::string, double>> host;
  // rank -> the probes that it reached, in order, without values; only from a journal
  std::map<int, std::vector<Probe>> passed;
  bool complete = false;  // the run finished
  std::string todo;       // the open TODO that ended the run, if one did
  int steps = 0;
  double seconds_per_step = 0;
  std::vector<Stall> stalls;  // only on a simulated machine
};

// The value of a numeric option, or `otherwise` if the run has no such option.
double option(const RunRecord& run, const std::string& name, double otherwise);

// Throws std::runtime_error "file:line: what is wrong", also if the record has no `end` line.
RunRecord read_run_record(const std::string& path);

// Reads only the first line of a record.
RunRecord read_run_line(const std::string& line);

// Reads what a run left that did not finish: a file with the ranks' journals, one after another. Ignores lines that are
// cut off.
RunRecord read_journals(const std::string& path);

// |a - b| relative to the larger of |b| and `scale`; infinite if a or b is not finite.
double relative_error(double a, double b, double scale = 0);

}  // namespace workshop::tools
