"""The memory that the decoder makes for rows; tests of the engine try its steps."""

import torch
from models import SMALL, lively

from nanochat.decoder import BUCKETS, Decoder, graph_rows
from nanochat.fused import pack


@torch.inference_mode()
def test_room_grows_and_is_kept_and_there_are_fewer_slots_where_memory_is_short(monkeypatch) -> None:
    decoder = Decoder(pack(lively(SMALL)))
    assert decoder.make_room(2, 64) == 2
    store = decoder.cache.store
    slot = store.nbytes // 2
    assert decoder.make_room(1, 10) == 1
    assert decoder.cache.store is store
    decoder.make_room(1, 70)
    assert (decoder.cache.slots, decoder.length) == (2, 96)
    decoder.make_room(3, 512)
    assert (decoder.cache.slots, decoder.length) == (3, 512)
    decoder = Decoder(pack(lively(SMALL)))
    monkeypatch.setattr("nanochat.decoder.free_memory", lambda device: 9 * slot)  # half of it takes 4
    assert decoder.make_room(32, 64) == 4
    store = decoder.cache.store
    assert [decoder.make_room(32, 64), decoder.make_room(3, 20)] == [4, 3]
    assert decoder.cache.store is store


def test_any_number_of_rows_takes_few_graphs() -> None:
    assert {graph_rows(rows) for rows in range(1, 1025)} == {*BUCKETS, 512, 768, 1024}
    assert all(graph_rows(rows) >= rows for rows in range(1, 1025))
