#!/usr/bin/env python3
"""The reference that `kvcc collect` is timed against: forward and backward of calibration samples in PyTorch from
Python (transformers, sdpa, mean cross-entropy, gradients of the key and value projections alone), f32 on the CPU.
Prints {"seconds_per_sample", "peak_rss_bytes", "mean_loss"}; with --collection also "collection_seconds_per_sample", of
the pass without a gradient that KVQuant's second step collects keys and values in."""
import argparse
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help=".gguf file or Hugging Face directory")
    parser.add_argument("--ids", required=True, help=".npy [n, len]")
    parser.add_argument("--samples", type=int, default=0, help="0: all")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's own choice")
    parser.add_argument("--collection", action="store_true", help="time the collection of activations as well")
    options = parser.parse_args()
    import numpy as np
    import torch
    from reference_model import fisher_pass, llama_from_gguf, tap_keys_and_values
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.model.endswith(".gguf"):
        model = llama_from_gguf(options.model)
    else:
        from transformers import LlamaForCausalLM
        model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    taps = tap_keys_and_values(model)
    ids = np.load(options.ids)
    ids = ids[:options.samples] if options.samples else ids
    losses = []
    start = time.perf_counter()
    for sample in ids:
        losses.append(fisher_pass(model, taps, sample)[0])
        taps.clear()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"seconds_per_sample": seconds / len(ids), "peak_rss_bytes": peak, "mean_loss": sum(losses) / len(losses),
               "samples": len(ids)}
    if options.collection:
        start = time.perf_counter()
        with torch.no_grad():
            for sample in ids:
                model.model(torch.as_tensor(sample, dtype=torch.long)[None], use_cache=False)
                taps.clear()
        figures["collection_seconds_per_sample"] = (time.perf_counter() - start) / len(ids)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
