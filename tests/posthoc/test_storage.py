"""Calibrator files: they load as they were saved, and a bad file is an InputError and nothing else."""

import contextlib
import hashlib
import json
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save as to_safetensors

from densecal.errors import InputError
from densecal.posthoc import create, find, load, names, save

from .common import class_batches, crooked, histogram_of

IMAGES = torch.rand(2, 3, 9, 11)
NETWORKS = ("local-temperature", "selective")


def fitted_calibrator(name, classes=1):
    if name in NETWORKS:
        calibrator = create(name, num_classes=classes, seed=3)
        for parameter in calibrator.parameters():
            parameter.data.normal_(generator=torch.Generator().manual_seed(1))
        return calibrator
    if classes > 1:
        return create(name, num_classes=classes).fit(lambda: class_batches(classes=classes))
    return create(name).fit(histogram_of(*crooked(3000)))


KINDS = [(name, 1) for name in names() if find(name).binary and not name.startswith("test-")]
KINDS += [(name, 3) for name in ("temperature", "vector", *NETWORKS)]


@pytest.mark.parametrize(("name", "classes"), KINDS)
def test_what_is_loaded_equals_what_was_saved(name, classes, tmp_path):
    calibrator = fitted_calibrator(name, classes)
    save(calibrator, tmp_path / "deep" / "cal.json")
    again = load(tmp_path / "deep" / "cal.json")
    assert type(again) is type(calibrator)
    assert again.num_classes == classes
    assert again.to_json() == calibrator.to_json()
    assert again.extra_state().keys() == calibrator.extra_state().keys()
    for key, value in calibrator.extra_state().items():
        assert torch.equal(again.extra_state()[key], value)
    logits = torch.randn(2, classes, 9, 11)
    assert torch.equal(again(logits, IMAGES), calibrator(logits, IMAGES))
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["cal.json"] + (
        ["cal.safetensors"] if name in NETWORKS else []
    )


@pytest.mark.parametrize(("name", "classes"), KINDS)
def test_json_is_the_contract(name, classes, tmp_path):
    calibrator = fitted_calibrator(name, classes)
    save(calibrator, tmp_path / "cal.json")
    data = json.loads((tmp_path / "cal.json").read_text())
    assert data["densecal"] == "calibrator"
    assert data["version"] == 1
    assert data["method"] == name
    assert data["classes"] == classes
    if name == "temperature":
        assert data["temperature"] == float(calibrator.temperature)
    if name in NETWORKS:
        assert data["weights"] == "cal.safetensors"
        assert data["sha256"] == hashlib.sha256((tmp_path / "cal.safetensors").read_bytes()).hexdigest()
    else:
        again = type(calibrator).from_json(calibrator.to_json())
        assert again.to_json() == calibrator.to_json()


# ------------------------------------------------------------------ untrusted files

HEAD = {"densecal": "calibrator", "version": 1, "method": "temperature", "classes": 1, "temperature": 1.5}


def error_of(tmp_path, content):
    path = tmp_path / "cal.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(path.parent) in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "unreadable"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (b"[1, 2]", "JSON of type list"),
        (b"null", "JSON of type NoneType"),
        (b"{}", "not a calibrator"),
        (pickle.dumps(print), "unreadable"),
        ({**HEAD, "densecal": "risk-control"}, "not a calibrator"),
        ({**HEAD, "version": 2}, "format version 2; expected version 1"),
        ({**HEAD, "version": True}, "format version True"),
        ({**HEAD, "version": None}, "format version None"),
        ({**HEAD, "method": "os.system"}, "'os.system'; expected one of argmax-preserving"),
        ({**HEAD, "method": ["temperature"]}, "expected one of argmax-preserving"),
        ({**HEAD, "method": None}, "expected one of argmax-preserving"),
        ({**HEAD, "classes": 0}, "classes 0"),
        ({**HEAD, "classes": 10**9}, "classes 1000000000"),
        ({**HEAD, "classes": "1"}, "classes 1; expected a whole number"),
        ({**HEAD, "classes": 1.0}, "classes 1.0; expected a whole number"),
        ({**HEAD, "classes": True}, "classes True"),
        ({k: v for k, v in HEAD.items() if k != "classes"}, "classes None"),
        ({k: v for k, v in HEAD.items() if k != "temperature"}, "temperature 'None'; expected a number"),
        ({**HEAD, "temperature": 0}, "temperature 0.0; expected a number above 0"),
        ({**HEAD, "temperature": -1.5}, "above 0"),
        ({**HEAD, "temperature": "1.5"}, "temperature '1.5'; expected a number"),
        ({**HEAD, "temperature": [1.5]}, "expected a number"),
        ({**HEAD, "temperature": True}, "expected a number"),
        ({**HEAD, "temperature": float("nan")}, "nan; expected a finite number"),
        ({**HEAD, "temperature": float("inf")}, "inf; expected a finite number"),
        ({**HEAD, "temperature": 10**400}, "expected a finite number"),
        ({**HEAD, "temperature": 1e308}, "finite number of at most 1e"),
        ({**HEAD, "temperature": 1.0000001e30}, "finite number of at most 1e"),
        ({**HEAD, "method": "platt", "a": 1.0, "b": -1.0000001e30}, "finite number of at most 1e"),
        ({**HEAD, "classes": 4097}, "classes 4097; expected a whole number from 1 to 4096"),
        ({**HEAD, "method": "isotonic", "classes": 3}, "3 classes; expected 1"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": 3}, "y of type int; expected a list"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": []}, "y of 0 numbers"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": [0.0, "1"]}, "y '1'; expected a number"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": [0, 0.5, 1]}, "2 z and 3 y"),
        ({**HEAD, "method": "isotonic", "z": [0], "y": [0]}, "expected two or more points"),
        ({**HEAD, "method": "isotonic", "z": [1, 0], "y": [0, 1]}, "z that fall"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": [0, 2]}, "y that fall or leave"),
        ({**HEAD, "method": "isotonic", "z": [0, 1], "y": [-0.1, 1]}, "y that fall or leave"),
        ({**HEAD, "method": "isotonic", "z": [0, 2, 1], "y": [0, 0.5, 1]}, "z that fall"),
        ({**HEAD, "method": "isotonic", "z": [0, 1, 2, 3], "y": [0, 0.5, 0.4, 1]}, "y that fall or leave"),
        ({**HEAD, "method": "histogram", "edges": [0.0], "values": [0.5]}, "1 values; expected 2"),
        ({**HEAD, "method": "histogram", "edges": [1.0, 0.0], "values": [0.1, 0.2, 0.3]}, "edges that do not rise"),
        ({**HEAD, "method": "histogram", "edges": [0, 2, 1], "values": [0, 0.1, 0.2, 1]}, "edges that do not rise"),
        ({**HEAD, "method": "histogram", "edges": [0, 1, 1], "values": [0, 0.1, 0.2, 1]}, "edges that do not rise"),
        ({**HEAD, "method": "histogram", "edges": [0.0], "values": [0.5, 1.5]}, "values outside"),
        ({**HEAD, "method": "histogram", "edges": [0.0], "values": [-0.1, 0.5]}, "values outside"),
        ({**HEAD, "method": "beta", "a": -1, "b": 1, "c": 0}, "a -1.0 and b 1.0"),
        ({**HEAD, "method": "beta", "a": 1, "b": -0.001, "c": 0}, "a 1.0 and b -0.001; expected numbers of at least 0"),
        ({**HEAD, "method": "platt", "a": 1}, "b 'None'; expected a number"),
        ({**HEAD, "method": "vector", "classes": 1}, "1; expected 2 to"),
        ({**HEAD, "method": "vector", "classes": 3, "weight": [1, 1], "bias": [0]}, "weight of 2 numbers"),
        ({**HEAD, "method": "vector", "classes": 3, "weight": [1] * 3, "bias": [0] * 4}, "bias of 4 numbers"),
        ({**HEAD, "method": "local-temperature", "start": 0}, "start 0.0"),
        ({**HEAD, "method": "selective"}, "weights 'None'; expected the name of a .safetensors file"),
    ],
)  # fmt: skip
def test_bad_json_is_one_clear_error(content, message, tmp_path):
    assert re.search(message, error_of(tmp_path, content))


@pytest.mark.parametrize(
    ("method", "tables"),
    [
        ("temperature", {"temperature": 1e-30}),
        ("temperature", {"temperature": 1e30}),
        ("temperature", {"temperature": 1.0, "classes": 4096}),
        ("platt", {"a": 1e30, "b": -1e30}),
        ("platt", {"a": -1.0, "b": 0.0}),
        ("isotonic", {"z": [-1.0, -1.0, 2.0], "y": [0.0, 0.5, 0.5]}),
        ("isotonic", {"z": [0.0, 1.0], "y": [0.0, 1.0]}),
        ("histogram", {"edges": [0.0], "values": [1.0, 0.0]}),
        ("beta", {"a": 0.0, "b": 2.0, "c": -1.0}),
        ("beta", {"a": 2.0, "b": 0.0, "c": -1.0}),
    ],
)
def test_values_at_the_limits_are_loaded(method, tables, tmp_path):
    (tmp_path / "cal.json").write_text(json.dumps({**HEAD, "method": method, **tables}))
    loaded = load(tmp_path / "cal.json")
    assert loaded.num_classes == tables.pop("classes", 1)
    assert {name: getattr(loaded, name).tolist() for name in tables} == tables


def test_long_lists_and_large_files_are_refused(tmp_path, monkeypatch):
    many = {**HEAD, "method": "isotonic", "z": [0] * ((1 << 20) + 1), "y": [0, 1]}
    assert "z of 1,048,577 numbers" in error_of(tmp_path, many)
    monkeypatch.setattr("densecal.posthoc.storage.MAX_BYTES", 1000)
    assert "more than 1,000 bytes" in error_of(tmp_path, b" " * 1001)


def test_lists_and_files_may_be_as_long_as_the_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("densecal.posthoc.base.MAX_NUMBERS", 5)
    monkeypatch.setattr("densecal.posthoc.storage.MAX_BYTES", 1000)
    five = {**HEAD, "method": "isotonic", "z": [0, 1, 2, 3, 4], "y": [0, 0, 0.5, 1, 1]}
    (tmp_path / "cal.json").write_text(json.dumps(five).ljust(1000))
    assert load(tmp_path / "cal.json").z.tolist() == [0, 1, 2, 3, 4]
    assert "z of 6 numbers; expected 1 to 5" in error_of(tmp_path, {**five, "z": [0, 1, 2, 3, 4, 5]})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="expected a calibrator file"):
        load(tmp_path)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["densecal", "version", "method", "classes", "temperature", "z", "y", "edges", "weights", "a"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
                      st.sampled_from([*names(), "calibrator", 1])),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=5,
        ),
    )
)  # fmt: skip
def test_any_json_loads_or_is_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "cal.json"
    path.write_text(json.dumps({**HEAD, **data}))
    with contextlib.suppress(InputError):
        load(path).check()


@pytest.fixture
def network(tmp_path):
    save(fitted_calibrator("selective"), tmp_path / "cal.json")
    return tmp_path / "cal.json"


def rewrite(path, **changes):
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..\\x.safetensors", "cal.json", "", 3, None,
             ".safetensors/../../x.safetensors", "x.safetensors/"],
)  # fmt: skip
def test_weights_must_be_a_file_beside_the_json(network, name):
    outside = network.parent.parent / "x.safetensors"
    outside.write_bytes((network.parent / "cal.safetensors").read_bytes())
    rewrite(network, weights=name)
    with pytest.raises(InputError, match=r"no path|no such file"):
        load(network)


def test_weights_are_checked_by_hash(network):
    weights = network.with_suffix(".safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match="cut short or changed"):
        load(network)
    weights.write_bytes(content[:50])
    with pytest.raises(InputError, match="cut short or changed"):
        load(network)
    weights.unlink()
    with pytest.raises(InputError, match="no such file"):
        load(network)


def error_with_weights(path, content):
    path.with_suffix(".safetensors").write_bytes(content)
    rewrite(path, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(InputError) as caught:
        load(path)
    return str(caught.value)


def test_weights_of_another_network_are_refused(network):
    state = fitted_calibrator("selective").extra_state()
    first = next(iter(state))
    assert "unreadable" in error_with_weights(network, pickle.dumps(print))
    assert "unreadable" in error_with_weights(network, b"\xff" * 64)
    assert f"no tensor {first}" in error_with_weights(network, to_safetensors({"other": torch.zeros(1)}))
    wrong_shape = {**state, first: torch.zeros(2, 2)}
    assert f"no tensor {first} of shape" in error_with_weights(network, to_safetensors(wrong_shape))
    nan = {**state, first: torch.full_like(state[first], np.nan)}
    assert "NaN or infinite" in error_with_weights(network, to_safetensors(nan))
