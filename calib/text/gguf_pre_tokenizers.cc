#include "calib/text/gguf_pre_tokenizers.h"

#include "calib/text/tokenizer_spec.h"

namespace kvcc {
namespace {

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kNewline = "[\\r\\n]";
constexpr const char* kKanaAndHan = "[一-龥぀-ゟ゠-ヿ]+";
constexpr const char* kHanAndHangul = "[一-龥ࠀ-一가-퟿]+";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Letters of the scripts with two cases, by their numbers: some are lost when a text is normalised.
constexpr const char* kDeepSeekLetters =
    R"(\s?[)"
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c})"
    R"(\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5})"
    R"(\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b})"
    R"(\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45})"
    R"(\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4})"
    R"(\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb})"
    R"(\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139})"
    R"(\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4})"
    R"(\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f})"
    R"(\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17})"
    R"(\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
    R"(]+)";
constexpr const char* kDeepSeekSigns = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The names are those that llama.cpp writes. The patterns are those that the models' own tokenizer.json publish, where
// a name stands for such models; "default" and "falcon" are llama.cpp's own. Names share a row where the patterns are
// the same.
const GgufPreTokenizer kPreTokenizers[] = {
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ", {kDigit, kByteLevelPattern}, false, false},
    {" gpt-2 phi-2 olmo jais mpt gigachat a.x-4.0 mellum exaone4 trillion granite-docling ",
     {kByteLevelPattern},
     false,
     false},
    {" default ", {R"([\p{P}\$\+<=>\^~\|]+)", kByteLevelPattern, R"(\p{N}+)", R"([0-9][0-9][0-9])"}, false, false},
    {" falcon ", {R"([\p{P}\$\+<=>\^~\|`]+)", kByteLevelPattern, R"([0-9][0-9][0-9])"}, false, false},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 midm-2.0 lfm2 ", {kLlama3}, true, true},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", {kLlama3}, false, false},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez kormo hunyuan solar-open ", {kQwen2}, false, false},
    {" qwen35 ", {kQwen35}, false, false},
    {" tekken ", {kTekken}, true, true},
    {" gpt-4o llama4 kanana2 minimax-m2 ", {kGpt4o}, false, false},
    {" deepseek-llm ",
     {kNewline, kDeepSeekLetters, kDeepSeekSigns, R"(\s+$)", kHanAndHangul, R"(\p{N}+)"},
     false,
     false},
    {" deepseek-coder ", {kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kHanAndHangul, kDigit}, false, false},
    {" deepseek-v3 hunyuan-dense joyai-llm ", {kThreeDigits, kKanaAndHan, kDeepSeekV3}, false, false},
    {" bailingmoe bailingmoe2 llada-moe ", {kBailing}, false, false},
    {" seed-coder ", {kSeedCoder}, false, false},
};

}  // namespace

std::string gguf_pre_tokenizer_names() {
  std::string known;
  for (const GgufPreTokenizer& row : kPreTokenizers) {
    const std::string names = row.names;
    for (size_t at = 1; at < names.size();) {
      const size_t end = names.find(' ', at);
      known += (known.empty() ? "" : ", ") + names.substr(at, end - at);
      at = end + 1;
    }
  }
  return known;
}

const GgufPreTokenizer& find_gguf_pre_tokenizer(const std::string& name, const std::string& place) {
  for (const GgufPreTokenizer& row : kPreTokenizers) {
    const bool plain = !name.empty() && name.find(' ') == std::string::npos;
    if (plain && std::string(row.names).find(" " + name + " ") != std::string::npos) return row;
  }
  throw tokenizer_error(place,
                        name.empty() ? "no tokenizer.ggml.pre, so the splitting of words is not known"
                                     : "tokenizer.ggml.pre \"" + name + "\"",
                        "one of " + gguf_pre_tokenizer_names());
}

}  // namespace kvcc
