// SPDX-License-Identifier: Apache-2.0
// Words, vocabulary and samples, as the PyTorch version of the language model reads them.
#include "common/data/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/data/file_kind.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

class ReadText : public testing::Test {
 protected:
  ~ReadText() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void write(const std::string& train, const std::string& valid, const std::string& test) const {
    write("train.txt", train);
    write("valid.txt", valid);
    write("test.txt", test);
  }
  Text read(int vocabulary = 0, int context = 1) const { return read_text(folder_.string(), vocabulary, context); }

  // Expects that the files cannot be read, with this error; @ stands for the folder.
  void expect_error(std::string expected, int context = 1) const {
    expected.replace(expected.find('@'), 1, folder_.string());
    try {
      read(0, context);
      ADD_FAILURE() << "expected: " << expected;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), expected);
    }
  }

  static fs::path made(const fs::path& folder) {
    fs::create_directories(folder);
    return folder;
  }
  const fs::path folder_ = made(fs::path(testing::TempDir()) / ("text." + std::to_string(getpid())));
};

TEST_F(ReadText, ReadsTheGoldenRunsText) {
  const Text text = read_text(GOLDEN_TEXT, 0, 16);
  EXPECT_EQ(text.vocabulary.size(), 57);
  EXPECT_EQ((text.train.size() - 1) / 16, 284);
  EXPECT_EQ((text.valid.size() - 1) / 16, 43);
  EXPECT_EQ((text.test.size() - 1) / 16, 43);
}

TEST_F(ReadText, NumbersWordsByFrequencyThenByFirstAppearance) {
  write("b a c a\nd c", "a e", "d\n");
  const Text text = read();
  EXPECT_EQ(text.vocabulary, (Words{"<unk>", "<eos>", "a", "c", "b", "d"}));
  EXPECT_EQ(text.train, (Tokens{4, 2, 3, 2, 1, 5, 3, 1}));
  EXPECT_EQ(text.valid, (Tokens{2, 0, 1}));
  EXPECT_EQ(text.test, (Tokens{5, 1}));
}

TEST_F(ReadText, SkipsAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  write(mark + "a b", mark + "b", mark + "a");
  EXPECT_EQ(read().vocabulary, (Words{"<unk>", "<eos>", "a", "b"}));
  write("a " + mark + "b", "b", "a");  // elsewhere, it is a character as any other
  EXPECT_EQ(read().vocabulary, (Words{"<unk>", "<eos>", "a", mark + "b"}));
  write(mark, "b", "a");
  expect_error("@/train.txt: it is empty");
}

TEST_F(ReadText, KeepsTheMostFrequentWords) {
  write("b a c a\nd c", "c b", "d");
  for (int all : {6, 7, 1000}) EXPECT_EQ(read(all).train, read().train);
  EXPECT_EQ(read(5).vocabulary, (Words{"<unk>", "<eos>", "a", "c", "b"}));
  EXPECT_EQ(read(4).train, (Tokens{0, 2, 3, 2, 1, 0, 3, 1}));
  EXPECT_EQ(read(4).valid, (Tokens{3, 0, 1}));
  EXPECT_EQ(read(2).train, (Tokens{0, 0, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(read(1).vocabulary, Words{"<unk>"});
  EXPECT_EQ(read(1).train, Tokens(8, 0));
}

TEST_F(ReadText, CountsNoUnkAndNoEosOfTheText) {
  write("<unk> <unk> <eos> a <unk>", "<unk> <eos>", "a");
  const Text text = read();
  EXPECT_EQ(text.vocabulary, (Words{"<unk>", "<eos>", "a"}));
  EXPECT_EQ(text.train, (Tokens{0, 0, 1, 2, 0, 1}));
  EXPECT_EQ(text.valid, (Tokens{0, 1, 1}));
}

TEST_F(ReadText, EndsLinesWherePythonDoes) {
  write("a\n\nb\r\nc\rd\r\r\n \t\n e \x0b f \x1d g", "a\n", "a\n ");
  const Text text = read();
  EXPECT_EQ(text.train, (Tokens{2, 1, 1, 3, 1, 4, 1, 5, 1, 1, 1, 6, 7, 8, 1}));
  EXPECT_EQ(text.valid, (Tokens{2, 1}));
  EXPECT_EQ(text.test, (Tokens{2, 1, 1}));
}

TEST_F(ReadText, SplitsAtUnicodeWhiteSpace) {
  const Words spaces = {"\t",     "\v",     "\f",     " ",      "\x1c",   "\x1d",   "\x1e",
                        "\x1f",   "\u0085", "\u00a0", "\u1680", "\u2000", "\u2005", "\u200a",
                        "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (const std::string& space : spaces) {
    write("a" + space + "b" + space + space, "a", "a");
    EXPECT_EQ(read().train, (Tokens{2, 3, 1})) << testing::PrintToString(space);
  }
  // A zero-width space and a byte order mark are not white space; neither are neighbors of the white space above.
  for (const std::string letter : {"\u200b", "\ufeff", "\u180e", "\u0084", "\u00a1", "\x7f", "\U0010ffff"}) {
    write("a" + letter + "b", "a", "a");
    EXPECT_EQ(read().train, (Tokens{2, 1})) << testing::PrintToString(letter);
  }
}

TEST_F(ReadText, TakesTheNamesOfWikiText2) {
  for (const std::string end : {".raw", ".tokens"}) {
    write("wiki.train" + end, "in" + end);
    write("wiki.valid" + end, "in");
    write("wiki.test" + end, "in");
    EXPECT_EQ(read().vocabulary.back(), "in" + end);
  }
  write("own", "a", "a");
  EXPECT_EQ(read().vocabulary.back(), "own");
}

TEST_F(ReadText, HoldsEachTokenOnce) {
  std::string train;
  for (int i = 0; i < 5000; ++i) train += "word ";
  write(train, "a", "a");
  EXPECT_EQ(read().train.capacity(), 5001);
}

TEST_F(ReadText, NamesTheFileThatIsMissingOrEmpty) {
  expect_error("@: has no train.txt, wiki.train.tokens or wiki.train.raw");
  write("train.txt", "a");
  expect_error("@/valid.txt: cannot be read: No such file or directory");
  write("valid.txt", "");
  expect_error("@/valid.txt: it is empty");
  write("valid.txt", "\n\n");
  fs::create_directory(folder_ / "test.txt");
  expect_error("@/test.txt: it is not a regular file");
  fs::remove_all(folder_);
  expect_error("@: there is no such folder");
  write("", "");
  std::ofstream(folder_.string()) << "a file";
  expect_error("@: there is no such folder");
}

TEST_F(ReadText, NeedsOneSampleOfEachStream) {
  write("a b c d", "a b c", "a b");
  EXPECT_EQ(read(0, 2).test.size(), 3);
  expect_error("@/test.txt: 3 tokens are too few; a sample with a context of 3 needs 4", 3);
  expect_error("@/valid.txt: 4 tokens are too few; a sample with a context of 4 needs 5", 4);
  expect_error("@/train.txt: 5 tokens are too few; a sample with a context of 5 needs 6", 5);
}

TEST_F(ReadText, RefusesWhatIsNoUtf8) {
  // A NUL byte, a stray continuation byte, overlong forms, a surrogate, a code point beyond Unicode, and truncated
  // sequences.
  for (const std::string& binary :
       {std::string(1, '\0'), std::string("\x80"), std::string("\xc1\xbf"), std::string("\xe0\x9f\xbf"),
        std::string("\xf0\x8f\xbf\xbf"), std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"),
        std::string("\xf8"), std::string("\xff"), std::string("\xe2\x80"), std::string("\xe2\x80 ")}) {
    write("a\nb " + binary, "a", "a");
    expect_error("@/train.txt: line 2 is not UTF-8 text");
  }
}

TEST_F(ReadText, SaysWhatElseAFileIs) {
  const auto is = [this](const std::string& beginning, const std::string& kind) {
    write(beginning + " b c", "a", "a");
    expect_error("@/train.txt: it is " + kind);
  };
  is("<!DOCTYPE html>\n<html>", "an HTML page");
  is("\n  <html lang=\"en\">", "an HTML page");
  is("\xef\xbb\xbf<?xml version=\"1.0\"?>", "an HTML page");
  is("{\"message\": \"Not Found\"}", "a JSON document");
  is("[ {\"a\": 1}]", "a JSON document");
  is("PK\x03\x04", "a zip archive");
  is("\x1f\x8b\x08", "a gzip archive");
  is("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer, not the file itself");
}

TEST(MisplacedKind, LeavesTextsAlone) {
  for (const char* text : {"", "a", "{ x }", "[1] A note", "< b", "= Valkyria Chronicles III =", "version 2"})
    EXPECT_EQ(misplaced_kind(text), "") << text;
}

}  // namespace
}  // namespace workshop
