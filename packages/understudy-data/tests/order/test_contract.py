"""The contract, frozen: the very numbers of this version, on any platform, with any numpy.

`golden/order_v1.json` holds them. If a test here fails, every run that was saved before would
resume into another order: either the change is a mistake, or it needs a new ORDER_VERSION and a new
file (run this file as a script).
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import understudy_data.order
from understudy_data.order import Order, sample_normal, sample_rng, sample_uniform, sample_words
from understudy_data.order.random import ORDER_VERSION, make_key, permutation, permute_each
from understudy_data.order.shares import make_period
from understudy_data.testing.order_sources import Source, episodes

GOLDEN = Path(__file__).parent / "golden" / f"order_v{ORDER_VERSION}.json"


A = episodes(*range(100, 400), name="a")
B = episodes(*[33] * 50, name="b", gop=30)
LONG = Source(
    np.array([[3, 10, 5000], [4, 0, 7777], [3, 6000, 9001]]), "long", gop=250, reach=(2, 0)
)
HUGE = Source(np.array([[0, 0, 10**12], [1, 5, 10**12]]), "huge")
SOURCES = {
    "clips": [A],
    "permuted": [A],
    "uniform": [A],
    "episodes": [A],
    "sequential": [A],
    "key frames": [LONG],
    "huge": [HUGE],
    "mixture": [A, B, LONG],
}
POSITIONS = np.array([0, 1, 2, 63, 64, 1000, 4999, 5000, 12_345, 10**9 + 7, 2**62])


def numbers(specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Everything the contract fixes, as plain numbers; `specs` are saved orders over SOURCES."""
    keys = [(0, "clip", 0, 0), (7, "flow noise"), (2**64 - 1, "a longer purpose", 1, 2, 3)]
    found: dict[str, Any] = {
        "specs": specs,
        "keys": [make_key(*key) for key in keys],
        "period": make_period((5, 3, 2, 1)).source.tolist(),
    }
    for n in (1, 7, 4096, 4097, 65537, 27_000_000, 10**12, 2**63):
        x = np.arange(0, n, max(1, n // 12), dtype=np.uint64)
        found[f"permutation of {n}"] = permutation(n, 0x0123456789ABCDEF).forward(x).tolist()
    x = np.arange(20, dtype=np.uint64) % np.uint64(5)
    sizes = np.full(20, 67, np.uint64)
    found["permuted inside"] = permute_each(
        x, sizes, np.arange(20, dtype=np.uint64) // np.uint64(5)
    ).tolist()
    found["words"] = sample_words(3, "augment", [0, 1, 2**40], 3).tolist()
    found["uniform, as bits"] = (
        sample_uniform(3, "time", [0, 1, 2**40], (5,)).view(np.uint32).tolist()
    )
    found["normal, as bits"] = (
        sample_normal(3, "noise", [0, 1, 2**40], (9,)).view(np.uint32).tolist()
    )
    found["integers"] = sample_rng(3, "pick", 11).integers(-50, 50, (12,)).tolist()
    for name, spec in specs.items():
        order = Order.from_json(spec, SOURCES[name])
        found[f"order {name}"] = [x.tolist() for x in order.locate(POSITIONS)]
        found[f"fingerprint {name}"] = order.spec.fingerprint
    return found


def new_specs() -> dict[str, dict[str, Any]]:
    """Specs of the defaults today; they may change, the meaning of a saved spec may not."""
    asked: dict[str, dict[str, Any]] = {name: {} for name in SOURCES}
    asked |= {name: {"mode": name} for name in ("uniform", "episodes", "sequential")}
    asked["permuted"] = {"inside": "permuted"}
    asked["mixture"] = {"weights": [5, 2, 1]}
    asked["huge"] = {"frames_in_flight": 10**5}
    made = {
        name: Order.from_datasets(
            sources, **{"batch_size": 32, "seed": 5, "frames_in_flight": 8000, **asked[name]}
        )
        for name, sources in SOURCES.items()
    }
    made["mixture"] = made["mixture"].with_weights(5000, {"a": 1, "long": 3})
    return {name: json.loads(order.to_json()) for name, order in made.items()}


def test_golden_numbers():
    golden = json.loads(GOLDEN.read_text())
    now = json.loads(json.dumps(numbers(golden["specs"])))
    assert golden.keys() == now.keys()
    assert golden["specs"].keys() == SOURCES.keys()
    for name, value in golden.items():
        assert now[name] == value, name


def test_the_room_uses_no_library_shuffle_and_nothing_of_ours():
    """numpy's and torch's generators change between versions; libm's functions between
    platforms.
    """
    for path in Path(understudy_data.order.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for module in imported(node):
                top = module.split(".")[0]
                assert top in {"numpy", "understudy_data"} or top in sys.stdlib_module_names - {
                    "random"
                }, (
                    path.name,
                    module,
                )
                ours = module.startswith(("understudy_data.order",))
                assert top != "understudy_data" or ours, (path.name, module)
            if isinstance(node, ast.Attribute):
                assert not ast.unparse(node).startswith("np.random"), (path.name, ast.unparse(node))
            if isinstance(node, ast.Attribute) and path.name in (
                "sample_random.py",
                "philox.py",
                "permute.py",
                "lanes.py",
            ):
                assert node.attr not in ("log", "exp", "sin", "cos", "power", "erf"), (
                    path.name,
                    ast.unparse(node),
                )


def imported(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(numbers(new_specs())) + "\n")
