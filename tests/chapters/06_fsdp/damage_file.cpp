// Damages a file in one of many ways, which a number chooses: damage_file FILE NUMBER. Prints what it did.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string path = argv[1];
  std::mt19937 random(static_cast<unsigned>(std::stoul(argv[2])));
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  const auto below = [&](std::size_t limit) { return random() % limit; };
  std::string what;

  switch (std::stoul(argv[2]) % 8) {
    case 0: {
      const std::size_t at = below(content.size()), bit = below(8);
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
      what = "flipped bit " + std::to_string(bit) + " of byte " + std::to_string(at);
      break;
    }
    case 1:
      content.resize(below(content.size()));
      what = "cut it to " + std::to_string(content.size()) + " bytes";
      break;
    case 2: {  // at the beginning of a safetensors file: the length of its header
      const std::uint64_t length = (std::uint64_t{random()} << 32 | random()) >> below(40);
      std::memcpy(content.data(), &length, sizeof length);
      what = "wrote " + std::to_string(length) + " over the first eight bytes";
      break;
    }
    case 3: {  // within the header
      const std::size_t at = 8 + below(std::min<std::size_t>(content.size() - 8, 200));
      content.replace(at, 1, below(2) ? "[[[[" : "99999999999");
      what = "garbled the header at byte " + std::to_string(at);
      break;
    }
    case 4:
      content = std::string(below(5000), '\0') + "This is another file.\n";
      what = "wrote another file";
      break;
    case 5:
      content += std::string(1 + below(100), '\0');
      what = "appended zeros";
      break;
    case 6: {  // a header that promises more than there is
      const std::string header = R"({"0.weight":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})";
      const std::uint64_t length = header.size();
      content = std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
      what = "wrote a header with a huge shape";
      break;
    }
    default:
      content.clear();
      what = "emptied it";
  }
  std::ofstream(path, std::ios::binary) << content;
  std::cout << what << "\n";
}
