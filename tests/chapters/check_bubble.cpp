// The mean bubble that a simulation has measured: check_bubble RECORD EXPECTED TOLERANCE, both as shares of the time.
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "tools/run_record.h"

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::invalid_argument("usage: check_bubble RECORD EXPECTED TOLERANCE");
    const auto record = workshop::tools::read_run_record(argv[1]);
    const double expected = std::stod(argv[2]), tolerance = std::stod(argv[3]);
    double sum = 0;
    for (int rank = 0; rank < record.world; ++rank) sum += record.values.at({rank, "bubble"});
    const double mean = record.values.at({0, "mean bubble"});
    std::printf("bubble %.4f, expected %.4f\n", mean, expected);
    const bool right = std::fabs(mean - expected) <= tolerance && std::fabs(mean - sum / record.world) <= 1e-6;
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
