#include "calib/cli/eval_options.h"

namespace kvcc::cli {

void define_eval(CLI::App& app, EvalSettings& o) {
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("--codebook", o.codebooks, "Artifact F.kvcb, may be repeated");
  app.add_option("--scheme", o.schemes, "Scheme that needs no artifact, such as int4; may be repeated");
  app.add_option(
      "--calibration", o.calibration,
      "Text D[:split], or token ids .npy, from which rotations are made for oscar-qk, which no artifact holds "
      "(default wikitext-2; with it --schemes-all has oscar-qk too)");
  app.add_option("--calibration-samples", o.calibration_samples, "Windows of it, of --seqlen tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_flag("--schemes-all", o.all_schemes, "All presets that need no artifact");
  CLI::Option* dataset =
      app.add_option("--dataset", o.dataset,
                     "Text D[:split], or 'self' for samples of the model itself (default wikitext-2:evaluation)");
  CLI::Option* text = app.add_option("--text", o.text, "Text files");
  CLI::Option* ids = app.add_option("--ids", o.ids, "Token ids, .npy int32 [n], cut into windows, or [n, len]");
  dataset->excludes(text)->excludes(ids);
  text->excludes(ids);
  app.add_option("--windows", o.windows, "Windows from the start of the text; 0: all of it (with --dataset self: 8)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a window")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--bos", o.bos, "Begin each window with the BOS token: auto (as the model says), on or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "on", "off"}).description(""));
  app.add_option("--seed", o.seed, "Seed of --dataset self, and of tasks")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option("--mode", o.modes,
                 "full: all of a window is quantised in one pass; pseudo-decode: blocks against the quantised blocks "
                 "before, their own tokens exact; prefill-exact: a prompt whose tokens see each other exactly, then "
                 "token by token. May be repeated (default full; with --schemes-all full and pseudo-decode)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"full", "pseudo-decode", "prefill-exact"}).description(""));
  app.add_option("--block", o.block, "Tokens of a block of pseudo-decode")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24).description(""));
  app.add_option("--prompt", o.prompt, "Tokens of prefill-exact's prompt; 0: half of the window")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24).description(""));
  app.add_option("--sink", o.sink, "First tokens that every scheme keeps exactly, 0 for none (default: as each says)")
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option("--tail", o.tail, "Last tokens that every scheme keeps exactly, 0 for none (default: as each says)")
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option("--evict", o.evict,
                 "Evict tokens from every scheme's cache, and from full precision's: h2o:BUDGET, snapkv:BUDGET or "
                 "pyramidkv:BUDGET, tokens a head; in mode pseudo-decode or prefill-exact");
  app.add_option("--repair", o.repairs,
                 "KL with the worst P % of the tokens of each layer exact, and with the rest exact; may be repeated "
                 "(two passes more a scheme each)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 100.0).description(""));
  app.add_option("--attention", o.attention,
                 "Compare attention itself at N queries a window: KL of its weights and error of its output by layer "
                 "and head; 0: no")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option(
         "--task", o.tasks.tasks,
         "In place of windows: greedy answers to passkey, lines, codes or needle, made on the spot, with a size "
         "(passkey:4096 tokens, lines:200), or to a file of longbench, ruler, gsm8k, math500, humaneval or "
         "ifeval (gsm8k=FILE). The prompt's tokens see each other exactly, or with --mode full the quantised "
         "cache. May be repeated")
      ->allow_extra_args(false);
  app.add_option("--samples", o.tasks.samples, "Samples of each task; 0: 10, or all of a file")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24).description(""));
  app.add_flag("--run-code", o.tasks.run_code,
               "HumanEval: execute with python3 what the model wrote (limits of time and memory, no sandbox)");
  app.add_option("--html", o.html, "Also write a report to look at, one HTML file");
  app.add_option("--journal", o.journal,
                 "File of what is done, window by window, for --resume (default: in the cache folder, removed when all "
                 "is done)");
  app.add_option("--max-ppl", o.max_ppl, "Exit with 5 when a scheme's perplexity is above this, a number above 0")
      ->check(CLI::PositiveNumber.description(""));
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
  app.add_option("--context", o.context, "Tokens in the cache for which effective bits are counted")
      ->capture_default_str();
  app.add_option("--amortise", o.amortise, "Cached tokens that share codebooks and static scales, in effective bits")
      ->capture_default_str();
}

}  // namespace kvcc::cli
