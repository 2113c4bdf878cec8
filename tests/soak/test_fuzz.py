"""A small part of the soak test: damaged files of every kind are read or refused in one line, never more than that."""

from tests.soak.fuzz import READ, REFUSED, fuzz
from tests.soak.readers import Touch


def test_damaged_files_are_read_or_refused():
    outcomes = fuzz(cases=312, seed=1)
    assert outcomes.failures == []
    totals = {kind: sum(counts[kind] for counts in outcomes.counts.values()) for kind in (READ, REFUSED)}
    assert sum(totals.values()) == 312
    # damage that nobody notices is rare, and not all of it is fatal
    assert min(totals.values()) > 30


def test_the_payload_would_work_if_it_were_unpickled(tmp_path, monkeypatch):
    import pickle

    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Touch()))
    assert (tmp_path / "OWNED").exists()
