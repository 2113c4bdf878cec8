"""The changes that are made to a module: one operator, constant or statement each, replaced in the text of the file.

What does not calculate is left alone: strings, annotations, type aliases, messages, logging, `__all__` and what
runs only for a type checker or as a script. So are `zip(..., strict=True)` and the options of a dataclass, which
guard against mistakes in the code itself.
"""

import ast
import io
import tokenize
from bisect import bisect_left
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
OPPOSITES = {"any": "all", "min": "max", "amin": "amax", "minimum": "maximum"}
OPPOSITES |= {other: name for name, other in OPPOSITES.items()}

MESSAGES = {"InputError", "warn"}
"""Calls whose arguments are text for people."""
LOGGING = {"logging", "logger", "LOGGER"}
CACHES = {"cache", "lru_cache", "cached_property"}


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a module.

    Attributes:
        module: File, relative to the package.
        line: Number of the line the change is in.
        operator: Kind of change.
        start: Offset of the replaced text, in characters.
        end: Offset of its end.
        old: The replaced text.
        new: What it is replaced by.
        before: The line as it was, without indentation.
        after: The line as it becomes.
        first: First of the lines that a test must run to notice the change.
        last: Last of them.
        once: Whether the code runs once in a process, at import or because it is cached, no matter how many tests
            depend on it; the lines are those of the whole module then.
    """

    module: str
    line: int
    operator: str
    start: int
    end: int
    old: str
    new: str
    before: str
    after: str
    first: int
    last: int
    once: bool

    def apply_to(self, source: str) -> str:
        """Return the text of the module with the change."""
        return source[: self.start] + self.new + source[self.end :]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator}: {self.before} -> {self.after}"


def mutants(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    finder = _Finder(module, source)
    finder.visit(finder.tree)
    return sorted(finder.mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.operator))


class _Finder(ast.NodeVisitor):
    """Walks through a module and collects its mutants."""

    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(source)
        self.tokens = [
            (token.string, begins, begins + len(token.string))
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME) and token.string not in "()"
            for begins in [self.starts[token.start[0] - 1] + token.start[1]]
        ]
        self.begins = [begins for _, begins, _ in self.tokens]
        self.mutants: list[Mutant] = []
        self.whole = (1, len(self.lines), True)
        self.reach = self.whole  # the lines a test must run, and whether they run once
        self.cached = False
        self.default = False

    # positions

    def _offset(self, line: int, column: int) -> int:
        """Return an offset in characters; the columns of `ast` are bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def _start(self, node: ast.AST) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)

    def _tokens(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Yield names and operators between two offsets, with offsets; no parentheses, which `ast` omits."""
        return self.tokens[bisect_left(self.begins, start) : bisect_left(self.begins, end)]

    # collecting

    def _add(self, operator: str, start: int, end: int, new: str) -> None:
        text = self.source[:start] + new + self.source[end:]
        begins = self.source.rfind("\n", 0, start) + 1
        line = self.source.count("\n", 0, start) + 1
        first, last, once = self.reach
        self.mutants.append(
            Mutant(
                module=self.module, line=line, operator="default argument" if self.default else operator,
                start=start, end=end, old=self.source[start:end], new=new,
                before=self.source[begins:].split("\n", 1)[0].strip(), after=text[begins:].split("\n", 1)[0].strip(),
                first=first, last=last, once=once,
            )
        )  # fmt: skip

    def _replace_operator(self, operator: str, left: ast.AST, right: ast.AST, new: str) -> None:
        """Replace what stands between two operands."""
        tokens = self._tokens(self._end(left), self._start(right))
        self._add(operator, tokens[0][1], tokens[-1][2], new)

    def _drop(self, node: ast.stmt) -> None:
        self._add("dropped statement", self._start(node), self._end(node), "pass")

    # statements: which lines they are, and what is left alone

    def visit(self, node: ast.AST) -> None:
        outside = self.reach
        if isinstance(node, ast.stmt) and not outside[2]:
            body = getattr(node, "body", None)
            self.reach = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno, False)
        super().visit(node)
        self.reach = outside

    def _visit_all(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        body, outside, cached = (node.body[0].lineno, node.end_lineno), self.reach, self.cached
        self.cached |= any(_name(decorator) in CACHES for decorator in node.decorator_list)
        self.reach = self.whole if self.cached else (*body, False)
        self._visit_all(node.decorator_list)
        self.default = True
        self._visit_all([*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)])
        self.default = False
        self._visit_all(node.body)
        self.reach, self.cached = outside, cached

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.default = True
        self._visit_all([*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)])
        self.default = False
        self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outside = self.reach
        self.reach = self.whole
        self._visit_all([decorator for decorator in node.decorator_list if _name(decorator) != "dataclass"])
        self._visit_all([keyword.value for keyword in node.keywords])
        self._visit_all(node.body)
        self.reach = outside

    def visit_If(self, node: ast.If) -> None:
        for_checkers = _name(node.test) == "TYPE_CHECKING"
        as_script = isinstance(node.test, ast.Compare) and _name(node.test.left) == "__name__"
        if not for_checkers and not as_script:
            self.visit(node.test)
            self._visit_all(node.body)
        self._visit_all(node.orelse)

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error is its type and a message."""

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(_name(target) == "__all__" for target in node.targets) and not self._is_alias(node):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None and _name(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_logging(node.value):
            self._drop(node)
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("loop", self._start(node), self._end(node), "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._add("loop", self._start(node), self._end(node), "continue")

    def _is_alias(self, node: ast.Assign) -> bool:
        """`Ints = NDArray[np.int64]`, `Number = int | float`."""
        name = _name(node.targets[0])
        union = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        capitalised = name[:1].isupper() and not name.isupper()
        return node in self.tree.body and capitalised and (union or isinstance(node.value, ast.Subscript))

    # expressions

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text; besides, before Python 3.12 the positions in it are wrong."""

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            self._replace_operator("comparison", left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_operator("and/or", left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not text:
            self._replace_operator("arithmetic", node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._start(node)
            after = start + len("not")
            spaces = len(self.source[after:]) - len(self.source[after:].lstrip(" "))
            self._add("not removed", start, after + spaces, "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if _is_logging(node):
            return
        if name == "isinstance":  # `int | float` is a type
            self.visit(node.args[0])
            return
        if name in OPPOSITES:
            end = self._end(node.func)
            self._add("any/all, min/max", end - len(name), end, OPPOSITES[name])
        self.visit(node.func)
        if name not in MESSAGES:
            guard = "strict" if name == "zip" else None
            self._visit_all(node.args)
            self._visit_all([keyword.value for keyword in node.keywords if keyword.arg is None or keyword.arg != guard])

    def visit_Subscript(self, node: ast.Subscript) -> None:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice):
                self._drop_bounds(part)
        self.generic_visit(node)

    def _drop_bounds(self, node: ast.Slice) -> None:
        after_lower = self._end(node.lower) if node.lower else self._start(node)
        _, colon, after = next(token for token in self._tokens(after_lower, self._end(node)) if token[0] == ":")
        if node.lower is not None and ast.unparse(node.lower) != "0":
            self._add("slice bound", self._start(node), colon, "")
        if node.upper is not None:
            steps = [token[1] for token in self._tokens(self._end(node.upper), self._end(node)) if token[0] == ":"]
            self._add("slice bound", after, steps[0] if steps else self._end(node), "")

    def visit_Slice(self, node: ast.Slice) -> None:
        """`[1:]` to `[0:]` is `[:]`, which is among the bounds."""
        lower_is_one = isinstance(node.lower, ast.Constant) and node.lower.value == 1
        self._visit_all([part for part in (node.lower, node.upper, node.step) if part is not None][lower_is_one:])

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", self._start(node), self._end(node), repr(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", self._start(node), self._end(node), repr(_other_number(node.value)))


def _other_number(value: float) -> float:
    """Return 1 for 0, 0 for 1, the next integer; 0.1 more for a float of a usual size, else twice as much."""
    if isinstance(value, int):
        return 0 if value == 1 else value + 1
    return round(value + 0.1, 10) if value == 0 or 0.05 <= abs(value) <= 10 else value * 2


def _name(node: ast.AST) -> str:
    """Return the last name of `name`, `a.name`, `name(...)` or `name[...]`."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return getattr(node, "id", getattr(node, "attr", ""))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_logging(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and _name(node.func.value) in LOGGING
