"""An order in words."""

from collections.abc import Sequence

from understudy.order.spec import EXACT_VERSION, SourceSpec, Spec


def in_words(spec: Spec, reasons: Sequence[Sequence[str]], off: Sequence[tuple[int, float, float]]) -> str:
    """Describe an order, a line per fact.

    Args:
        spec: of the order.
        reasons: for the settings of each source; empty for a saved order.
        off: (source, its share, the requested share) of sources that miss it.
    """
    lines = [f"order {spec.fingerprint[:12]}, seed {spec.seed}, global batch {spec.batch}"]
    for d, source in enumerate(spec.sources):
        lines.append(f"{source.name}: {source.frames} frames in {source.segments} segments; {_source_in_words(source)}")
        lines += [f"  - {reason}" for reason in (reasons[d] if d < len(reasons) else ())]
    for entry in spec.schedule:
        total = sum(entry.slots)
        named = [(s.name, count) for s, count in zip(spec.sources, entry.slots) if count]
        if len(spec.sources) > 1:
            exact = spec.version == EXACT_VERSION
            counts = [f" ({count} of {total})" if not exact else "" for _, count in named]
            shares = ", ".join(f"{name} {n / total:.2%}{of}" for (name, n), of in zip(named[:20], counts))
            more = f" and {len(named) - 20} more" if len(named) > 20 else ""
            lines.append(f"from position {entry.position}: {shares}{more}")
    if off:
        d, share, target = off[0]
        others = f", and {len(off) - 1} more are off by over 1 %" if len(off) > 1 else ""
        met = f"shares are met to the nearest of {sum(spec.schedule[-1].slots)} slots"
        lines.append(f"{met}: {spec.sources[d].name} has {share:.4%}, requested were {target:.4%}{others}")
    return "\n".join(lines)


def _source_in_words(source: SourceSpec) -> str:
    if not source.shuffle:
        return "read in storage order"
    if source.clip == 1:
        return "shuffled frame by frame" + (f" in {source.lanes} lanes" if source.lanes > 1 else "")
    cut = ", cut at key frames" if source.cut == "keyframe" else ""
    return f"{source.lanes} lanes of clips of {source.clip}{cut}, {source.inside} inside a clip"
