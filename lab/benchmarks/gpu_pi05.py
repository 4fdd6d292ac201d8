"""pi0.5 on one GPU in ten minutes: speed, memory, attention and latency, on dummy data with fresh
weights.

    python lab/benchmarks/gpu_pi05.py [--minutes 9] [--out gpu-pi05] [--only KIND ...]
        [--size base|tiny] [--device cuda]

Three cameras of 224x224, 200 tokens of text, 50 actions. The most important rows come first; each
is measured in a process of its own and written at once, to `gpu-pi05.json` and `gpu-pi05.md` in the
folder `--out`. Rows for which the time does not suffice are listed as skipped. A row that fails is
a result, too: "OOM", or its error.

    train        samples/s, tokens/s, MFU and memory of a training run's own step; also with
                 low-rank adapters, with six frames per camera, and with samples of one to three
                 cameras, padded and packed
    sampling     latency at batch 1: prefix, Euler step, ten steps; with and without compiled blocks
                 and a CUDA graph
    attention    back-end and time of each kind of attention
    memory       memory that `understudy plan` predicts for rows of `train`

It needs torch, numpy, safetensors, msgspec and pydantic; `memory` also needs pyarrow and av. The
sources are those of this checkout. MFU is the arithmetic of forward and backward, computed once,
over the peak of the data sheet.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = sorted(map(str, HERE.parents[1].glob("packages/*/src")))
LEAST = 20.0
"""Seconds below which no row is started."""
MOST = 200.0
"""Seconds after which a row is given up, so that one does not take the time of all."""
ARITHMETIC = {"fp32": "tf32", "bf16": "bfloat16", "bf16-split": "bfloat16"}
PRECISIONS = ("bf16-split", "bf16", "fp32")
CHECKPOINTS = ("full", "selective", "none")
BATCHES = (32, 64, 16)
GOALS = (
    "Goals on one H200: 28 samples/s (40 % MFU), below 60 GiB at batch 32 (bf16-split, full), "
    "all of a sample <= 25 ms."
)
SPECIAL: tuple[dict[str, Any], ...] = (
    {},
    {"history": 6},
    {"mixture": True},
    {"mixture": True, "packed": True},
)
"""Rows of `train` at batch 16 that are compared with each other: past frames, packing."""
RATES = {
    "samples/s": "samples_per_s",
    "tokens/s": "tokens_per_s",
    "MFU": "mfu",
    "of TF/s": "peak_tflops_per_s",
    "peak GiB": "peak_gib",
    "first step s": "first_step_s",
}
NOTES = {
    "masked": "padded text, missing cameras",
    "history": "6 frames",
    "mixture": "1, 2, 3 cameras, short and long text",
    "packed": "packed",
    "lora": "LoRA",
}
"""Field of a row of `train` -> note in its table."""
SMALL = {"tiny": {32: 4, 64: 6, 16: 2}, "base": {}}
"""Batches of the small size, in place of those of the table."""

Row = dict[str, Any]


def rows(size: str, device: str) -> list[Row]:
    """All rows, the most important first; on a CPU, where compilation takes minutes, none that is
    compiled.
    """
    common = {"size": size, "device": device}

    def batch(count: int) -> int:
        return SMALL[size].get(count, count)

    def train(precision: str, checkpoint: str, compiled: bool, count: int, **more: Any) -> Row:
        setting = {
            "precision": precision,
            "checkpoint": checkpoint,
            "compile": compiled,
            "batch": batch(count),
        }
        return {"kind": "train", **common, **setting, **more}

    def memory(precision: str, checkpoint: str, count: int) -> Row:
        setting = {"precision": precision, "checkpoint": checkpoint, "batch": batch(count)}
        return {"kind": "memory", **common, **setting}

    found = [
        train("bf16-split", "full", False, 32),
        train("bf16-split", "full", True, 32),
        {"kind": "sampling", **common, "stored": "bfloat16", "compile": True},
        {"kind": "attention", **common, "batch": batch(16)},
        train("bf16-split", "selective", True, 32),
        train("bf16", "full", False, 32, lora=16),
        train("bf16-split", "full", True, 64),
        train("bf16-split", "full", False, 32, masked=True),
        train("bf16", "full", False, 32),
        {"kind": "sampling", **common, "stored": "bfloat16"},
        *(train("bf16-split", "full", False, 16, **more) for more in SPECIAL),
        memory("bf16-split", "full", 32),
        memory("bf16-split", "selective", 32),
        train("bf16", "full", True, 32),
        train("fp32", "full", True, 32),
        train("bf16-split", "none", True, 16),
        {"kind": "sampling", **common, "stored": "float32", "compile": True},
        memory("bf16", "full", 32),
    ]
    for count in BATCHES:
        for checkpoint in CHECKPOINTS:
            for precision in PRECISIONS:
                found += [
                    train(precision, checkpoint, compiled, count) for compiled in (True, False)
                ]
    unique: list[Row] = []
    for row in found:
        if row not in unique and not (row.get("compile") and device == "cpu"):
            unique.append(row)
    return unique


def run_row(row: Row, seconds: float) -> Row:
    """Measure a row in a process of its own."""
    path = os.pathsep.join(filter(None, (*SOURCES, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, str(HERE / "gpu_pi05_rows.py"), json.dumps(row)]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    begun = time.monotonic()
    out = subprocess.PIPE
    child = subprocess.Popen(
        command, env=environment, stdout=out, stderr=out, text=True, start_new_session=True
    )
    error = None
    try:
        printed, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        error = f"not done after {seconds:.0f} seconds"
        os.killpg(child.pid, signal.SIGKILL)  # the whole process group: compilers, too
        printed, errors = child.communicate()
    try:
        found = json.loads(printed.strip().splitlines()[-1])
        if isinstance(found, dict) and found.get("kind") == row["kind"]:
            return found
    except (IndexError, json.JSONDecodeError):
        pass
    tail = " ".join(errors.split())[-400:]
    return {
        **row,
        "error": error or f"ended with {child.returncode}: {tail}",
        "seconds": time.monotonic() - begun,
    }


def with_rates(row: Row, device: str) -> Row:
    """Add tokens/s and MFU to a row of `train`; None where samples differ from the formula."""
    sys.path[:0] = [path for path in (str(HERE), *SOURCES) if path not in sys.path]
    from gpu_pi05_run import forward_flops, sample_tokens, sizes_of
    from understudy.train.profiling.data_sheets import peak_flops

    if row["kind"] != "train" or "samples_per_s" not in row:
        return row
    rate = row["samples_per_s"]
    tokens = sample_tokens(row["size"])
    flops = 3 * forward_flops(sizes_of(row["size"]), **tokens)
    peak = peak_flops(device, ARITHMETIC[row["precision"]])
    rates: Row = dict.fromkeys(("tokens_per_s", "tflops_per_s", "peak_tflops_per_s", "mfu"))
    if not row.get("history") and not row.get("mixture"):
        rates |= {
            "tokens_per_s": round(rate * sum(tokens.values()), 1),
            "tflops_per_s": round(rate * flops / 1e12, 2),
        }
        rates["peak_tflops_per_s"] = peak and peak / 1e12
        rates["mfu"] = (
            round(rate * flops / peak, 4)
            if peak and not (row.get("masked") or row.get("lora"))
            else None
        )
    return row | rates


def page(found: dict[str, Any]) -> str:
    """The results as markdown, rows for lab/journal/performance.md."""
    lines = [
        "Conditions: "
        + ", ".join(f"{name} {value}" for name, value in found["conditions"].items())
        + ".",
        GOALS,
    ]
    predicted = {_settings(row): row for row in found["rows"] if row["kind"] == "memory"}
    table = [row for row in found["rows"] if row["kind"] == "train"]
    if table:
        lines += _head("train", *RATES, "predicted GiB")
    for row in table:
        prediction = predicted.get(_settings(row | {"compile": False}), {})
        cells = [row.get(name) for name in RATES.values()] + [
            prediction.get("peak_gib", prediction.get("error"))
        ]
        lines.append(_line([_settings(row), *([row["error"]] if "error" in row else cells)]))
    for row in found["rows"]:
        if row["kind"] == "sampling":
            lines += _head(
                f"sampling, ms: {_settings(row)}", "p50", "p99", "CUDA graph: p50", "p99"
            )
            for name in ("prefill", "step", "ten steps", "all"):
                times = [row.get(name, {}).get(kind, {}) for kind in ("plain", "graph")]
                lines.append(
                    _line(
                        [
                            name,
                            *(
                                time.get(p, time.get("error"))
                                for time in times
                                for p in ("p50", "p99")
                            ),
                        ]
                    )
                )
        elif row["kind"] == "attention":
            lines += _head(
                f"attention, {_settings(row)}", "back-end", "forward and backward ms", "kernels"
            )
            for name, call in row.get("calls", {}).items():
                taken = call.get("error") or ", ".join(
                    f"{name} {count}" for name, count in call["back_ends"].items()
                )
                lines.append(
                    _line([name, taken, call.get("ms"), "; ".join(call.get("kernels", ()))])
                )
        if "error" in row:
            lines += ["", f"{row['kind']} {_settings(row)}: {row['error']}"]
    if found["skipped"]:
        lines += [
            "",
            f"Skipped after {found['minutes']:g} minutes (`--minutes`), or by `--rows`:",
            "",
        ]
        lines.append("; ".join(f"{row['kind']} {_settings(row)}" for row in found["skipped"]))
    return "\n".join(lines) + "\n"


def _settings(row: Row) -> str:
    names = ("precision", "checkpoint", "stored", "batch")
    words = [str(row[name]) for name in names if name in row]
    notes = {"compile": "compiled", **NOTES}
    return ", ".join(words + [text for name, text in notes.items() if row.get(name)])


def _head(*cells: str) -> list[str]:
    return ["", _line(cells), "|" + "---|" * len(cells)]


def _line(cells: Any) -> str:
    return "| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time of all rows (default 9)")
    parser.add_argument(
        "--out", default="gpu-pi05", help="folder of the results (default gpu-pi05)"
    )
    parser.add_argument("--size", choices=("base", "tiny"), default="base")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="*", default=(), help="kinds of rows; default: all")
    parser.add_argument("--rows", type=int, help="measure no more than this many rows")
    args = parser.parse_args(arguments)
    ends = time.monotonic() + 60 * args.minutes
    out = Path(args.out)
    known = run_row({"kind": "conditions", "size": args.size, "device": args.device}, 120)
    if "error" in known:
        print(
            f"gpu_pi05: no {args.device} device can be used here: {known['error']}", file=sys.stderr
        )
        return 1
    out.mkdir(parents=True, exist_ok=True)
    conditions = {
        name: value for name, value in known.items() if name not in ("kind", "size", "seconds")
    }
    found: dict[str, Any] = {
        "conditions": conditions,
        "minutes": args.minutes,
        "rows": [],
        "skipped": [],
    }
    for row in rows(args.size, args.device):
        if args.only and row["kind"] not in args.only:
            continue
        left = ends - time.monotonic()
        if left < LEAST or (args.rows is not None and len(found["rows"]) >= args.rows):
            found["skipped"].append(row)
            continue
        measured = with_rates(run_row(row, min(left, MOST)), known["name"])
        found["rows"].append(measured)
        print(
            f"{row['kind']} {_settings(row)}: {json.dumps(_short(measured))}",
            file=sys.stderr,
            flush=True,
        )
        _write(found, out)
    _write(found, out)
    print(page(found))
    return int(not any("error" not in row for row in found["rows"]))


def _short(row: Row) -> Row:
    names = ("error", "samples_per_s", "mfu", "peak_gib", "all", "seconds")
    return {name: row[name] for name in names if name in row}


def _write(found: dict[str, Any], out: Path) -> None:
    (out / "gpu-pi05.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "gpu-pi05.md").write_text(page(found))


if __name__ == "__main__":
    sys.exit(main())
