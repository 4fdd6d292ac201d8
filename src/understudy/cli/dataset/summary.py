"""Progress and summary of the commands that write datasets."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.plural import plural

_LARGER = 2.0
"""Ratio of bytes from which a summary names `--crf`."""

if TYPE_CHECKING:
    from understudy.data.format.catalog import Catalog
    from understudy.edit.plan import Plan
    from understudy.edit.recommend import Choice
    from understudy.edit.write_set import Written


def write_and_print(plans: "Mapping[str, Plan]", out: Path, num_workers: int | None, as_json: bool) -> None:
    """Write datasets into the new folder `out`, and print a summary."""
    from understudy.cores import available_cores
    from understudy.edit.write_set import write_outputs
    from understudy.progress import Progress

    workers = num_workers or available_cores()
    with Progress(sum(plan.work for plan in plans.values()), "edit", "frame") as bar:
        written = write_outputs(plans, out, ["understudy", *sys.argv[1:]], workers, bar.update)
    facts = {name: describe(plans[name], own, out / name if name else out) for name, own in written.items()}
    if as_json:
        print(json.dumps(facts[""] if list(facts) == [""] else facts, ensure_ascii=False))
        return
    for own in facts.values():
        print("\n".join(format_summary(own)))


def measure_and_print(catalog: "Catalog", pixels: int, as_json: bool) -> None:
    """Measure ways to store the videos of a dataset for a policy, and print them with the recommended one."""
    from understudy.edit.recommend import CANDIDATES, recommend
    from understudy.progress import Progress

    cameras = sum(feature.is_video for feature in catalog.features.values())
    with Progress(cameras * len(CANDIDATES), "recommend", "encoding") as bar:
        choices = recommend(catalog, pixels, bar.update)
    facts = [_describe_choice(choice) for choice in choices]
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    print(f"{'':12}{'codec':10}{'GOP':>4}{'size':>10}{'bytes':>9}{'PSNR dB':>9}{'SSIM':>8}  CPU ms per image")
    for own in facts:
        if own["psnr_db"] is None:
            print(f"{own['camera']}:")
        mark = "  recommended" if own["is_recommended"] else ""
        quality = f"{own['psnr_db']:9.1f}{own['ssim']:8.4f}" if own["psnr_db"] is not None else f"{'as it is':>17}"
        cost = f"{own['decode_ms']['stretch']:.3f} in a row, {own['decode_ms']['single']:.3f} at random{mark}"
        print(f"{'':12}{own['codec']:10}{own['gop']:4}{own['size']:>10}{own['bytes']:9,.0f}{quality}  {cost}")
    best = next(own for own in facts if own["is_recommended"])
    settings = f"--size {pixels} --codec {best['codec']} --gop {best['gop']}"
    print(f"recommended: understudy edit {catalog.root} OUT {settings}")


def _describe_choice(choice: "Choice") -> dict[str, Any]:
    height, width = choice.size
    return {
        "camera": choice.camera,
        "codec": choice.codec,
        "gop": choice.gop,
        "size": f"{width}x{height}",
        "bytes": choice.bytes,
        "psnr_db": _finite(choice.quality.psnr) if choice.quality.images else None,
        "ssim": choice.quality.ssim if choice.quality.images else None,
        "decode_ms": asdict(choice.cost),
        "is_recommended": choice.is_recommended,
    }


def describe(plan: "Plan", written: "Written", root: Path) -> dict[str, Any]:
    """Return the facts of one output; cameras that were encoded again have quality and decode cost."""
    from understudy.data.format.catalog import Catalog
    from understudy.edit.recommend import measure_cost

    facts: dict[str, Any] = {
        "root": str(root),
        "episodes": written.episodes,
        "frames": written.frames,
        "tasks": written.tasks,
        "timestamps_rewritten": written.clocks,
        "undeclared_columns": written.undeclared,
        "skipped_features": {key: why for source in plan.sources for key, why in source.skipped_features.items()},
        "cameras": {},
    }
    after = Catalog.open(root)
    for key in plan.cameras:
        before_bytes, bytes_now = written.bytes[key]
        own: dict[str, Any] = {"copied": written.copied[key], "encoded": written.encoded[key]}
        own |= {"bytes_before": before_bytes, "bytes": bytes_now}
        if written.encoded[key]:
            quality = written.quality[key]
            own |= {"images_compared": quality.images, "psnr_db": _finite(quality.psnr), "ssim": quality.ssim}
        if key in plan.encode:
            cost = measure_cost(plan.sources, plan.pieces, after, key)
            own |= {"decode_ms_before": asdict(cost[0]), "decode_ms": asdict(cost[1])}
        facts["cameras"][key] = own
    return facts


def format_summary(facts: Mapping[str, Any]) -> list[str]:
    """Format the facts for a terminal."""
    counts = ", ".join(plural(facts[f"{unit}s"], unit) for unit in ("episode", "frame", "task"))
    lines = [f"{facts['root']}: {counts}"]
    for key, own in facts["cameras"].items():
        sizes = f"{_size(own['bytes_before'])} -> {_size(own['bytes'])}"
        lines.append(f"  {key}: {plural(own['copied'], 'episode')} copied, {own['encoded']:,} encoded, {sizes}")
        if own["encoded"]:
            compared = f"{own['images_compared']:,} images compared"
            psnr = "equal images" if own["psnr_db"] is None else f"PSNR {own['psnr_db']:.1f} dB"
            lines.append(f"    {psnr}, SSIM {own['ssim']:.4f} ({compared})")
        if own["encoded"] and own["bytes"] > _LARGER * max(1, own["bytes_before"]):
            lines.append(
                f"    {own['bytes'] / own['bytes_before']:.1f} times the bytes: other cuts than at key frames encode; "
                f"`understudy edit {facts['root']} OUT --crf N` with a larger N makes them smaller"
            )
        if "decode_ms" in own:
            before, after = own["decode_ms_before"], own["decode_ms"]
            lines.append(
                f"    decoding, CPU ms per image: {before['stretch']:.3f} -> {after['stretch']:.3f} in a row, "
                f"{before['single']:.3f} -> {after['single']:.3f} at random places"
            )
    if facts["timestamps_rewritten"]:
        lines.append(f"  timestamps of {facts['timestamps_rewritten']:,} episodes differed from frame / fps; now equal")
    lines += [f"  column {name} is not declared in info.json: left out" for name in facts["undeclared_columns"]]
    lines += [f"  {key} {why}: left out" for key, why in facts["skipped_features"].items()]
    return lines


def _finite(psnr: float) -> float | None:
    """PSNR as JSON holds it; None for equal images."""
    return psnr if isfinite(psnr) else None


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"
