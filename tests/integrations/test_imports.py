"""Nothing of densecal imports an integration unless it is asked to, and one that lacks its package says so."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import densecal
from densecal.runtime.extras import require

SOURCE = Path(densecal.__file__).parent


def imported(module: ast.Module) -> set[str]:
    """Names of modules that are imported when this one is: not inside functions, not for type checkers."""
    names: set[str] = set()
    pending: list[ast.AST] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)
    return names


def test_the_core_imports_no_integration():
    files = [path for path in SOURCE.rglob("*.py") if "integrations" not in path.parts]
    assert len(files) > 50
    for path in files:
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        assert not {name for name in names if name.startswith("densecal.integrations")}, path


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "densecal.integrations.torchmetrics", raising=False)
    with pytest.raises(ImportError, match=r"densecal\.integrations\.torchmetrics needs torchmetrics: pip install"):
        importlib.import_module("densecal.integrations.torchmetrics")


def test_a_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_tool.py").write_text("import a_part_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_part_that_is_not_there"):
        require("somebody", "broken_tool")
