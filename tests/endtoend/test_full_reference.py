"""KVQuant's own figures on the same ids (shared/design/REFERENCE.md), windows 0 to 7. Long: about ten minutes."""
import numpy as np
import pytest

from support import data_path, kvcc, kvcc_json, model_path

# scheme: dNLL of the reference, tolerance. int3's loss is chaotic: the rounding of the matrix products decides codes, and codes
# decide later codes. The same formula gave 1.5536 here, 1.5365 in transformers on the same machine, 1.5399 and 1.5630 with
# oneDNN's and MKL's products, and 1.5656 in the reference, so a closer limit would test the processor.
REFERENCE = {"int4": (0.26287, 0.01), "int3": (1.56561, 0.04),
             "kvquant-nuq4-1%-sink1": (0.02091, 0.01), "kvquant-nuq3-1%-sink1": (0.07814, 0.02),
             "kvquant-nuq2-1%-sink1": (0.39784, 0.06)}
OURS = [f"kvcc-nuq{b}-1%-sink1" for b in (4, 3, 2)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    np.save(folder / "evaluation.npy", np.load(data_path("smollm2/evaluation_ids.npy")).astype(np.int32))
    acts = folder / "s.acts"
    kvcc("collect", model_path(), "-o", acts, "--ids", data_path("smollm2/calibration_ids.npy"))
    fitted = [s for s in REFERENCE if s.startswith("kvquant")] + OURS
    arguments = ["fit", acts, "-o", folder / "s"]
    for scheme in fitted:
        arguments += ["--scheme", scheme]
    kvcc(*arguments)
    arguments = ["eval", model_path(), "--ids", folder / "evaluation.npy", "--windows", 8, "--scheme", "int4", "--scheme",
                 "int3"]
    for scheme in fitted:
        arguments += ["--codebook", folder / f"s.{scheme}.kvcb"]
    found = {row["scheme"]: row for row in kvcc_json(*arguments)["results"]}
    for row in found.values():
        print(row["scheme"], row["effective_bits"], row["perplexity"], row["nll"] - found["fp"]["nll"], row.get("kl"))
    return found


def test_full_precision(rows):
    assert rows["fp"]["perplexity"] == pytest.approx(19.2645, abs=0.002)


@pytest.mark.parametrize("scheme", REFERENCE)
def test_reference_is_reproduced(rows, scheme):
    wanted, tolerance = REFERENCE[scheme]
    assert rows[scheme]["nll"] - rows["fp"]["nll"] == pytest.approx(wanted, abs=tolerance)


@pytest.mark.parametrize("bits", (4, 3, 2))
def test_ours_is_at_or_below_the_reference(rows, bits):
    ours = rows[f"kvcc-nuq{bits}-1%-sink1"]["nll"] - rows["fp"]["nll"]
    assert ours <= REFERENCE[f"kvquant-nuq{bits}-1%-sink1"][0]
