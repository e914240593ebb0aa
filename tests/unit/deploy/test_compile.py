"""deploy/compile.py: what it lists is there, and a compiled checkout has all of it compiled."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from velox.build import BUILD

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("velox_compile", ROOT / "deploy/compile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_module_that_is_listed_is_there_and_compiled_where_any_is(script: ModuleType) -> None:
    """A module that is left plain in a compiled build would only show as time."""
    assert len(set(script._MODULES)) == len(script._MODULES)
    for name in script._MODULES:
        assert (ROOT / f"velox/{name}.py").exists(), name
        built = list((ROOT / f"velox/{name}").parent.glob(f"{name.rpartition('/')[2]}.cpython-*.so"))
        assert len(built) == (BUILD == "compiled"), f"{name}: {built}"


def test_classes_that_plain_ones_inherit_from_are_those_of_compiled_modules(script: ModuleType) -> None:
    for each in script._INHERITED:
        name, _, class_name = each.partition(":")
        assert name in script._MODULES, each
        assert re.search(rf"^class {class_name}\b", (ROOT / f"velox/{name}.py").read_text(), re.MULTILINE), each


def test_no_plain_class_inherits_from_a_compiled_one_that_was_not_told(script: ModuleType) -> None:
    """Compiled, such a class can't be made: each http upstream behind an outgoing proxy was out for that."""
    classes: dict[str, str] = {}  # what each compiled module's classes are called by where they are imported
    for name in script._MODULES:
        tree = ast.parse((ROOT / f"velox/{name}.py").read_text())
        dotted = f"velox.{name.replace('/', '.')}"
        classes |= {
            f"{dotted}.{each.name}": f"{name}:{each.name}" for each in tree.body if isinstance(each, ast.ClassDef)
        }
    protocols = {"Protocol", "NamedTuple"}  # these are never compiled classes
    n_found = 0
    for file in (ROOT / "velox").rglob("*.py"):
        if file.relative_to(ROOT / "velox").with_suffix("").as_posix() in script._MODULES:
            continue
        tree = ast.parse(file.read_text())
        imported = {
            alias.asname or alias.name: f"{each.module}.{alias.name}"
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom)
            for alias in each.names
        }
        for each in ast.walk(tree):
            for base in each.bases if isinstance(each, ast.ClassDef) else ():
                wanted = classes.get(imported.get(base.id, "")) if isinstance(base, ast.Name) else None
                if wanted is not None and not _is_one_of(wanted, protocols):
                    n_found += 1
                    assert wanted in script._INHERITED, f"{file}: {each.name} inherits from {wanted}"
    assert n_found >= 3


def _is_one_of(wanted: str, bases: set[str]) -> bool:
    """Say whether a class of a compiled module has such a base: then it is none that mypyc makes."""
    name, _, class_name = wanted.partition(":")
    tree = ast.parse((ROOT / f"velox/{name}.py").read_text())
    (found,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == class_name)
    return any(isinstance(base, ast.Name) and base.id in bases for base in found.bases)


def test_decorators_are_put_where_lines_keep_their_numbers(script: ModuleType, tmp_path: Path) -> None:
    """Tracebacks name lines; users read them in the sources that are beside."""
    for each in script._INHERITED:
        file = tmp_path / "velox" / f"{each.partition(':')[0]}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((ROOT / file.relative_to(tmp_path)).read_text())
    script._allow_subclasses(tmp_path)
    n_decorated = 0
    for file in tmp_path.rglob("*.py"):
        old, new = ((root / file.relative_to(tmp_path)).read_text().splitlines() for root in (ROOT, tmp_path))
        assert len(old) == len(new)
        changed = [(before, after) for before, after in zip(old, new, strict=True) if before != after]
        n_decorated += sum(after.startswith("@mypyc_attr") for _, after in changed)
        assert all(not before or before == "from __future__ import annotations" for before, _ in changed)
    assert n_decorated == len(script._INHERITED)


def test_weak_references_are_neither_counted_nor_let_go(script: ModuleType) -> None:
    """What mypyc 2.4.1 writes for a class with an interpreted base, whose first slot is its `__dict__`."""
    slot = "((PyObject **)((char *)self + sizeof(PyObject *) + sizeof(PoolObject)))"
    dict_slot = "((PyObject **)((char *)self + sizeof(PoolObject)))"
    text = f"Py_VISIT(*{dict_slot});\nPy_VISIT(*{slot});\nPy_CLEAR(*{dict_slot});\nPy_CLEAR(*{slot});\n"
    assert script._with_weak_references(text) == (
        f"Py_VISIT(*{dict_slot});\n\nPy_CLEAR(*{dict_slot});\n"
        "if (Py_REFCNT(self) == 0) PyObject_ClearWeakRefs((PyObject *)self);\n"
    )
