"""Margins of the thresholds of `understudy check`: the nearest planted fault and sound dataset.

    python lab/benchmarks/thresholds.py [--json] [--out FILE]

Facts are read once. Then each number with a `Threshold` is multiplied by a factor until findings
change. Where a fault is lost, the factor is the ratio of its measured value to the number; where a
sound dataset raises an alarm, that of the sound value. A number that no factor makes blind to its
faults has no reason.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

import planted_faults as planted
from parsers import make_parser
from understudy_data import Catalog
from understudy_tools.check import examine
from understudy_tools.check.examine import Facts, apply_rules
from understudy_tools.check.findings import Finding
from understudy_tools.check.threshold import Threshold

MODULES = "understudy_tools.check."
FAR = (1e6, 100.0, 4.0, 2.0, 1.25)
"""Factors at which a threshold is as good as absent, of those that a rule can compute with."""
PRECISION = 0.01
"""Logarithm of the ratio to which a margin is measured."""
Table = dict[str, dict[str, Any]]
Changed = Callable[[list[Finding]], bool]


@dataclass(frozen=True)
class Number:
    """A number of the rules with its origin.

    Attributes:
        module: the module that defines it.
        name: its name there.
        value: the number.
        origin: its meaning and its faults.
    """

    module: ModuleType
    name: str
    value: float
    origin: Threshold

    def __str__(self) -> str:
        return f"{self.module.__name__.removeprefix(MODULES)}.{self.name}"

    @property
    def _holders(self) -> dict[str, ModuleType]:
        """Modules that have the number: its own, and those that import it."""
        holders = {self.module.__name__: self.module}
        for name, module in _modules().items():
            if vars(module).get(self.name) is self.value and self.name not in _origins(module):
                holders[name] = module
        return holders

    @contextmanager
    def multiplied(self, factor: float) -> Iterator[None]:
        """Multiply the number in all modules that have it, while the context is open."""
        holders = [vars(module) for module in self._holders.values()]
        for holder in holders:
            holder[self.name] = self.value * factor
        try:
            yield
        finally:
            for holder in holders:
                holder[self.name] = self.value


def _modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.startswith(MODULES)}


def _origins(module: ModuleType) -> dict[str, Threshold]:
    hints = vars(module).get("__annotations__", {})
    data = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: origin for name, origin in data.items() if isinstance(origin, Threshold)}


def find_numbers() -> list[Number]:
    """Return the numbers of all rules, by module."""
    found = []
    for _, module in sorted(_modules().items()):
        for name, origin in _origins(module).items():
            found.append(Number(module, name, vars(module)[name], origin))
    return found


def _reads(function: FunctionType, number: Number) -> bool:
    """Return whether a function, or one that it calls, reads a number."""
    seen: set[Any] = set()
    waiting: list[Any] = [function]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type):
            waiting += vars(one).values()
        if not isinstance(one, FunctionType) or one in seen:
            continue
        seen.add(one)
        names = one.__globals__ if one.__module__.startswith(MODULES) else {}
        codes = [one.__code__]
        for code in codes:
            codes += [part for part in code.co_consts if isinstance(part, CodeType)]
            if number.name in code.co_names and names.get(number.name) is number.value:
                return True
            waiting += [names.get(name) for name in code.co_names]
    return False


@cache
def _others(number: Number) -> dict[str, Any]:
    """Rules that do not read a number, by the name of their function."""
    checks = {key: value for key, value in vars(examine).items() if key.startswith("check_")}
    return {key: check for key, check in checks.items() if not _reads(check, number)}


@contextmanager
def only_rules_with(number: Number) -> Iterator[None]:
    """Apply no rules but those that read a number, for as long as the context is open."""
    vars(examine).update(dict.fromkeys(_others(number), lambda *facts: iter(())))
    try:
        yield
    finally:
        vars(examine).update(_others(number))


def findings_at(number: Number, factor: float, facts: Facts) -> list[Finding]:
    """Return the findings about a dataset with a threshold multiplied by a factor.

    Raises:
        ValueError, IndexError: a rule cannot compute with it, as with a share above 1.
    """
    with only_rules_with(number), number.multiplied(factor), np.errstate(all="ignore"):
        return list(apply_rules(facts))


def margin(number: Number, facts: Facts, changed: Changed, up: bool) -> float | None:
    """Return the factor, above 1 with `up` and else below, from which findings change, or None."""
    step = 1.0 if up else -1.0
    for far in FAR:
        try:
            if not changed(findings_at(number, far**step, facts)):
                return None
        except (ValueError, IndexError):
            continue
        break
    else:
        return None
    near = 0.0
    end = float(np.log(far))
    while end - near > PRECISION:
        middle = (near + end) / 2
        if changed(findings_at(number, float(np.exp(step * middle)), facts)):
            end = middle
        else:
            near = middle
    return float(np.exp(step * end))


def nearest(number: Number, facts: Facts, changed: Changed) -> float | None:
    """Return the one of both margins that is nearer to 1; None without one."""
    margins = [margin(number, facts, changed, up) for up in (True, False)]
    known = [factor for factor in margins if factor is not None]
    return min(known, key=lambda factor: abs(np.log(factor)), default=None)


def is_lost(number: Number, fault: planted.Fault, facts: Facts) -> Changed:
    """Return whether findings do not name a fault, or with another severity than usual."""
    episodes = facts.catalog.num_episodes

    def severities(found: list[Finding]) -> set[str]:
        return {one.severity for one in found if fault.is_named_by(one, episodes)}

    usual = severities(findings_at(number, 1.0, facts))
    return lambda found: severities(found) != usual


def is_alarm(number: Number, facts: Facts) -> Changed:
    """Return whether findings about a sound dataset hold an alarm that the threshold prevents."""
    usual = {(one.rule, one.place) for one in _alarms(findings_at(number, 1.0, facts))}
    return lambda found: any((one.rule, one.place) not in usual for one in _alarms(found))


def _alarms(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.severity in ("error", "warning")]


def measure_fault(
    numbers: list[Number], fault: planted.Fault, facts: Facts
) -> dict[str, float | None]:
    """Return the margin of each number for which a fault is planted, by the number's name."""
    own = [number for number in numbers if fault.name in number.origin.fault.split()]
    return {str(number): nearest(number, facts, is_lost(number, fault, facts)) for number in own}


def measure_sound(numbers: list[Number], facts: Facts) -> dict[str, float | None]:
    """Return the margin of each number to the alarm on a sound dataset, by the number's name."""
    return {str(number): nearest(number, facts, is_alarm(number, facts)) for number in numbers}


def make_table(
    numbers: list[Number],
    faults: dict[str, dict[str, float | None]],
    sound: dict[str, dict[str, float | None]],
) -> Table:
    """Return the nearest fault and the nearest sound dataset of each number, with their margins."""
    table: Table = {}
    for number in numbers:
        entry = table[str(number)] = {"value": number.value, "meaning": number.origin.meaning}
        for kind, margins in (("fault", faults), ("sound", sound)):
            known = {}
            for title, own in margins.items():
                if (factor := own.get(str(number))) is not None:
                    known[title] = factor
            near = min(known, key=lambda title: abs(np.log(known[title])), default=None)
            entry[kind] = near
            entry[f"{kind}_margin"] = None if near is None else float(f"{known[near]:.3g}")
    return table


def measure() -> Table:
    """Plant the faults of all numbers, and read all sound datasets."""
    numbers = find_numbers()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        bases = planted.write_bases(folder)
        faults = {}
        for fault in planted.FAULTS:
            if fault.version in bases and any(
                fault.name in n.origin.fault.split() for n in numbers
            ):
                with planted.planted(fault, bases, folder) as root:
                    facts = examine.examine(Catalog.open(root), fault.depth)
                    faults[fault.name] = measure_fault(numbers, fault, facts)
        sound = {}
        for title, path in planted.sound_sets(bases, folder).items():
            sound[title] = measure_sound(numbers, examine.examine(Catalog.open(path)))
    return make_table(numbers, faults, sound)


def main(arguments: list[str] | None = None) -> None:
    """Print the table of margins."""
    parser = make_parser(__doc__, whole=True)
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args(arguments)
    table = measure()
    if args.out:
        Path(args.out).write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    if args.json:
        print(json.dumps(table))
        return
    for name, entry in table.items():
        print(f"{name} {entry['value']:g}: {entry['meaning']}")
        for kind in ("fault", "sound"):
            print(f"  {kind} {entry[kind]} at {entry[f'{kind}_margin']} of it")


if __name__ == "__main__":
    main()
