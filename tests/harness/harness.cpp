// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/harness.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct TestCase {
  std::string name;
  Properties properties;
  std::function<void()> body;
  Where where;

  int timeout() const { return properties.timeout * (kCuda ? 4 : 1); }
  // Returns why the test cannot run here, or "".
  std::string cpu_only() const {
    if (!kCuda) return "";
    return properties.measures ? "it compares times with those that the cpu backend simulates" : properties.cpu_only;
  }
};

struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The functions that register tests, by the name of their source file.
std::multimap<std::string, void (*)()>& registrations() {
  static std::multimap<std::string, void (*)()> functions;
  return functions;
}
std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

// The running test, its deadline, and the number of commands that it has started.
const TestCase* current = nullptr;
Clock::time_point deadline;
int commands = 0;

std::string identifier(std::string name) {
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

std::string quoted(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string("-_=./,:+").find(c) != std::string::npos;
  };
  return !word.empty() && std::ranges::all_of(word, plain) ? word : "'" + word + "'";
}

std::string last_lines(const std::string& text, int lines) {
  std::size_t begin = text.size();
  for (int i = 0; i <= lines && begin != std::string::npos && begin > 0; ++i) begin = text.rfind('\n', begin - 1);
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

// Runs `words` as a process that is terminated when this one ends. Sets `environment` for it, and puts these variables
// in front of the command that is reported.
Run execute(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  Run result;
  for (const std::string& variable : environment) result.command += quoted(variable) + " ";
  for (const std::string& word : words) result.command += quoted(word) + " ";
  result.command.pop_back();
  const std::string output = "output-" + std::to_string(++commands) + ".txt";
  const pid_t parent = getpid(), child = fork();
  if (child < 0) throw std::runtime_error("cannot start a process");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), none = open("/dev/null", O_RDONLY);
    dup2(none, 0), dup2(file, 1), dup2(file, 2);
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ostringstream content;
  content << std::ifstream(output).rdbuf();
  result.output = content.str();
  return result;
}

Run succeeded(Run run) {
  if (run.status != 0)
    fail(report(run, "status 0", text("status ", run.status, "; it printed\n", last_lines(run.output, 40))));
  return run;
}

class Test : public testing::Test {
 public:
  explicit Test(const TestCase& test) : test_(test) {}
  void TestBody() override {
    if (!test_.cpu_only().empty()) GTEST_SKIP() << "skipped on the cuda backend: " << test_.cpu_only();
    current = &test_;
    commands = 0;
    deadline = Clock::now() + std::chrono::seconds(test_.timeout());
    const fs::path folder = fs::path(WORKSHOP_BUILD) / "tests/run" / identifier(test_.name);
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::current_path(folder);
    try {
      test_.body();
    } catch (const Skipped& reason) {
      GTEST_SKIP() << reason.what();
    } catch (const std::exception& error) {
      ADD_FAILURE_AT(test_.where.file_name(), static_cast<int>(test_.where.line())) << error.what();
    }
    if (HasFailure()) {
      const std::string program = fs::read_symlink("/proc/self/exe");
      std::printf("It ran in %s; repeat it with %s %s\n", folder.c_str(), program.c_str(), test_.name.c_str());
    }
  }

 private:
  const TestCase& test_;
};

// Writes add_test() commands for CTest.
void write_ctest_file(const std::string& path, const std::string& program) {
  std::ofstream file(path);
  for (const TestCase& test : test_cases()) {
    const Properties& p = test.properties;
    const std::string label = test.name.substr(0, test.name.find('.'));
    file << "add_test(\"" << test.name << "\" \"" << source("tests/on_gpus").path << "\" \"" << program << "\" --in \""
         << fs::path(test.where.file_name()).filename().string() << "\" \"" << test.name << "\")\n"
         << "set_tests_properties(\"" << test.name << "\" PROPERTIES LABELS \"" << label << (p.soak ? ";soak" : "")
         << "\" SKIP_RETURN_CODE 77 TIMEOUT " << test.timeout() * (p.measures ? 3 : 1) << " RESOURCE_GROUPS \""
         << p.ranks << ",gpus:1\"";
    if (p.measures) file << " RUN_SERIAL TRUE";
    if (p.processors > 1) file << " PROCESSORS " << p.processors;
    file << ")\n";
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

void register_test(const TestCase& test) {
  const std::size_t dot = test.name.find('.', test.name.find('.') + 1);  // "solution.02" and the rest
  testing::RegisterTest(test.name.substr(0, dot).c_str(), test.name.substr(dot + 1).c_str(), nullptr, nullptr,
                        test.where.file_name(), static_cast<int>(test.where.line()),
                        [&test]() -> Test* { return new Test(test); });
}

}  // namespace

int attempt() {
  const char* attempt = std::getenv("WORKSHOP_TEST_ATTEMPT");
  return attempt ? std::stoi(attempt) : 1;
}

Path solution(const std::string& name) { return {WORKSHOP_BUILD "/solutions/" + name}; }
Path source(const std::string& name) { return {WORKSHOP_SOURCE "/" + name}; }

Command Command::in(const std::string& variable) const {
  Command command = *this;
  command.environment.push_back(variable);
  return command;
}

void append(std::vector<std::string>& words, const Path& path) { words.push_back(path.path); }
void append(std::vector<std::string>& words, const std::string& text) {
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
}

void fail(const std::string& message) { throw std::runtime_error(message); }

std::string report(const Run& run, const std::string& expected, const std::string& found) {
  return "ran:      " + run.command + "\nexpected: " + expected + "\nfound:    " + found;
}

Run run(const Command& command) {
  const int slots = current->properties.ranks;  // of GPUs
  if (command.ranks > slots) fail(text("a command on ", command.ranks, " ranks, in a test with .ranks = ", slots));
  for (const std::string& variable : command.environment) {
    const std::string name = variable.substr(0, variable.find('='));
    const bool of_cpu = name == "WORKSHOP_SLOW" || name == "WORKSHOP_SIMULATE" || name == "WORKSHOP_BLOCKING";
    if (kCuda && (of_cpu || name.starts_with("WORKSHOP_DEVICE_")))
      throw Skipped("skipped on the cuda backend: " + name + " is a setting of the cpu backend");
  }
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(deadline - Clock::now()).count() - 5;
  std::vector<std::string> words{source("tools/launch").path,        "-n", std::to_string(command.ranks), "-t",
                                 std::to_string(std::max(left, 1L)), "--"};
  words.insert(words.end(), command.words.begin(), command.words.end());
  return execute(words, command.environment);
}

Run succeed(const Command& command) { return succeeded(run(command)); }

Run record(const Command& command, const std::string& file) {
  const std::string path = file.empty() ? text("run-", commands + 1, ".jsonl") : file;
  Run result = succeed(with(command, "--record", path));
  result.record = tools::read_run_record(path);
  return result;
}

Run script(const Path& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program.path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Run result = execute(words, {});
  if (result.status == 77) throw Skipped(result.output);
  return succeeded(std::move(result));
}

void test(const std::string& name, const Properties& properties, std::function<void()> body, const Where& where) {
  test_cases().push_back({name, properties, std::move(body), where});
}

void test(const std::string& name, const Command& command, std::function<void(const Run&)> check, const Where& where) {
  test(
      name, {.ranks = command.ranks}, [=] { check(record(command)); }, where);
}

Registration::Registration(const char* file, void (*function)()) {
  registrations().emplace(fs::path(file).filename(), function);
}

}  // namespace workshop::tests

// chapter_tests NAME...           runs these tests
// chapter_tests --in FILE NAME... runs tests of this source file; CTest uses it because registering all tests takes
//                                 longer than many of them run
// chapter_tests --ctest FILE      writes all tests for CTest
// chapter_tests --compare EXPECTED FOUND BOUND [resumed]   for scripts: have two runs learned the same?
// chapter_tests [--gtest_…]       runs all tests, or those that GoogleTest's options select
int main(int argc, char** argv) {
  char** const words = argv;
  using namespace workshop::tests;
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() >= 4 && arguments[0] == "--compare") {
      const double bound = std::stod(arguments[3]);
      const std::string difference =
          compare_training(workshop::tools::read_run_record(arguments[1]),
                           workshop::tools::read_run_record(arguments[2]), bound, arguments.size() > 4);
      std::printf("%s\n", difference.c_str());
      return difference.empty() ? 0 : 1;
    }
    std::string file;
    if (argc > 2 && arguments[0] == "--in") {
      file = arguments[1];
      argc -= 2, argv += 2;
    }
    for (const auto& [of_file, add_tests] : registrations()) {
      if (file.empty() || file == of_file) add_tests();
    }
    std::map<std::string, const TestCase*> by_name;
    for (const TestCase& test : test_cases()) {
      if (!by_name.emplace(test.name, &test).second) fail("two tests are named " + test.name);
    }
    if (arguments.size() == 2 && arguments[0] == "--ctest") {
      write_ctest_file(arguments[1], std::filesystem::read_symlink("/proc/self/exe"));
      return 0;
    }
    // Disables probes by default, because they take longer than the steps and most tests only compare results. Tests
    // that need probes enable them.
    std::istringstream environment("WORKSHOP_BACKEND=" WORKSHOP_BACKEND "|WORKSHOP_TIMEOUT=" +
                                   std::string(kCuda ? "80" : "20") + "|WORKSHOP_PROBES=0|" WORKSHOP_ENVIRONMENT);
    for (std::string variable; std::getline(environment, variable, '|');) {
      const std::size_t equals = variable.find('=');
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 0);
    }
    testing::InitGoogleTest(&argc, argv);
    if (argc == 1) {
      for (const TestCase& test : test_cases()) register_test(test);
    }
    bool measures = false;
    for (int i = 1; i < argc; ++i) {
      if (!by_name.contains(argv[i])) fail(std::string("there is no test ") + argv[i]);
      register_test(*by_name[argv[i]]);
      measures = measures || by_name[argv[i]]->properties.measures;
    }
    const int status = RUN_ALL_TESTS();
    // A real error recurs in every attempt; a delay on a busy machine does not.
    if (status != 0 && measures && attempt() < 3) {
      setenv("WORKSHOP_TEST_ATTEMPT", std::to_string(attempt() + 1).c_str(), 1);
      execv("/proc/self/exe", words);
    }
    return status == 0 && testing::UnitTest::GetInstance()->skipped_test_count() > 0 ? 77 : status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chapter_tests: %s\n", error.what());
    return 2;
  }
}
