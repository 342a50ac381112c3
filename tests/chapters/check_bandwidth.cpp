// Checks what 00_collectives/bandwidth writes with --json: check_bandwidth FILE SIZES BUS_FACTOR.
// Every number must follow from the measured times, and no other alpha and beta may explain these better.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using Json = nlohmann::json;

void expect_close(double found, double expected, const std::string& what) {
  if (std::abs(found - expected) <= 1e-6 * std::abs(expected)) return;
  throw std::runtime_error(what + " is " + std::to_string(found) + ", expected " + std::to_string(expected));
}

// The sum of squares that the fit makes small: of the relative errors.
double error(const Json& measurements, double alpha, double beta) {
  double sum = 0;
  for (const Json& m : measurements) {
    const double seconds = m.at("seconds");
    const double relative = (alpha + beta * m.at("bytes").get<double>() - seconds) / seconds;
    sum += relative * relative;
  }
  return sum;
}

void check_fit(const Json& run) {
  const double alpha = run.at("alpha_seconds"), beta = run.at("beta_seconds_per_byte");
  if (!(alpha >= 0 && beta >= 0 && alpha + beta > 0))
    throw std::runtime_error("alpha or beta is negative, or both are 0");
  const Json& measurements = run.at("measurements");
  const double best = error(measurements, alpha, beta);
  for (const double a : {0.99, 1.0, 1.01}) {
    for (const double b : {0.99, 1.0, 1.01}) {
      if (!(error(measurements, a * alpha, b * beta) >= best * (1 - 1e-6))) {
        throw std::runtime_error("another alpha and beta fit the times better");
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::runtime_error("usage: check_bandwidth FILE SIZES BUS_FACTOR");
    std::ifstream file(argv[1]);
    const Json run = Json::parse(file);
    expect_close(static_cast<double>(run.at("measurements").size()), std::stod(argv[2]), "the number of sizes");
    expect_close(run.at("bus_factor"), std::stod(argv[3]), "the bus factor");
    for (const Json& m : run.at("measurements")) {
      const double algorithm = m.at("bytes").get<double>() / m.at("seconds").get<double>() / 1e9;
      expect_close(m.at("algorithm_gb_per_s"), algorithm, "the algorithm bandwidth");
      expect_close(m.at("bus_gb_per_s"), algorithm * std::stod(argv[3]), "the bus bandwidth");
    }
    check_fit(run);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
