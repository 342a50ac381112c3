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
  std::vector<double> values;  // the first 4,096 at most
  double l2 = 0, sum = 0;      // of all values
  bool integers = false;       // ranks, counts, flags: what the host has worked out
  int unwritten = 0;           // values that are not finite because nothing wrote the memory that they come from

  double size() const;  // product of the shape
  double rms() const;   // root mean square of all values
};

struct Probe {
  std::string id;  // number of the TODO that wrote the tensor
  int rank, step;
  long sequence;  // running number on its rank
  Tensor tensor;
};

struct StepLoss {
  int step, replica;
  double loss, global_loss;
  double gradient_norm = 0;  // of language models
  int epoch = 0;
};

// What one rank did with one operation on one communicator.
struct Collective {
  int rank;
  std::string op, communicator;
  int ranks;  // of the communicator
  double calls, elements, bytes;
  std::map<std::string, std::pair<double, double>> places = {};  // file:line -> calls and bytes from there
};

// Bytes that a rank sends with it, on average over the ranks, with the ring algorithms. Throws std::runtime_error for
// an operation without a formula.
double bytes_sent(const Collective& collective);

// The group of ranks whose traffic it is, as chapter 07's plan names it: data, tensor, pipeline; "" for a broadcast,
// which is sent before the first step.
std::string group(const Collective& collective, const std::string& chapter);

struct RunRecord {
  std::string chapter, program;
  std::string variant;  // what tells runs of the program apart: "gpipe", "stage 3", "dp 2 pp 2 tp 1"
  int world = 1;
  std::string line;                             // of the run, which its timeline has too
  std::string simulated;                        // the machine, where it is none of metal
  std::map<std::string, double> options;        // those that are numbers
  std::map<std::string, std::string> settings;  // all options, as texts
  std::vector<Probe> probes;                    // in order of step, then sequence, then rank
  std::vector<StepLoss> losses;                 // in order of step, then replica
  std::vector<Tensor> parameters;
  std::map<std::pair<int, std::string>, double> values;   // (rank, name) -> what that rank has measured
  std::map<std::string, std::set<std::string>> replicas;  // parameter -> the hashes that the replicas end with
  std::vector<Collective> collectives;
  std::map<int, std::map<std::string, double>> peaks;  // rank -> kind -> bytes
  std::map<int, double> peak_memory;  // rank -> bytes: the peaks of all kinds but the data set, summed, on
                                      // the device of its that holds the most
  std::map<int, std::map<std::string, double>> device;  // rank -> bytes accounted and in_use on its device, its number
  // The same two of the other devices that a rank uses: (rank, number of the device).
  std::map<std::pair<int, int>, std::map<std::string, double>> other_peaks, other_devices;
  // rank -> allocations, synchronizations, events, devices, handles (cpu)
  std::map<int, std::map<std::string, double>> host;
  std::map<int, Probe> passed;  // rank -> the last probe that it came to, without its values; of a journal
  bool complete = false;        // the run has come to its end
  std::string todo;             // the TODO that ended the run, if one did
  int steps = 0;
  double seconds_per_step = 0;
};

// One of its options that are numbers.
double option(const RunRecord& run, const std::string& name, double otherwise);

// Throws std::runtime_error with one line "file:line: what is wrong", also for a record without its `end`.
RunRecord read_run_record(const std::string& path);

// What the first line of a record says.
RunRecord read_run_line(const std::string& line);

// What there is of a run that did not come to its end: the ranks' journals, one after the other, whose last lines may
// be cut off.
RunRecord read_journals(const std::string& path);

// |a - b| relative to the larger of |b| and `scale`; infinite when one of them is not finite.
double relative_error(double a, double b, double scale = 0);

}  // namespace workshop::tools
