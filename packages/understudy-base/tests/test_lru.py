"""The LRU cache against a list that is searched."""

from hypothesis import given
from hypothesis import strategies as st

from understudy_base.lru import LRUCache


@given(
    capacity=st.integers(0, 20),
    keep=st.integers(0, 2),
    calls=st.lists(
        st.tuples(st.sampled_from(["put", "get", "pop"]), st.integers(0, 5), st.integers(1, 9)),
        max_size=30,
    ),
)
def test_lru_cache_keeps_the_newest_within_capacity(
    capacity: int, keep: int, calls: list[tuple[str, int, int]]
) -> None:
    cache: LRUCache[int, bytes] = LRUCache(capacity, len, keep)
    model: list[tuple[int, bytes]] = []  # the least recently used first
    for call, key, size in calls:
        earlier = next((value for other, value in model if other == key), None)
        if call == "put":
            model = [(other, value) for other, value in model if other != key] + [
                (key, bytes(size))
            ]
            dropped = []
            while sum(len(value) for _, value in model) > capacity and len(model) > keep:
                dropped.append(model.pop(0)[1])
            assert cache.put(key, bytes(size)) == dropped
        elif call == "pop":
            assert cache.pop(key) == earlier
            model = [(other, value) for other, value in model if other != key]
        else:
            assert cache.get(key) == earlier
            if earlier is not None:
                model = [(other, value) for other, value in model if other != key] + [
                    (key, earlier)
                ]
        assert cache.used == sum(len(value) for _, value in model)
        assert len(cache) == len(model)
        assert list(cache.items()) == model
        assert list(cache) == [other for other, _ in model]
    assert cache.clear() == [value for _, value in model]
    assert (cache.used, len(cache)) == (0, 0)
