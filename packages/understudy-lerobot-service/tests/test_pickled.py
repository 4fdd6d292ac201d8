"""Pickles of LeRobot's client are read without `pickle`: all of its values, and nothing that runs
code.
"""

import io
import os
import pickle
import struct
import subprocess
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgpack", reason="needs the extra serve")

from support.lerobot_client import (
    FEATURES,
    RemotePolicyConfig,
    TimedObservation,
    pickled,
    raw,
    unpickled,
)
from understudy_base.testing.refusals import refused
from understudy_client import MessageError
from understudy_client.testing.arm import arm_observations
from understudy_lerobot_service.messages import (
    MODULES,
    read_instructions,
    read_observation,
    write_actions,
)
from understudy_lerobot_service.pickles import (
    MOST_OPERATIONS,
    NAMES,
    Budget,
    read_array,
    read_pickle,
)

SENT = pickled(TimedObservation(1.5, 3, raw(arm_observations(1)[0]), True))


def received(value: Any, protocol: int = 4) -> Any:
    data = pickled(TimedObservation(1.5, 3, {"value": value}), protocol)
    return read_observation(data).values["value"]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_an_observation_of_the_client_is_read(protocol: int, module: str) -> None:
    values = raw(arm_observations(1)[0])
    found = read_observation(pickled(TimedObservation(1.5, 3, values, True), protocol, module))
    assert (found.timestamp, found.timestep, found.must_go, found.module) == (1.5, 3, True, module)
    assert list(found.values) == list(values)
    for key, value in values.items():
        assert np.array_equal(found.values[key], value), key


@pytest.mark.parametrize(
    "timestamp", [None, "1.5", 10**400, -(10**400), float("nan"), float("inf"), 1e300]
)
def test_an_observation_has_a_time_in_seconds(timestamp: Any) -> None:
    with refused("timestamp", kind=MessageError):
        read_observation(pickled(TimedObservation(timestamp, 3, {}, True)))


NUMBERS = np.arange(24).reshape(2, 3, 4)
ARRAYS = [
    NUMBERS.astype(np.uint8),
    NUMBERS.astype(np.float32)[::-1],
    NUMBERS.astype(np.float64).transpose(2, 0, 1),
    np.asfortranarray(NUMBERS.astype(np.int16)),
    NUMBERS.astype(">i4"),
    NUMBERS > 5,
    NUMBERS.astype(np.float16)[:, ::2],
    np.zeros((0, 3), np.uint8),
]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_are_equal(number: int, protocol: int) -> None:
    found = received(ARRAYS[number], protocol)
    assert found.dtype == ARRAYS[number].dtype.newbyteorder("=")
    assert np.array_equal(found, ARRAYS[number])


@pytest.mark.parametrize(
    "value", [np.float32(0.1), np.float64(0.1), np.int64(-3), np.bool_(True), 2, True]
)
def test_numbers_are_floats(value: Any) -> None:
    assert received(value) == float(value)


STORED = ["float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", STORED)
def test_tensors_are_equal(dtype: str) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    for view in (tensor, tensor.T, tensor[1:, ::2], tensor[2, 3]):
        assert np.array_equal(received(view), view.numpy())


def test_instructions_are_read() -> None:
    found = read_instructions(
        pickled(RemotePolicyConfig("act", "user/model", FEATURES, 50, rename_map={"a": "b"}))
    )
    assert (found.policy_type, found.name, found.actions_per_chunk) == ("act", "user/model", 50)
    assert found.features == FEATURES
    assert found.rename_map == {"a": "b"}


@pytest.mark.parametrize("module", MODULES)
def test_the_client_can_read_the_actions(module: str) -> None:
    actions = np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32)
    data = write_actions(actions, 2.5, 1 << 40, 0.1, module)
    found = unpickled(data, module)
    assert [each.timestep for each in found] == list(range(1 << 40, (1 << 40) + 300))
    assert [each.timestamp for each in found] == [2.5 + row * 0.1 for row in range(300)]
    assert all(each.action.dtype == torch.float32 and each.action.shape == (7,) for each in found)
    assert np.array_equal(torch.stack([each.action for each in found]).numpy(), actions)
    found[0].action += 1  # of its own memory
    assert len(data) < actions.nbytes + 300 * 300


# -- hostile pickles -------------------------------------------------------------------------------


class Call:
    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


CALLS: dict[str, Any] = {
    "posix.system": Call(os.system, "touch hostile"),
    "builtins.eval": Call(eval, "open('hostile', 'w')"),
    "builtins.exec": Call(exec, "open('hostile', 'w')"),
    "builtins.getattr": Call(getattr, "", "join"),
    "subprocess.Popen": Call(subprocess.Popen, ["touch", "hostile"]),
    "_pickle.loads": Call(pickle.loads, b"\x80\x04N."),
    "torch.serialization.load": Call(torch.load, "hostile"),
    "numpy.load": Call(np.load, "hostile"),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_names_are_refused_and_named(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (CALLS[name], TimedObservation(1, 0, {"value": CALLS[name]})):
        with refused(name.rpartition(".")[2], kind=MessageError):
            read_observation(pickled(value))
    # inside the storage of a tensor, which torch itself would unpickle
    storage = Call(torch.storage._load_from_bytes, pickle.dumps(CALLS[name]))
    tensor = Call(torch._utils._rebuild_tensor_v2, storage, 0, (1,), (1,), False, OrderedDict())
    with refused(name.rpartition(".")[2], kind=MessageError):
        received(tensor)
    assert list(tmp_path.iterdir()) == []


CLASS = f"c{MODULES[0]}\nTimedObservation\n".encode()
DAMAGED = {
    "attribute of a class": b"\x80\x04" + CLASS + b"N}\x8c\x03getN s\x86b.",
    "state of a class": b"\x80\x04" + CLASS + b"}\x8c\x03getNsb.",
    "memo of a huge index": b"\x80\x04Nr\xff\xff\xff\x7f0.",
    "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"xy.",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"xy.",
    "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"xy.",
    "huge number": b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"xy.",
    "number in text": b"I" + b"9" * 100_000 + b"\n.",
    "extension": b"\x80\x04\x82\x01.",
    "buffer of another message": b"\x80\x05\x97.",
    "set": b"\x80\x04\x8f.",
    "key that is no text": b"\x80\x04}K\x01K\x02s.",
    "mark without values": b"\x80\x04t.",
    "mark as a value": b"\x80\x04](a.",
    "pop of nothing": b"\x80\x04a.",
    "object that is missing": b"\x80\x04h\x05.",
    "no end": b"\x80\x04N",
    "two values": b"\x80\x04NN.",
    "nothing": b"",
    "text": b"hello",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_pickles_are_refused_in_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with refused(kind=MessageError):
            read_observation(DAMAGED[name])
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


NESTED = {"lists": (b"]", b"a"), "tuples": (b")", b"\x85"), "dicts": (b"}\x8c\x01a}", b"s")}


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_ends_no_process(name: str) -> None:
    opened, closed = NESTED[name]
    depth = MOST_OPERATIONS // 4
    deep = b"\x80\x04" + opened * (1 if name == "tuples" else depth) + closed * depth
    with refused(kind=MessageError):
        read_observation(deep + b".")
    key = b"\x80\x04}" + deep[2:] + b"K\x01s."  # its hash would recurse
    with refused(kind=MessageError):
        read_observation(key)


def test_keys_are_texts() -> None:
    """The hash of a deep tuple would recurse."""
    assert read_pickle(b"\x80\x04}\x8c\x01aK\x02s.", ()) == {"a": 2}
    for key in (b"K\x01", b")", b"))\x85\x85"):
        with refused(kind=MessageError):
            read_pickle(b"\x80\x04}" + key + b"K\x02s.", ())


def test_self_references_and_repetition_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    doubled: list[Any] = []
    for _ in range(60):  # 2^60 leaves
        doubled = [doubled, doubled]
    for value in (cycle, doubled, {"a": doubled}):
        with refused("value", kind=MessageError):
            received(value)
        for change in (
            {"actions_per_chunk": value},
            {"pretrained_name_or_path": value},
            {"rename_map": value},
        ):
            fields = {
                "policy_type": "a",
                "pretrained_name_or_path": "b",
                "lerobot_features": {},
                "actions_per_chunk": 1,
            }
            with refused(next(iter(change)), kind=MessageError):
                read_instructions(pickled(RemotePolicyConfig(**(fields | change))))


def test_long_pickles_end_soon() -> None:
    started = time.process_time()
    with refused(f"{MOST_OPERATIONS:,}", kind=MessageError):
        read_pickle(b"\x80\x04(" + b"N" * 10_000_000 + b"t.", ())
    assert time.process_time() - started < 3


DTYPE = Call(np.dtype, "u1", False, True)
FORGED = {
    "larger than its bytes": Call(np._core.numeric._frombuffer, b"abcd", DTYPE, (1 << 39, 4), "C"),
    "negative": Call(np._core.numeric._frombuffer, b"abcd", DTYPE, (-4,), "C"),
    "of objects": Call(
        np._core.numeric._frombuffer, b"abcdefgh", Call(np.dtype, "O", False, True), (1,), "C"
    ),
    "of records": Call(
        np._core.numeric._frombuffer, b"abcdefgh", Call(np.dtype, "u4,u4", False, True), (1,), "C"
    ),
    "with many dimensions": Call(np._core.numeric._frombuffer, b"a", DTYPE, (1,) * 50_000, "C"),
    "without a dtype": Call(np._core.numeric._frombuffer, b"abcd", "u1", (4,), "C"),
    "a dtype": np.dtype("u1"),
    "a class": np.ndarray,
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_arrays_are_refused(name: str) -> None:
    with refused(kind=MessageError):
        received(FORGED[name], 5)


def test_forged_tensors_are_refused() -> None:
    stream = io.BytesIO()
    torch.save(torch.arange(4.0)._typed_storage(), stream, _use_new_zipfile_serialization=False)
    whole = stream.getvalue()
    huge = whole.replace(b"K\x04N", b"J\xff\xff\xff\x7fN")
    cases = [
        (whole, 0, (5,), (1,)),
        (whole, 1 << 39, (1,), (1,)),
        (whole, 0, (1 << 39,), (0,)),
        (whole, 0, (4,), (-1,)),
        (whole, 0, (2, 2), (1,)),
        (huge, 0, (4,), (1,)),
        (whole[:-1], 0, (4,), (1,)),
        (whole[:40], 0, (4,), (1,)),
    ]
    for storage, *view in cases:
        loaded = Call(torch.storage._load_from_bytes, storage)
        with refused(kind=MessageError):
            received(Call(torch._utils._rebuild_tensor_v2, loaded, *view, False, OrderedDict()))


@pytest.mark.parametrize("storages", [1, 300])
def test_arrays_that_come_many_times_are_refused_in_little_memory(storages: int) -> None:
    """A tensor is copied, so that 600 names of one of 1 MB would need 600 MB."""
    stream = io.BytesIO()
    torch.save(torch.zeros(1 << 18)._typed_storage(), stream, _use_new_zipfile_serialization=False)
    saved = stream.getvalue()  # one object in the pickle, however many storages read it
    loaded = [Call(torch.storage._load_from_bytes, saved) for _ in range(storages)]
    view = 0, (1 << 18,), (1,), False, OrderedDict()
    values = {
        str(number): Call(torch._utils._rebuild_tensor_v2, loaded[number % storages], *view)
        for number in range(600)
    }
    sent = pickled(TimedObservation(1.5, 3, values))
    assert len(sent) < 2e6
    tracemalloc.start()
    try:
        with refused("arrays", kind=MessageError):
            read_observation(sent)
        assert tracemalloc.get_traced_memory()[1] < 5e7
    finally:
        tracemalloc.stop()


def test_operations_of_storages_count() -> None:
    """A storage has pickles of its own; read for each tensor, they would outlast the bound of the
    message.
    """
    saved = pickle.dumps([None] * 1000, 2)
    tensors = {
        str(number): Call(
            torch._utils._rebuild_tensor_v2,
            Call(torch.storage._load_from_bytes, saved),
            0,
            (1,),
            (1,),
            False,
            None,
        )
        for number in range(4)
    }
    budget = Budget(3500, 1 << 20)
    built = read_pickle(pickled(tensors), NAMES, budget)
    with refused("damaged", kind=MessageError):
        read_array(built["0"], budget)
    read_before = budget.operations
    for number in ("1", "2"):
        with refused(kind=MessageError):
            read_array(built[number], budget)
    assert budget.operations < read_before - 2000
    with refused(f"{MOST_OPERATIONS:,}", kind=MessageError):
        read_array(built["3"], budget)


def test_views_of_one_small_tensor_are_read() -> None:
    whole = torch.arange(300.0)
    observation = TimedObservation(1.5, 3, {str(number): each for number, each in enumerate(whole)})
    assert read_observation(pickled(observation)).values["299"] == 299.0


@given(st.integers(0, len(SENT) - 1), st.binary(min_size=1, max_size=6), st.integers(0, 40))
def test_changed_bytes_are_read_or_refused(place: int, added: bytes, removed: int) -> None:
    """Most changes are within the images; half of them are put into the other bytes."""
    for at in (place, place % 700):
        try:
            read_observation(SENT[:at] + added + SENT[at + removed :])
        except MessageError:
            continue
